"""The machine that plans are made for: devices, memory and all-to-all bandwidth by the
degree of sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from railx.settings import AtLeast, NotEmpty, Positive, PowerOfTwo, SettingsError

__all__ = ["ClusterSettings", "all_to_all_gb_s"]


@dataclass(frozen=True)
class ClusterSettings:
    """Devices of one kind.

    ``memory_gib`` is what training may use of one device (2^30 bytes).
    ``tokens_per_device`` overrides the token cap that follows from memory (null: from
    memory). ``device_tflop_s`` is the peak in 10^12 operations per second, used by the
    analytic cost model alone. ``all_to_all_gb_s`` maps a degree of sequence parallelism
    to the bandwidth of one device in an all-to-all among that many; a degree that is
    not listed is not used, and degree 1 exchanges nothing.
    """

    name: Annotated[str, NotEmpty()]
    devices: Annotated[int, PowerOfTwo()]
    memory_gib: Annotated[float, Positive()]
    tokens_per_device: Annotated[int, AtLeast(1)] | None
    device_tflop_s: Annotated[float, Positive()]
    all_to_all_gb_s: Mapping[str, Annotated[float, Positive()]]

    def __post_init__(self) -> None:
        for degree in self.all_to_all_gb_s:
            if not degree.isdigit() or int(degree) < 2 or not PowerOfTwo().accepts(int(degree)):
                raise SettingsError(
                    f"all_to_all_gb_s.{degree}", "unknown degree; allowed: a power of two from 2"
                )


def all_to_all_gb_s(cluster: ClusterSettings) -> dict[int, float]:
    """Bandwidth (GB/s per device) by degree, degrees ascending, up to the number of
    devices.
    """
    table = {int(degree): bandwidth for degree, bandwidth in cluster.all_to_all_gb_s.items()}
    return {degree: table[degree] for degree in sorted(table) if degree <= cluster.devices}
