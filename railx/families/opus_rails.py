"""Photonic rails: chips of equal rank in all servers share an optical circuit switch.

A server is g chips behind a scale-up switch. Every chip has ``ocs_ports`` optical
ports, two on each of its switches, so that it can join one ring (or face two peers) per
switch. The graph is the static setting, a ring over all servers on every switch.
Reconfiguration changes the circuits between phases of a job and is not part of it.
Source: Opus (photonic rails; two ports per chip).

Packets move inside the server, then round the ring of the destination's rank. The bill
counts as the released cost script of Opus (fig. 15): optical ports share transceivers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.families.family import Lines, check_even, check_radix, size_check
from railx.families.rails import ServerSettings, scale_up_links, server_family
from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.counts import Bill, Ports, fewest_units
from railx.vocabulary.routing.groups import groups_by_coordinates
from railx.vocabulary.routing.rings import ring_sets
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology, duplex_links, plus_to_minus_circuits, topology_of

__all__ = ["FAMILY", "OpusRailsSettings"]


@dataclass(frozen=True)
class OpusRailsSettings(ServerSettings):
    """Servers whose chips of equal rank are joined in rings by optical switches.

    Chip i of server a is number a * chips_per_server + i.
    """

    family: Literal["opus_rails"]

    servers: Annotated[int, AtLeast(2)] = 16
    """Servers, all in a ring on every optical switch."""
    ocs_ports: Annotated[int, AtLeast(2)] = 2
    """Optical ports of a chip, two on each of ocs_ports / 2 switches of its rank."""
    ocs_radix: Annotated[int, AtLeast(2)] | None = None
    """Ports of an optical switch (a Polatis 6000N has 192); null: just enough, 2 for
    each server."""
    scale_up_width: Annotated[float, Positive()] = 4.5
    """Rate of a chip's link to its scale-up switch over the rate of all its ports
    together. Default: 450 GB/s over two ports of 50 GB/s (Opus)."""
    external_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight of an optical circuit, in nanoseconds. Default: an assumption,
    about 20 m of fibre at 5 ns/m."""
    ocs_ports_per_transceiver: Annotated[int, AtLeast(1)] = 2
    """Optical ports of a chip that share a transceiver, whose rate is theirs together;
    2 in the released cost script of Opus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even("ocs_ports", self.ocs_ports, "two for each ring")
        if self.ocs_ports % self.ocs_ports_per_transceiver:
            raise SettingsError(
                "ocs_ports_per_transceiver",
                f"got {self.ocs_ports_per_transceiver}; allowed: a divisor of ocs_ports ="
                f" {self.ocs_ports}",
            )
        fit = "or at most {half} servers for this radix"
        check_radix(self.ocs_radix, self.servers, "servers", fit)

    @property
    def ports_per_chip(self) -> int:
        return self.ocs_ports

    @property
    def server_count(self) -> int:
        return self.servers

    @property
    def rings_per_chip(self) -> int:
        """Optical switches, and so rings, of a chip."""
        return self.ocs_ports // 2


# Graph


def build(settings: OpusRailsSettings) -> Topology:
    """Build the network.

    Ring j of rank i has optical switch and rail i * ocs_ports / 2 + j; the only other
    switches are scale-up ones. Circuits: dimension x, ``line`` = rail, nodes = servers;
    server a owns the ports 2a (towards a + 1) and 2a + 1.
    """
    g, rings = settings.chips_per_server, settings.rings_per_chip
    rail, a = np.indices((g * rings, settings.servers)).reshape(2, -1)
    b, rank = (a + 1) % settings.servers, rail // rings
    rate, latency_ns = settings.port_gbps, settings.external_latency_ns
    links = [
        scale_up_links(settings, settings.ocs_ports),
        duplex_links(a * g + rank, b * g + rank, "optical", rate, latency_ns, rail=rail),
    ]
    return topology_of(
        settings,
        links,
        chips=settings.chips,
        chips_per_node=g,
        switches=settings.servers,
        circuits=plus_to_minus_circuits(a, b, ocs=rail, rail=rail, dimension=0, line=rail),
    )


def halves(settings: OpusRailsSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex: the servers are cut in the middle."""
    server = np.arange(settings.servers) >= settings.servers // 2
    return np.concatenate([np.repeat(server, settings.chips_per_server), server]).astype(np.int8)


# Routing


def route(
    settings: OpusRailsSettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """The shorter path round the ring.

    At equal distance ``min`` goes up and ``balanced`` splits the packets evenly. States
    and the two virtual channels of a ring are those of
    :func:`railx.vocabulary.routing.rings.route_rings`. Links to and from scale-up
    switches, on channel 0, come before all links of rings, so they close no cycle.
    """
    g, chip = settings.chips_per_server, np.arange(settings.chips)
    switch = settings.chips + np.arange(settings.servers)
    to = chip if destinations is None else destinations.astype(np.int64)
    # Scale-up switches lead to every rank.
    rank = np.concatenate([chip % g, np.full(settings.servers, -1)])
    groups = groups_by_coordinates(
        topology.vertices, [rank], [to % g], [to % g, to // g], (g, settings.servers)
    )
    builder = TableBuilder(topology, routing, destinations, groups, states=5, virtual_channels=2)
    to_rank, to_server = map(groups.on_level, range(2))
    builder.entry[0][chip, to_rank] = builder.single(
        builder.pools_between(chip, switch[chip // g], 0), 0
    )[:, None]
    builder.entry[0][switch, to_rank] = builder.single(
        builder.pools_between(switch[:, None], chip.reshape(-1, g), 0), 0
    )
    builder.entry[:, chip, to_server] = ring_sets(builder, chip, g, settings.servers)
    builder.entry[:, chip, groups.first[1] + chip // g] = -1
    return builder.build()


# Bill of materials


def ports(settings: OpusRailsSettings) -> Ports:
    """Components of the rails, and their injection in ports per chip.

    A port is a transceiver with its optical ports. Two circuits per chip carry no
    direct all-to-all, and multi-hop all-to-all depends on the job, so neither bandwidth
    has a closed form.
    """
    shared = settings.ocs_ports_per_transceiver
    transceivers = settings.ocs_ports // shared
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps * shared,
        cables={"optical": settings.chips * transceivers},
        injection=transceivers,
        all_to_all=None,
        bisection=None,
        ocs_ports=settings.chips * settings.ocs_ports,
    )


def resize(settings: OpusRailsSettings, chips: int) -> OpusRailsSettings:
    """The fewest servers with at least ``chips`` chips."""
    radix = 2 * settings.servers if settings.ocs_radix is None else settings.ocs_radix
    g, what = settings.chips_per_server, f"one switch of {radix} ports per rail"
    return replace(settings, servers=fewest_units(chips, g, radix // 2, what))


FAMILY = server_family(
    "opus_rails",
    OpusRailsSettings,
    build=build,
    check=size_check("servers", lambda of: of.chips * (2 + of.ocs_ports)),
    halves=halves,
    # Each ring crosses the cut twice.
    bisection_ports=lambda of: 2 * of.chips_per_server * of.rings_per_chip,
    routings=("min", "balanced"),
    route=route,
    grouped_routings=("min", "balanced"),
    # For ranks and for servers.
    groups=lambda of, routing: of.chips_per_server + of.servers,
    switched=True,
    bill=Bill(ports=ports, resize=resize),
    lines=Lines(
        axes=(("x", "y"),),
        wirings=lambda of, nodes: ("ring",) if nodes <= of.servers else (),
        alone=lambda of, nodes, wiring: replace(of, servers=nodes),
        shares=lambda of: of.rings_per_chip,
        nodes=lambda of: of.servers,
    ),
)
