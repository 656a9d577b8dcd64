"""A plain 2D mesh: single chips with n parallel links to each of up to 4 neighbours.

The ports at the rim stay open. Routing is in dimension order: XY, or XY and YX in
parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from railx.families.chip_grids import ChipGridSettings, build, check, in_blocks
from railx.families.family import Family
from railx.vocabulary.arrays import Int32Array, IntArray
from railx.vocabulary.grid import longest_halves
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["FAMILY", "Mesh2DSettings"]


@dataclass(frozen=True)
class Mesh2DSettings(ChipGridSettings):
    """A plain 2D mesh: single chips with n links to each of up to 4 neighbours.

    Chip (x, y) is number y * x_scale + x. Default: the textbook 8 x 8.
    """

    family: Literal["mesh_2d"]


def node_hop_counts(settings: Mesh2DSettings) -> IntArray:
    """Ordered pairs of chips by distance: index h counts those h links apart."""
    line_x, line_y = (
        np.bincount(np.abs(np.subtract.outer(line, line)).ravel())
        for line in map(np.arange, settings.shape)
    )
    return np.convolve(line_x, line_y)


def route(
    settings: Mesh2DSettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """Minimal, and deadlock-free because each order has its own virtual channel.

    * ``min``: XY.
    * ``balanced``: XY on channel 0 or YX on channel 1 with equal chance (O1TURN, Seo
      2005); uniform traffic loads links as XY does, permutations less.
    * ``adaptive``: the same two paths; the source takes the one with the shorter queue.

    States: 0 at the source; 1 XY, 2 YX (``min``: always 0).
    """
    both = routing != "min"
    builder = TableBuilder(
        topology, routing, destinations, states=3 if both else 1, virtual_channels=2 if both else 1
    )
    if not both:
        builder.entry[0] = _ordered(builder, settings, ("x", "y"), vc=0, state=0)
        return builder.build()
    builder.entry[1] = _ordered(builder, settings, ("x", "y"), vc=0, state=1)
    builder.entry[2] = _ordered(builder, settings, ("y", "x"), vc=1, state=2)
    elsewhere = builder.entry[1] >= 0
    builder.entry[0][elsewhere] = builder.merge(
        builder.entry[1][elsewhere], builder.entry[2][elsewhere]
    )
    return builder.build()


def _ordered(
    builder: TableBuilder, settings: Mesh2DSettings, order: tuple[str, str], *, vc: int, state: int
) -> Int32Array:
    """Sets by chip and destination in dimension order; -1 at the destination."""
    chip, to = np.arange(builder.topology.chips), builder.destinations.astype(np.int64)
    columns = settings.x_scale
    entry = np.full((len(chip), len(to)), -1, dtype=np.int32)
    for axis in reversed(order):
        position, target = (
            (chip % columns, to % columns) if axis == "x" else (chip // columns, to // columns)
        )
        length, stride = (columns, 1) if axis == "x" else (settings.y_scale, columns)
        step = np.sign(np.arange(length) - position[:, None])
        sets = builder.single(
            builder.pools_between(chip[:, None], chip[:, None] + step * stride, vc), state
        )
        entry = np.where(position[:, None] != target, sets[:, target], entry)
    return entry


FAMILY = Family(
    name="mesh_2d",
    settings=Mesh2DSettings,
    build=build,
    check=check,
    halves=lambda of: longest_halves(of.shape),
    bisection_ports=lambda of: of.n * min(of.shape),
    # Unused at the rim.
    ports_per_chip=lambda of: 4 * of.n,
    routings=("min", "balanced", "adaptive"),
    route=route,
    node_hop_counts=node_hop_counts,
    **in_blocks("boxes"),
)
