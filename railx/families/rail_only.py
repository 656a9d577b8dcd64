"""Rail-only network: chips of equal rank in all servers share a rail switch.

It is the rail-optimised network without its spine: a chip reaches chips of another rank
through the scale-up switch of its server. Source: Wang et al. 2023, "Optimized network
architectures for large language model training with billions of parameters".

With two or three tiers each rail is a separate non-blocking tree. Two tiers with a
port per chip are the multi-plane fat tree of DeepSeek (2505.09343): chip i of a server
is on plane i, traffic between planes crosses the server. A packet goes up over spine
switches drawn evenly and down the one path, so no cycle of waiting packets can form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np

from railx.families import rails
from railx.families.family import check_even, shared_fields
from railx.families.rails import ElectricalRailSettings, electrical_family
from railx.settings import AtLeast, Between, NonNegative, SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.counts import Bill, Ports, fewest_tiers, largest_tree, tree_switches
from railx.vocabulary.routing.spread import even_sets
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Links, Topology, check_size, duplex_links, join_rows, nearest

__all__ = ["FAMILY", "RailOnlySettings", "group_network"]


@dataclass(frozen=True)
class RailOnlySettings(ElectricalRailSettings):
    """Servers whose chips of equal rank meet at rail switches, without a spine.

    Chip i of server a is number a * chips_per_server + i.
    """

    family: Literal["rail_only"]

    servers: Annotated[int, AtLeast(2)] = 16
    """Servers, at most one for each port of a rail switch."""
    switch_radix: Annotated[int, AtLeast(2)] = 16
    """Ports of a rail switch, all to servers."""
    tiers: Annotated[int, Between(1, 5)] = 1
    """Tiers of the tree that each rail is; the graph has 1 to 3, of full switches."""
    global_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between the switches of a rail, in nanoseconds. Default: an
    assumption, about 20 m of fibre at 5 ns/m."""

    def __post_init__(self) -> None:
        super().__post_init__()
        k = self.switch_radix
        if self.tiers > 1:
            check_even("switch_radix", k, "half of the ports face up")
            most = largest_tree(self.tiers, k)
            if self.servers > most:
                raise SettingsError(
                    "servers",
                    f"got {self.servers}; allowed: 2 to {most} with {self.tiers} tiers of {k}-port"
                    f" switches; the nearest is {most}",
                )
        elif self.servers > k:
            raise SettingsError(
                "servers",
                f"got {self.servers}; allowed: 2 to switch_radix = {k}, a port for each; the"
                f" nearest is {k}, or switch_radix {self.servers}",
            )

    @property
    def server_count(self) -> int:
        return self.servers

    @property
    def servers_per_pod(self) -> int:
        return self.servers if self.tiers == 1 else self.switch_radix // 2

    @property
    def pod_count(self) -> int:
        """Leaves of a rail."""
        return -(-self.servers // self.servers_per_pod)

    @property
    def parts(self) -> int:
        """Parts of a rail that only its top tier joins: leaves, or groups of leaves."""
        return self.pod_count if self.tiers == 2 else self.pod_count // (self.switch_radix // 2)

    @property
    def spines(self) -> int:
        """Switches of a plane above the leaves."""
        if self.tiers == 1:
            return 0
        upper = self.parts // 2 if self.tiers == 2 else self.pod_count + self.pod_count // 2
        return upper * self.chips_per_server


def check(settings: RailOnlySettings) -> None:
    """Refuse rails that are no full trees, and more links than fit in memory."""
    if settings.tiers > 3:
        raise SettingsError("tiers", f"got {settings.tiers}; allowed: 1, 2, 3")
    if settings.tiers > 1:
        k = settings.switch_radix
        part = (k // 2) ** (settings.tiers - 1)
        fits = [part * parts for parts in range(2, k + 1, 2) if k % parts == 0]
        if settings.servers not in fits:
            raise SettingsError(
                "servers",
                f"got {settings.servers}; allowed with {settings.tiers} tiers: {part} times an even"
                f" divisor of switch_radix = {k}, so that the top switches are full;"
                f" {nearest(settings.servers, fits)}",
            )
    check_size("servers", 2 * settings.chips * (1 + settings.planes * settings.tiers))


# Rails of several tiers. Switches of a tier are arrays whose last axis is the rank.


def build(settings: RailOnlySettings) -> Topology:
    """Build the network as :func:`railx.families.rails.build`.

    Above the leaves of a plane follow the spine switches, or the aggregation switches
    (group by group) and the core switches, rank by rank.
    """
    return rails.build(settings, None if settings.tiers == 1 else partial(_tree_links, settings))


def _tiers(settings: RailOnlySettings, leaf: IntArray, upper: IntArray) -> list[IntArray]:
    """The switches of each tier.

    Leaves [part, switch, rank], then a spine [1, switch, rank], or aggregation switches
    [part, switch, rank] and core switches [aggregation switch of a part, switch, rank].
    """
    g, half, parts = settings.chips_per_server, settings.switch_radix // 2, settings.parts
    if settings.tiers == 2:
        return [leaf.reshape(parts, 1, g), upper.reshape(1, parts // 2, g)]
    middle, core = np.split(upper, [parts * half * g])
    return [
        leaf.reshape(parts, half, g),
        middle.reshape(parts, half, g),
        core.reshape(half, parts // 2, g),
    ]


def _tree_links(settings: RailOnlySettings, leaf: IntArray, upper: IntArray) -> Links:
    tiers = _tiers(settings, leaf, upper)
    wide = settings.switch_radix // settings.parts
    pairs = [
        (tiers[-2][:, :, None], tiers[-1], "core" if settings.tiers == 3 else "aggregation", wide)
    ]
    if settings.tiers == 3:
        pairs.insert(0, (tiers[0][:, :, None], tiers[1][:, None], "aggregation", 1))
    rate, latency_ns = settings.port_gbps, settings.global_latency_ns
    return join_rows(
        [duplex_links(a, b, kind, rate, latency_ns, lanes=lanes) for a, b, kind, lanes in pairs]
    )


def route(
    settings: RailOnlySettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """Inside the server first, then along a rail, up and down where it is a tree.

    ``min`` draws planes and switches evenly; ``adaptive`` takes those with the shortest
    queues.
    """
    if settings.tiers == 1:
        return rails.route(settings, topology, routing, destinations)
    builder, groups = rails.rail_table(
        settings, topology, routing, destinations, crosses_ranks=False
    )
    rail_switch, spine = np.arange(settings.rail_switches), np.arange(settings.spines)
    first = topology.chips + settings.servers
    for plane in first + np.arange(settings.planes) * (len(rail_switch) + len(spine)):
        leaf = plane + rail_switch
        tiers = _tiers(settings, leaf, leaf[-1] + 1 + spine)
        _fill_tree(builder, tiers, groups.on_level(0))
    return builder.build()


def _fill_tree(builder: TableBuilder, tiers: list[IntArray], columns: slice) -> None:
    """The sets of the switches of a plane up to their tiers and down to its leaves.

    ``columns``: those of the leaves, rank by rank.
    """
    leaf, rank = np.divmod(np.arange(columns.stop - columns.start), tiers[0].shape[2])
    part, index = np.divmod(leaf, tiers[0].shape[1])
    for tier, switches in enumerate(tiers):
        for at in np.ndindex(*switches.shape):
            vertex, same_rank = int(switches[at]), rank == at[-1]
            sets = np.full(len(rank), -1, dtype=np.int32)
            if tier < len(tiers) - 1:
                above = tiers[tier + 1][0 if len(tiers) == 2 else at[tier], :, at[2]]
                sets[same_rank] = even_sets(builder, np.array([vertex]), above[None])[0]
            if tier:
                down = tiers[0][part, index, rank] if tier == 1 else tiers[1][part, at[0], rank]
                reached = same_rank & ((part == at[0]) | (tier == len(tiers) - 1))
                ends, where = np.unique(down[reached], return_inverse=True)
                sets[reached] = even_sets(builder, np.full(len(ends), vertex), ends[:, None])[where]
            builder.entry[0][vertex, columns] = sets


def resize(settings: RailOnlySettings, chips: int) -> RailOnlySettings:
    """The full servers with at least ``chips`` chips and the fewest tiers."""
    servers = max(2, math.ceil(chips / settings.chips_per_server))
    tiers = fewest_tiers(
        servers,
        settings.tiers,
        settings.switch_radix,
        None,
        chips=chips,
        chips_per_end=settings.chips_per_server,
    )
    return replace(settings, servers=servers, tiers=tiers)


def group_network(settings: ElectricalRailSettings, nodes: int, wiring: str) -> RailOnlySettings:
    """The network of a group of servers: a full-bandwidth tree acts as a switch.

    No group leaves its rail, so a spine makes no difference.
    """
    return RailOnlySettings(
        family="rail_only",
        servers=nodes,
        switch_radix=max(2, nodes),
        **shared_fields(settings, ElectricalRailSettings),
    )


def whole_switches(settings: RailOnlySettings) -> Ports:
    """The bill with every port of each switch, used or not."""
    radix, servers = settings.switch_radix, settings.servers
    switches = tree_switches(settings.pod_count, servers, settings.tiers, radix)
    rails_of_all = settings.planes * settings.chips_per_server
    counted = rails.electrical_ports(settings)
    return replace(counted, electrical_switch_ports=rails_of_all * switches * radix)


FAMILY = electrical_family(
    "rail_only",
    RailOnlySettings,
    build=build,
    check=check,
    route=route,
    group_network=group_network,
    bill=Bill(
        ports=rails.electrical_ports, resize=resize, countings={"whole_switches": whole_switches}
    ),
)
