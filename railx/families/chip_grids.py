"""Tori and meshes of single chips: n parallel links per side, no switches.

Chip (x, y, z) is number (z * y_scale + y) * x_scale + x. Packets are routed in
dimension order, with two virtual channels per ring.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import numpy as np

from railx.families.family import Family, FamilyBase, JobPlaces, PlaceRule, size_check
from railx.settings import AtLeast, NonNegative
from railx.vocabulary.counts import Bill, check_boards, torus_boards, torus_ports
from railx.vocabulary.grid import longest_halves
from railx.vocabulary.nodes import block_order
from railx.vocabulary.placement import block_placement
from railx.vocabulary.routing.rings import route_rings
from railx.vocabulary.routing.table import Destinations, RoutingTable
from railx.vocabulary.topology import NodeSettings, Topology, duplex_links, topology_of

__all__ = [
    "TORUS",
    "TORUS_ROUTINGS",
    "ChipGridSettings",
    "ChipTorusSettings",
    "build",
    "check",
    "in_blocks",
    "torus_family",
]

TORUS_ROUTINGS = ("min", "balanced")
#: Capabilities of a torus of chips, with or without switches.
TORUS: dict[str, Any] = {
    # Across the middle of the longest rings, 2 n a ring.
    "bisection_ports": lambda of: 2 * of.n * of.chips // max(of.shape),
    "ports_per_chip": lambda of: 2 * len(of.shape) * of.n,
    # One per position of each ring.
    "groups": lambda of, routing: sum(of.shape),
}


@dataclass(frozen=True)
class ChipGridSettings(FamilyBase):
    """Single chips on a grid of two dimensions; subclasses may add a third."""

    n: Annotated[int, AtLeast(1)] = 1
    """Parallel ports on each side of a chip."""
    x_scale: Annotated[int, AtLeast(2)] = 8
    """Chips along x."""
    y_scale: Annotated[int, AtLeast(2)] = 8
    """Chips along y."""
    latency_ns: Annotated[float, NonNegative()] = 10.0
    """Time of flight of a link, in nanoseconds. Default: an assumption, short
    electrical links as inside a RailX node."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips along each dimension, x first."""
        return self.x_scale, self.y_scale

    @property
    def chips(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ChipTorusSettings(ChipGridSettings):
    """Single chips on a torus."""

    board_side: Annotated[int, AtLeast(1)] = 1
    """Chips on a side of a board. Links on a board need no transceivers and are in no
    bill; the graph ignores boards."""

    def __post_init__(self) -> None:
        check_boards(self.board_side, **dict(zip(_SCALES, self.shape, strict=False)))


TorusT = TypeVar("TorusT", bound=ChipTorusSettings)
_SCALES = ("x_scale", "y_scale", "z_scale")


check: Callable[[ChipGridSettings], None] = size_check(
    "x_scale", lambda of: 2 * len(of.shape) * of.chips
)


def build(settings: ChipGridSettings, *, wrap: bool = False) -> Topology:
    """Build the grid; the n parallel links of a side are one row with n lanes.

    ``wrap``: close every line to a ring.
    """
    chip = np.arange(settings.chips).reshape(settings.shape[::-1])
    links = []
    for dimension, length in enumerate(settings.shape):
        axis = chip.ndim - 1 - dimension
        starts = np.arange(length if wrap else length - 1)
        src, dst = (at.take(starts, axis) for at in (chip, np.roll(chip, -1, axis)))
        kind, flight = f"torus_{'xyz'[dimension]}", settings.latency_ns
        links.append(duplex_links(src, dst, kind, settings.port_gbps, flight, lanes=settings.n))
    return topology_of(settings, links, chips=chip.size)


def torus_route(
    settings: ChipTorusSettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """The shorter path round each ring.

    ``min`` goes up where both paths are equally long, ``balanced`` splits those packets
    evenly. Packets without a wrap link use the first virtual channel under ``min`` and
    draw one of the two under ``balanced``. ``min_inside``: as the RailX simulator
    routes, where packets with two paths equally long take no wrap link, and packets
    without one use the other channel.
    """
    return route_rings(topology, routing, settings.shape, destinations)


def torus_resize(settings: TorusT, chips: int) -> TorusT:
    """The torus of full boards with ``chips`` chips or more, nearest to a cube."""
    sizes = torus_boards(chips, len(settings.shape), settings.board_side)
    scales: dict[str, Any] = dict(zip(_SCALES, sizes, strict=False))
    return replace(settings, **scales)


def boards(settings: ChipTorusSettings) -> NodeSettings | None:
    """The links on a board, which the bill leaves out."""
    side, dimensions = settings.board_side, len(settings.shape)
    if side == 1:
        return None
    gb_s = 2 * dimensions * (side - 1) / side * settings.n * settings.port_gbps / 8
    return NodeSettings(side**dimensions, "mesh", gb_s, settings.latency_ns)


def in_blocks(rule: PlaceRule) -> dict[str, Any]:
    """The capabilities by which jobs and nodes take blocks of the grid."""
    return {
        "placement": lambda of, topology, sizes: block_placement(topology, sizes, of.shape),
        "node_order": lambda of, size: block_order(of.shape, size),
        "job_places": JobPlaces(rule, lambda of: of.shape[::-1], lambda of: 1),
    }


def torus_family(name: str, settings: type[TorusT], **capabilities: Any) -> Family[TorusT]:
    """The family of a torus of single chips, with ``capabilities`` of its own."""
    return Family(
        name=name,
        settings=settings,
        build=lambda of: build(of, wrap=True),
        check=check,
        halves=lambda of: longest_halves(of.shape),
        **TORUS,
        routings=(*TORUS_ROUTINGS, "min_inside"),
        route=torus_route,
        grouped_routings=(*TORUS_ROUTINGS, "min_inside"),
        inside=boards,
        **in_blocks("blocks"),
        bill=Bill(
            ports=lambda of: torus_ports(
                of.shape, board_side=of.board_side, n=of.n, port_gbps=of.port_gbps
            ),
            resize=torus_resize,
        ),
        **capabilities,
    )
