"""Settings of the family ``rail_only``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.topology import check_size

__all__ = ["RailOnlySettings"]


@dataclass(frozen=True)
class RailOnlySettings:
    """``servers`` of ``chips_per_server`` chips; chip i of server a is number a *
    chips_per_server + i.

    ``switch_radix``: ports of a rail switch, all to servers. ``planes``: parallel rail
    switches for each rank, one port of each chip in every plane. ``scale_up_width``:
    rate of a chip's link to its scale-up switch over the rate of all its ports
    together.
    """

    family: Literal["rail_only"]
    chips_per_server: Annotated[int, AtLeast(1)]
    servers: Annotated[int, AtLeast(2)]
    switch_radix: Annotated[int, AtLeast(2)]
    planes: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    scale_up_width: Annotated[float, Positive()]
    scale_up_latency_ns: Annotated[float, NonNegative()]
    leaf_latency_ns: Annotated[float, NonNegative()]

    def __post_init__(self) -> None:
        if self.servers > self.switch_radix:
            raise SettingsError(
                "servers",
                f"got {self.servers}; allowed: 2 to switch_radix = {self.switch_radix}, a port for"
                f" each; the nearest is {self.switch_radix}, or switch_radix {self.servers}",
            )
        check_size("servers", 2 * self.chips * (1 + self.planes))

    @property
    def chips(self) -> int:
        return self.servers * self.chips_per_server
