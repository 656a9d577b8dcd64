"""Settings of the family ``dragonfly``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError

__all__ = ["DragonflySettings"]


@dataclass(frozen=True)
class DragonflySettings:
    """``p`` chips on a switch, ``a`` switches in a group, ``h`` global ports of a
    switch, ``groups`` groups.

    Balanced is a = 2p = 2h; the largest network has a h + 1 groups. With fewer, every
    pair of groups gets floor(a h / (groups - 1)) links, spread over the switches, and
    the ports that are left stay open. Latencies: ``leaf_latency_ns`` between a chip and
    its switch, ``local_latency_ns`` inside a group, ``global_latency_ns`` between
    groups.
    """

    family: Literal["dragonfly"]
    p: Annotated[int, AtLeast(1)]
    a: Annotated[int, AtLeast(1)]
    h: Annotated[int, AtLeast(1)]
    groups: Annotated[int, AtLeast(2)]
    planes: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    leaf_latency_ns: Annotated[float, NonNegative()]
    local_latency_ns: Annotated[float, NonNegative()]
    global_latency_ns: Annotated[float, NonNegative()]

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
