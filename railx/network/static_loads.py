"""Exact static channel loads of uniform all-to-all, family by family.

Every function returns one load per row of ``topology.links``: flits a cycle on one lane when every chip offers one flit a cycle,
spread evenly over all other chips. A cycle moves one flit over an external port. Sources: the MIN routing of the RailX simulator;
dimension-order routing for tori; equal-cost multi-path for fat trees.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.railx_lines import Line, WalkOrder, hyperx_flow
from railx.topology import (
    INTERNAL,
    FatTreeSettings,
    RailXHyperXSettings,
    RailXTorusSettings,
    Topology,
    Torus2DSettings,
    mesh_links,
    settings_of,
)
from railx.topology.model import kind_code

__all__ = ["uniform_lane_loads"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Routing = Literal["min", "balanced"]


def uniform_lane_loads(topology: Topology, routing: Routing) -> FloatArray:
    """Load of one lane of each link row under uniform all-to-all, in flits/cycle per flit/chip/cycle offered.

    The lanes of a row share its load evenly. Exact for every family and size; ``routing`` as in
    :class:`railx.network.StaticNetworkSettings`.
    """
    settings = settings_of(topology)
    if isinstance(settings, RailXHyperXSettings):
        return _hyperx_loads(topology, settings.m, routing) / topology.links.lanes
    if isinstance(settings, RailXTorusSettings):
        return _torus_loads(topology, settings.m * settings.x_scale, settings.m * settings.y_scale, settings.n)
    if isinstance(settings, Torus2DSettings):
        return _torus_loads(topology, settings.x_scale, settings.y_scale, settings.n)
    return _fat_tree_loads(topology, settings)


def _torus_loads(topology: Topology, columns: int, rows: int, lanes: int) -> FloatArray:
    """Dimension order on a torus of columns x rows chips, ties between the two ways round split evenly.

    By symmetry all links of a dimension and direction carry the same. RailX counts the links inside its nodes as part of the torus.
    """
    links = topology.links
    others = topology.chips - 1
    per_direction = [rest * _ring_distance(length) / (2 * others) / lanes for length, rest in ((columns, rows), (rows, columns))]
    along_x = np.isin(links.kind, [kind_code("rail_x"), kind_code("torus_x")])
    along_x |= (links.kind == INTERNAL) & (np.abs(links.src.astype(np.int64) - links.dst) == 1) & (_node_side(topology) > 1)
    return np.where(along_x, per_direction[0], per_direction[1])


def _ring_distance(length: int) -> int:
    """Sum of the distances from one place of a ring to all others."""
    return sum(min(step, length - step) for step in range(length))


def _node_side(topology: Topology) -> int:
    return math.isqrt(topology.chips // topology.nodes)


def _fat_tree_loads(topology: Topology, settings: FatTreeSettings) -> FloatArray:
    """Equal-cost multi-path: a chip spreads over its planes, a switch over its upward ports; up and down carry the same."""
    chips, half = topology.chips, settings.switch_radix // 2
    load = np.zeros(len(topology.links))
    for kind, inside in (("leaf", 1), ("aggregation", half), ("core", half**2)):
        load[topology.links.kind == kind_code(kind)] = (chips - inside) / (chips - 1) / settings.planes
    return load


def _hyperx_loads(topology: Topology, m: int, routing: Routing) -> FloatArray:
    """Load of each link row (all lanes together) of RailX set to a 2D HyperX.

    A packet first crosses its row, then its column, then walks to its chip. All rows are alike, so the row phase is computed
    once; the column phase starts from what enters each column and what its own chips send.
    """
    flow = hyperx_flow(topology, routing)
    row, column = flow.row, flow.column
    chips_per_node = m * m
    share = 1 / (topology.chips - 1)
    row_rails = row.rail_loads(flow.row_source, flow.row_first)[0]
    arrived = row.arrivals(row_rails[None])[0]  # [X, chip]: flow that has its column and is spread over the column's nodes
    column_rails = column.rail_loads(flow.column_source, flow.column_first)
    entered = column.arrivals(column_rails) + arrived[:, None, :] / column.length  # [X, Y, chip]: flow spread over the node's chips
    # Walks to the rails of the row, to those of the column, and to the chip.
    walks = _walked(row.walks(flow.row_source, flow.row_first), m, flow.orders[0])[0][:, None]
    walks = walks + _walked(column.walks(flow.column_source, flow.column_first), m, flow.orders[1])
    final = entered[..., None] / chips_per_node + share * (1 - np.eye(chips_per_node))
    walks = (walks + _walked(final, m, flow.orders[2])).reshape(row.length * column.length, -1)
    shape = (row.length, column.length, walks.shape[-1])
    return _spread_over_rows(topology, m, walks.reshape(shape), (row, row_rails), (column, column_rails))


def _spread_over_rows(
    topology: Topology, m: int, walks: FloatArray, row: tuple[Line, FloatArray], column: tuple[Line, FloatArray]
) -> FloatArray:
    """Give every row of the link table its load: ``walks`` [X, Y, mesh link] and the rail loads of both dimensions."""
    links = topology.links
    load = np.empty(len(links))
    node_of = topology.chip_node.astype(np.int64)
    x, y = node_of % row[0].length, node_of // row[0].length
    internal = links.kind == INTERNAL
    src, dst = links.src[internal], links.dst[internal]
    number = np.full((m * m, m * m), -1)
    number[tuple(mesh_links(m).T)] = np.arange(len(mesh_links(m)))
    load[internal] = walks[x[src], y[src], number[src % m**2, dst % m**2]]
    for kind, (line, rails), place, across in (("rail_x", row, x, None), ("rail_y", column, y, x)):
        own = links.kind == kind_code(kind)
        src, dst = links.src[own], links.dst[own]
        a, b = place[src], place[dst]
        option = (line.wiring.rail[a, b, 1] == links.rail[own]).astype(np.int64)
        load[own] = rails[a, b, option] if across is None else rails[across[src], a, b, option]
    return load


def _walked(flow: FloatArray, m: int, order: WalkOrder) -> FloatArray:
    """Load of each mesh link (float[k, L, mesh link]) of flows from chip to chip of a node (float[k, L, c, c])."""
    loads: FloatArray = flow.reshape(-1, m**4) @ _mesh_paths(m, order).T
    return loads.reshape(*flow.shape[:2], -1)


def _mesh_paths(m: int, order: WalkOrder) -> Any:
    """Which mesh links the path from chip c to chip d takes: a sparse matrix [mesh link, c * m^2 + d] of ones."""
    from scipy.sparse import csr_array

    source, target = np.divmod(np.arange(m**4), m * m)
    sy, sx = np.divmod(source, m)
    ty, tx = np.divmod(target, m)
    # Along x in the source's chip row, then along y in the target's chip column; or the other way about.
    row, column = (sy, tx) if order == "xy" else (ty, sx)
    rows, columns = [], []
    for link, (a, b) in enumerate(mesh_links(m).tolist()):
        (ay, ax), (by, bx) = divmod(a, m), divmod(b, m)
        taken = (row == ay) & _between(sx, tx, ax, bx) if ay == by else (column == ax) & _between(sy, ty, ay, by)
        path = np.flatnonzero(taken)
        rows.append(np.full(len(path), link))
        columns.append(path)
    where = (np.concatenate([*rows, np.empty(0, np.int64)]), np.concatenate([*columns, np.empty(0, np.int64)]))
    return csr_array((np.ones(len(where[0])), where), shape=(len(mesh_links(m)), m**4))


def _between(start: IntArray, stop: IntArray, a: int, b: int) -> NDArray[np.bool_]:
    """Whether a straight walk from start to stop takes the step from a to b = a +- 1."""
    return (start <= a) & (stop >= b) if b > a else (start >= a) & (stop <= b)
