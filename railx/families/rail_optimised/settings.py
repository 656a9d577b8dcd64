"""Settings of the family ``rail_optimised``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Between, NonNegative, Positive, SettingsError

__all__ = ["RailOptimisedSettings"]


@dataclass(frozen=True)
class RailOptimisedSettings:
    """Servers whose chips of equal rank meet at rail switches, with a spine above them.

    Chip i of server a is number a * chips_per_server + i.
    """

    family: Literal["rail_optimised"]
    """Which network family this is."""

    chips_per_server: Annotated[int, AtLeast(1)]
    """Chips of a server."""

    pods: Annotated[int, AtLeast(1)]
    """Groups of switch_radix / 2 servers that share their rail switches."""

    switch_radix: Annotated[int, AtLeast(4)]
    """Ports of a rail switch: half to servers, half to the spine."""

    planes: Annotated[int, AtLeast(1)]
    """Parallel rail networks, one port of each chip in every plane."""

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

    global_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between a rail switch and the spine, in nanoseconds."""

    tiers: Annotated[int, Between(1, 5)] = 2
    """Tiers of the tree over all chips: rail switches and spine are 2, which is what
    the graph has.
    """

    populated_servers: Annotated[int, AtLeast(2)] | None = None
    """Servers that are plugged in; null: all of every pod, which is what the graph
    has.
    """

    def __post_init__(self) -> None:
        k = self.switch_radix
        if k % 2:
            raise SettingsError(
                "switch_radix",
                f"got {k}; allowed: an even number, half of the ports face up; the nearest are"
                f" {k - 1} and {k + 1}",
            )
        most = self.pods * self.servers_per_pod
        if self.populated_servers is not None and self.populated_servers > most:
            raise SettingsError(
                "populated_servers",
                f"got {self.populated_servers}; allowed: at most {most}, the servers of"
                f" {self.pods} pods; the nearest is {most}",
            )

    def pods_that_work(self) -> str:
        """The numbers of pods next to this one that a two-tier graph can join alike."""
        k, g = self.switch_radix, self.chips_per_server
        fits = [pods for pods in range(1, k // g + 1) if pods * g % 2 == 0 and k % (pods * g) == 0]
        if not fits:
            fewest = 1 if g % 2 == 0 else 2
            radix = max(1, round(k / (fewest * g))) * fewest * g
            return (
                f"no number of pods fits this radix; the nearest is switch_radix {radix} with"
                f" {fewest} pods"
            )
        around = [
            max([p for p in fits if p < self.pods], default=None),
            min([p for p in fits if p > self.pods], default=None),
        ]
        near = [str(pods) for pods in around if pods is not None]
        return f"the nearest {'is' if len(near) == 1 else 'are'} {' and '.join(near)}"

    @property
    def servers_per_pod(self) -> int:
        return self.switch_radix // 2

    @property
    def servers(self) -> int:
        if self.populated_servers is not None:
            return self.populated_servers
        return self.pods * self.servers_per_pod

    @property
    def chips(self) -> int:
        return self.servers * self.chips_per_server

    @property
    def rail_switches(self) -> int:
        """Leaf switches of a plane: one for each rank in each pod."""
        return self.pods * self.chips_per_server

    @property
    def spines(self) -> int:
        """Spine switches of a plane."""
        return self.rail_switches // 2

    @property
    def spine_lanes(self) -> int:
        """Parallel links between a rail switch and a spine switch."""
        return self.switch_radix // self.rail_switches
