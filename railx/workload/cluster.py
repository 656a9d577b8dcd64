"""The machine that plans are made for.

Devices, memory and all-to-all bandwidth by the degree of sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from railx.settings import AtLeast, NotEmpty, Positive, PowerOfTwo, SettingsError

__all__ = ["ClusterSettings", "all_to_all_gb_s"]


@dataclass(frozen=True)
class ClusterSettings:
    """Devices of one kind."""

    name: Annotated[str, NotEmpty()]
    """Name that plans and figures show."""
    devices: Annotated[int, PowerOfTwo()]
    """Devices of all nodes together."""
    memory_gib: Annotated[float, Positive()]
    """What training may use of one device's memory."""
    tokens_per_device: Annotated[int, AtLeast(1)] | None
    """Most tokens that one device holds; null takes what follows from the memory."""
    device_tflop_s: Annotated[float, Positive()]
    """Peak of one device; the analytic cost model alone uses it."""
    all_to_all_gb_s: Mapping[str, Annotated[float, Positive()]]
    """Bandwidth of one device in an all-to-all, by the degree of sequence parallelism.
    A degree that is not listed is not used; degree 1 exchanges nothing.
    """

    def __post_init__(self) -> None:
        for degree in self.all_to_all_gb_s:
            if not degree.isdigit() or int(degree) < 2 or not PowerOfTwo().accepts(int(degree)):
                raise SettingsError(
                    f"all_to_all_gb_s.{degree}", "unknown degree; allowed: a power of two from 2"
                )


def all_to_all_gb_s(cluster: ClusterSettings) -> dict[int, float]:
    """Bandwidth (GB/s per device) by degree, degrees ascending.

    Up to the number of devices.
    """
    table = {int(degree): bandwidth for degree, bandwidth in cluster.all_to_all_gb_s.items()}
    return {degree: table[degree] for degree in sorted(table) if degree <= cluster.devices}
