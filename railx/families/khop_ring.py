"""K-hop ring: optical switches in the transceivers join nodes to rings (2502.03885).

A node has fibres to the K next nodes on either side; its transceivers light one on each
side. So rings of any length close, and up to K - 1 failed nodes in a row are passed.
Only these facts of InfiniteHBD are at hand, from its abstract and second hand; its
wiring inside a node is not. Here the chips of a node are a chain. The graph is the ring
through all nodes that have not failed.

Packets go the shorter way round, on the two virtual channels of a torus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.families.chip_grids import TORUS_ROUTINGS
from railx.families.family import Family, FamilyBase, JobPlaces, size_check
from railx.settings import AtLeast, NonNegative, SettingsError
from railx.vocabulary.line_rings import torus_rings
from railx.vocabulary.routing.rings import route_rings
from railx.vocabulary.routing.table import Destinations, RoutingTable
from railx.vocabulary.topology import NodeSettings, Topology, duplex_links, topology_of

__all__ = ["FAMILY", "KHopRingSettings"]


@dataclass(frozen=True)
class KHopRingSettings(FamilyBase):
    """A ring of nodes that passes failed ones."""

    family: Literal["khop_ring"]

    nodes: Annotated[int, AtLeast(3)] = 16
    """Nodes, failed ones included."""
    chips_per_node: Annotated[int, AtLeast(1)] = 8
    """Chips of a node. Default: a server of the published fault trace."""
    reach: Annotated[int, AtLeast(1)] = 2
    """K: fibres lead from a node to so many nodes on either side."""
    failed: tuple[int, ...] = ()
    """Failed nodes, from 0; the other nodes are numbered without them."""
    lanes: Annotated[int, AtLeast(1)] = 1
    """Ports of a chip on either side of the ring."""
    internal_latency_ns: Annotated[float, NonNegative()] = 10.0
    """Time of flight inside a node, in nanoseconds. Default: an assumption, as inside a
    RailX node."""
    latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between nodes, in nanoseconds. Default: an assumption, about 20 m
    of fibre at 5 ns/m."""

    def __post_init__(self) -> None:
        for node in self.failed:
            if not 0 <= node < self.nodes:
                raise SettingsError(
                    "failed",
                    f"got {node}; allowed: 0 to {self.nodes - 1}; the nearest is"
                    f" {min(max(node, 0), self.nodes - 1)}",
                )
        if self.chips < 3:
            raise SettingsError(
                "failed", f"got {len(set(self.failed))} nodes; allowed: 3 chips or more are left"
            )
        working = np.setdiff1d(np.arange(self.nodes), self.failed)
        gap = int(np.diff([*working, working[0] + self.nodes]).max())
        if gap > self.reach:
            raise SettingsError(
                "reach",
                f"got {self.reach} with {gap - 1} failed nodes in a row; allowed: at least {gap},"
                f" so that a ring closes; the nearest is {gap}",
            )

    @property
    def chips(self) -> int:
        return (self.nodes - len(set(self.failed))) * self.chips_per_node


def build(settings: KHopRingSettings) -> Topology:
    """Build the ring; chips are numbered along it."""
    chip, rate = np.arange(settings.chips), settings.port_gbps
    between = chip % settings.chips_per_node == settings.chips_per_node - 1
    links = [
        duplex_links(a, (a + 1) % len(chip), kind, rate, latency_ns, lanes=settings.lanes)
        for a, kind, latency_ns in (
            (chip[~between], "internal", settings.internal_latency_ns),
            (chip[between], "optical", settings.latency_ns),
        )
    ]
    return topology_of(
        settings, links, chips=settings.chips, chips_per_node=settings.chips_per_node
    )


def route(
    settings: KHopRingSettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """The shorter path; on a tie ``min`` goes up, ``balanced`` splits evenly."""
    return route_rings(topology, routing, (settings.chips,), destinations)


def inside(settings: KHopRingSettings) -> NodeSettings | None:
    """The chain of a node."""
    chips = settings.chips_per_node
    if chips == 1:
        return None
    gb_s = 2 * (chips - 1) / chips * settings.lanes * settings.port_gbps / 8
    return NodeSettings(chips, "mesh", gb_s, settings.internal_latency_ns)


FAMILY = Family(
    name="khop_ring",
    settings=KHopRingSettings,
    build=build,
    check=size_check("nodes", lambda of: 2 * of.chips),
    # The ring is cut in the middle and at its start.
    halves=lambda of: (np.arange(of.chips) >= of.chips // 2).astype(np.int8),
    bisection_ports=lambda settings: 2 * settings.lanes,
    has_nodes=True,
    inside=inside,
    job_places=JobPlaces(
        "runs", lambda of: (of.nodes,), lambda of: of.chips_per_node, reach=lambda of: of.reach
    ),
    ports_per_chip=lambda settings: 2 * settings.lanes,
    routings=TORUS_ROUTINGS,
    route=route,
    chip_rings=lambda of: torus_rings(np.arange(of.chips), of.lanes),
)
