"""Settings of the family ``dragonfly``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError

__all__ = ["DragonflySettings"]


@dataclass(frozen=True)
class DragonflySettings:
    """Groups of switches, all joined inside a group, with links between any two groups.

    Balanced is a = 2p = 2h; the largest network has a h + 1 groups. With fewer, every
    pair of groups gets floor(a h / (groups - 1)) links, spread over the switches, and
    the ports that are left stay open.
    """

    family: Literal["dragonfly"]
    """Which network family this is."""

    p: Annotated[int, AtLeast(1)]
    """Chips on a switch."""

    a: Annotated[int, AtLeast(1)]
    """Switches in a group."""

    h: Annotated[int, AtLeast(1)]
    """Ports of a switch to other groups."""

    groups: Annotated[int, AtLeast(2)]
    """Groups, at most a h + 1."""

    planes: Annotated[int, AtLeast(1)]
    """Parallel networks side by side, one port of each chip in every plane."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    leaf_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between a chip and its switch, in nanoseconds."""

    local_latency_ns: Annotated[float, NonNegative()]
    """Time of flight inside a group, in nanoseconds."""

    global_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between groups, in nanoseconds."""

    def __post_init__(self) -> None:
        most = self.a * self.h + 1
        if self.groups > most:
            raise SettingsError(
                "groups",
                f"got {self.groups}; allowed: 2 to a * h + 1 = {most}, one global link for each"
                f" pair of groups; the nearest is {most} (or h = {-(-(self.groups - 1) // self.a)}"
                f" for {self.groups} groups)",
            )

    @property
    def switches(self) -> int:
        """Switches of one plane."""
        return self.a * self.groups

    @property
    def chips(self) -> int:
        return self.p * self.switches

    @property
    def links_per_pair(self) -> int:
        """Global links between any two groups of one plane."""
        return self.a * self.h // (self.groups - 1)
