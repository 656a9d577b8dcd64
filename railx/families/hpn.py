"""HPN 7.0: segments of servers with a rail switch per rank and plane, below a spine.

From the general definition of Alibaba's network; second hand are 15 segments of 1,024
GPUs with two ports of 200 Gb/s in two planes. Assumptions: servers of 8 chips (128 of
them in a segment), and a spine that joins all rail switches of a plane, as
rail-optimised networks have, over links that carry all that a rail switch's chips send.
No further tier is built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from railx.families import rails
from railx.families.family import size_check
from railx.families.rail_only import group_network
from railx.families.rails import ElectricalRailSettings, electrical_family
from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.counts import Bill, fewest_units
from railx.vocabulary.topology import Topology, duplex_links

__all__ = ["FAMILY", "HpnSettings"]


@dataclass(frozen=True)
class HpnSettings(ElectricalRailSettings):
    """Segments of servers below one spine, non-blocking."""

    family: Literal["hpn"]

    segments: Annotated[int, AtLeast(2)] = 3
    """Groups of servers that share their rail switches, at most ``max_segments``."""
    servers_per_segment: Annotated[int, AtLeast(1)] = 4
    """Servers of a segment."""
    uplinks: Annotated[int, AtLeast(1)] = 2
    """Ports of a rail switch to the spine, each to another spine switch."""
    max_segments: Annotated[int, AtLeast(2)] = 15
    """Segments that the ports of a spine switch join."""
    planes: Annotated[int, AtLeast(1)] = 2
    """Parallel networks, one port of each chip in every plane."""
    port_gbps: Annotated[float, Positive()] = 200.0
    """Rate of a port in one direction, in 10^9 bit/s."""
    global_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between a rail switch and the spine, in nanoseconds. Default: an
    assumption, about 20 m of fibre at 5 ns/m."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segments > self.max_segments:
            raise SettingsError(
                "segments",
                f"got {self.segments}; allowed: 2 to max_segments = {self.max_segments}; the"
                f" nearest is {self.max_segments}",
            )

    @property
    def server_count(self) -> int:
        return self.segments * self.servers_per_segment

    @property
    def tiers(self) -> int:
        return 2

    @property
    def pod_count(self) -> int:
        return self.segments

    @property
    def servers_per_pod(self) -> int:
        return self.servers_per_segment

    @property
    def spines(self) -> int:
        return self.uplinks

    @property
    def spine_delay_ns(self) -> float:
        return 2 * (self.global_latency_ns - self.scale_up_latency_ns)


def build(settings: HpnSettings) -> Topology:
    """Build the network as :func:`railx.families.rails.build`, with its spine."""
    rate = settings.port_gbps * settings.servers_per_segment / settings.uplinks
    latency_ns = settings.global_latency_ns
    return rails.build(
        settings,
        lambda leaf, spine: duplex_links(leaf[:, None], spine, "aggregation", rate, latency_ns),
    )


def resize(settings: HpnSettings, chips: int) -> HpnSettings:
    """The fewest segments with at least ``chips`` chips."""
    segment = settings.servers_per_segment * settings.chips_per_server
    most = settings.max_segments
    segments = fewest_units(chips, segment, most, f"a spine of {most} segments")
    return replace(settings, segments=segments)


FAMILY = electrical_family(
    "hpn",
    HpnSettings,
    build=build,
    check=size_check("segments", lambda of: 2 * of.chips * (1 + of.planes * (1 + of.uplinks))),
    group_network=group_network,
    bill=Bill(ports=rails.electrical_ports, resize=resize),
)
