"""Rail-optimised network: chips of equal rank share leaf switches below a spine.

A server is g chips behind a scale-up switch. A leaf (rail) switch of k ports serves one
rank of the k/2 servers of a pod and has k/2 ports up. The spine's p g / 2 switches join
all rails: they spread their ports over all p g leaves alike, so that every chip can
send at full rate to any other (full bisection). A chip has one port in each of
``planes`` such networks. The bill is that of a fat tree over all chips.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from railx.families import rails
from railx.families.family import check_even
from railx.families.rail_only import group_network
from railx.families.rails import ElectricalRailSettings, electrical_family
from railx.settings import AtLeast, Between, NonNegative, SettingsError
from railx.vocabulary.counts import Bill, Ports, fewest_tiers, largest_tree, opus_rail_switch_ports
from railx.vocabulary.topology import Topology, check_size, duplex_links, nearest

__all__ = ["FAMILY", "RailOptimisedSettings"]


@dataclass(frozen=True)
class RailOptimisedSettings(ElectricalRailSettings):
    """Servers whose chips of equal rank meet at rail switches, with a spine above them.

    Chip i of server a is number a * chips_per_server + i.
    """

    family: Literal["rail_optimised"]

    pods: Annotated[int, AtLeast(1)] = 2
    """Groups of switch_radix / 2 servers that share their rail switches; the graph
    needs pods * chips_per_server even and a divisor of switch_radix."""
    switch_radix: Annotated[int, AtLeast(4)] = 16
    """Ports of a rail switch: half to the servers of its pod, half to the spine."""
    global_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between a rail switch and the spine, in nanoseconds. Default: an
    assumption, about 20 m of fibre at 5 ns/m."""
    tiers: Annotated[int, Between(1, 5)] = 2
    """Tiers of the tree over all chips; the graph has 2, rail switches and spine."""
    populated_servers: Annotated[int, AtLeast(2)] | None = None
    """Servers that are plugged in; null: all of every pod, as in the graph."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even("switch_radix", self.switch_radix, "half of the ports face up")
        most = self.pods * self.servers_per_pod
        if self.populated_servers is not None and self.populated_servers > most:
            raise SettingsError(
                "populated_servers",
                f"got {self.populated_servers}; allowed: at most {most}, the servers of"
                f" {self.pods} pods; the nearest is {most}",
            )

    @property
    def server_count(self) -> int:
        full = self.pods * self.servers_per_pod
        return full if self.populated_servers is None else self.populated_servers

    @property
    def pod_count(self) -> int:
        return self.pods

    @property
    def servers_per_pod(self) -> int:
        return self.switch_radix // 2

    @property
    def spines(self) -> int:
        return self.rail_switches // 2

    @property
    def spine_delay_ns(self) -> float:
        return 2 * (self.global_latency_ns - self.scale_up_latency_ns)


def check(settings: RailOptimisedSettings) -> None:
    """Refuse pods that no spine joins evenly, and more links than fit in memory."""
    k, rails = settings.switch_radix, settings.rail_switches
    if settings.tiers != 2:
        raise SettingsError("tiers", f"got {settings.tiers}; allowed: 2, rail switches and spine")
    if rails % 2 or k % rails:
        raise SettingsError(
            "pods",
            f"got {settings.pods}; allowed: pods * chips_per_server even and a divisor of"
            f" switch_radix = {k}, so that every spine switch joins all {rails} rail switches"
            f" alike; {_working_pods(settings)}",
        )
    full = settings.pods * settings.servers_per_pod
    if settings.server_count != full:
        raise SettingsError(
            "populated_servers",
            f"got {settings.populated_servers}; allowed: null or {full}, a graph is of full pods",
        )
    check_size("switch_radix", 2 * settings.chips * (1 + 2 * settings.planes))


def _working_pods(settings: RailOptimisedSettings) -> str:
    """The nearest numbers of pods that a two-tier graph can join evenly, as text."""
    k, g = settings.switch_radix, settings.chips_per_server
    fits = [pods for pods in range(1, k // g + 1) if pods * g % 2 == 0 and k % (pods * g) == 0]
    if not fits:
        fewest = 1 if g % 2 == 0 else 2
        radix = max(1, round(k / (fewest * g))) * fewest * g
        return (
            f"no number of pods fits this radix; the nearest is switch_radix {radix} with"
            f" {fewest} pods"
        )
    return nearest(settings.pods, fits)


def build(settings: RailOptimisedSettings) -> Topology:
    """Build the network as :func:`railx.families.rails.build`, with its spine."""
    rate, latency_ns = settings.port_gbps, settings.global_latency_ns
    lanes = settings.switch_radix // settings.rail_switches
    return rails.build(
        settings,
        lambda leaf, spine: duplex_links(
            leaf[:, None], spine, "aggregation", rate, latency_ns, lanes=lanes
        ),
    )


# Bill of materials


def check_bill(settings: RailOptimisedSettings) -> None:
    """Refuse more chips than the tiers can join."""
    largest = largest_tree(settings.tiers, settings.switch_radix)
    if settings.chips > largest:
        servers = largest // settings.chips_per_server
        raise SettingsError(
            "tiers",
            f"got {settings.tiers} for {settings.server_count} servers; allowed: at most {servers}"
            f" servers with {settings.tiers} tiers of {settings.switch_radix}-port switches; the"
            f" nearest is {servers}",
        )


def resize(settings: RailOptimisedSettings, chips: int) -> RailOptimisedSettings:
    """The full servers with at least ``chips`` chips and the fewest tiers."""
    servers = max(2, math.ceil(chips / settings.chips_per_server))
    ends = servers * settings.chips_per_server
    tiers = fewest_tiers(ends, settings.tiers, settings.switch_radix, None, chips=chips)
    pods = math.ceil(servers / settings.servers_per_pod)
    return replace(settings, tiers=tiers, pods=pods, populated_servers=servers)


def _opus_artifact(settings: RailOptimisedSettings, *, switch_side: bool) -> Ports:
    """The bill of the released cost script of Opus (fig. 15), a port per chip.

    Transceivers are at the chips, with ``switch_side`` also at every switch port.
    """
    chips = settings.chips
    switch_ports = opus_rail_switch_ports(settings.server_count, settings.chips_per_server)
    return Ports(
        chips=chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": chips + (switch_ports if switch_side else 0)},
        injection=1,
        all_to_all=1,
        bisection=1,
        electrical_switch_ports=switch_ports,
    )


FAMILY = electrical_family(
    "rail_optimised",
    RailOptimisedSettings,
    build=build,
    check=check,
    group_network=group_network,
    bill=Bill(
        ports=rails.electrical_ports,
        resize=resize,
        check=check_bill,
        countings={
            "opus_artifact": lambda settings: _opus_artifact(settings, switch_side=False),
            "opus_artifact_both_ends": lambda settings: _opus_artifact(settings, switch_side=True),
        },
    ),
)
