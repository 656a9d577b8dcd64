"""A plain 2D torus: single chips with n parallel links to each of 4 neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from railx.families.chip_grids import ChipTorusSettings, torus_family
from railx.families.family import LineGraph
from railx.settings import AtLeast
from railx.vocabulary.arrays import FloatArray
from railx.vocabulary.grid import Grid
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.uniform_loads import (
    along_lane_loads,
    half_way_round_ns,
    torus_lane_loads,
)
from railx.vocabulary.topology import Topology

__all__ = ["FAMILY", "Torus2DSettings"]


@dataclass(frozen=True)
class Torus2DSettings(ChipTorusSettings):
    """A plain 2D torus of chips; chip (x, y) is number y * x_scale + x."""

    family: Literal["torus_2d"]

    n: Annotated[int, AtLeast(1)] = 2
    """Parallel ports on each of the 4 sides of a chip. Default: the ports of a RailX
    chip."""
    x_scale: Annotated[int, AtLeast(2)] = 10

    y_scale: Annotated[int, AtLeast(2)] = 10


def line_graphs(settings: Torus2DSettings, topology: Topology) -> list[LineGraph]:
    """A row and a column: rings of n links."""
    graphs = []
    for length in settings.shape:
        near = np.arange(length)
        both = [np.stack([near, np.roll(near, step)], axis=1) for step in (-1, 1)]
        graphs.append((length, np.concatenate(both * settings.n)))
    return graphs


class ChipGridRings(GridRings):
    """Rings of a grid whose nodes are the chips themselves."""

    single_chips: ClassVar[bool] = True


def uniform_loads(
    settings: Torus2DSettings, topology: Topology, routing: LineRouting
) -> FloatArray:
    """Load of a lane of each link row; ``min`` sends all ties up."""
    columns, rows, lanes = settings.x_scale, settings.y_scale, settings.n
    loads = torus_lane_loads(topology, columns, rows, lanes)
    if routing == "balanced":
        return loads
    moved = []
    ahead = topology.links.dst.astype(np.int64) - topology.links.src
    for length, stride, rest in ((columns, 1, rows), (rows, columns, columns)):
        # In a ring of two chips both directions are the same links.
        ties = length % 2 == 0 and length > 2
        tied = ties * rest * length / 4 / (topology.chips - 1) / lanes
        moved.append(np.where(np.isin(ahead, [stride, stride * (1 - length)]), tied, -tied))
    return loads + along_lane_loads(topology, *moved)


def _grid(settings: Torus2DSettings) -> Grid:
    """The torus as a grid of single-chip nodes."""
    return Grid(
        m=1,
        n=settings.n,
        columns=settings.x_scale,
        rows=settings.y_scale,
        port_gbps=settings.port_gbps,
        internal_width=1.0,
        internal_latency_ns=0.0,
        external_latency_ns=settings.latency_ns,
    )


FAMILY = torus_family(
    "torus_2d",
    Torus2DSettings,
    line_graphs=line_graphs,
    loads=uniform_loads,
    longest_path_ns=lambda settings: half_way_round_ns(_grid(settings)),
    grid_rings=lambda settings, topology: ChipGridRings(topology, _grid(settings)),
)
