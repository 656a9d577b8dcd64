"""Settings of the family ``rail_only``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Between, NonNegative, Positive, SettingsError
from railx.vocabulary.counts import largest_tree

__all__ = ["RailOnlySettings"]


@dataclass(frozen=True)
class RailOnlySettings:
    """Servers whose chips of equal rank meet at rail switches, without a spine.

    Chip i of server a is number a * chips_per_server + i.
    """

    family: Literal["rail_only"]
    """Which network family this is."""

    chips_per_server: Annotated[int, AtLeast(1)]
    """Chips of a server."""

    servers: Annotated[int, AtLeast(2)]
    """Servers, at most one for each port of a rail switch."""

    switch_radix: Annotated[int, AtLeast(2)]
    """Ports of a rail switch, all to servers."""

    planes: Annotated[int, AtLeast(1)]
    """Parallel rail switches for each rank, one port of each chip in every plane."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    scale_up_width: Annotated[float, Positive()]
    """Rate of a chip's link to its scale-up switch over the rate of all its ports
    together.
    """

    scale_up_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between a chip and its scale-up switch, in nanoseconds."""

    leaf_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between a chip and its rail switch, in nanoseconds."""

    tiers: Annotated[int, Between(1, 5)] = 1
    """Tiers of the tree that each rail is; one rail switch is 1, which is what the
    graph has.
    """

    def __post_init__(self) -> None:
        if self.tiers > 1:
            self._check_tree()
        elif self.servers > self.switch_radix:
            raise SettingsError(
                "servers",
                f"got {self.servers}; allowed: 2 to switch_radix = {self.switch_radix}, a port for"
                f" each; the nearest is {self.switch_radix}, or switch_radix {self.servers}",
            )

    def _check_tree(self) -> None:
        k = self.switch_radix
        if k % 2:
            raise SettingsError(
                "switch_radix",
                f"got {k}; allowed: an even number, half of the ports face up; the nearest are"
                f" {k - 1} and {k + 1}",
            )
        most = largest_tree(self.tiers, k)
        if self.servers > most:
            raise SettingsError(
                "servers",
                f"got {self.servers}; allowed: 2 to {most} with {self.tiers} tiers of {k}-port"
                f" switches; the nearest is {most}",
            )

    @property
    def chips(self) -> int:
        return self.servers * self.chips_per_server
