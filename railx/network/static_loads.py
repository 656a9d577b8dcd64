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

from railx.topology import (
    INTERNAL,
    FatTreeSettings,
    LineWiring,
    RailXHyperXSettings,
    RailXTorusSettings,
    Topology,
    Torus2DSettings,
    line_wiring,
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
    once; the column phase is a matrix product of what enters each column and the choices of one column.
    """
    row, column = _Line(line_wiring(topology, 0), m, 0, routing), _Line(line_wiring(topology, 1), m, 1, routing)
    chips_per_node = m * m
    share = 1 / (topology.chips - 1)
    # Row phase: each chip of a node of column X sends to all chips of all nodes of column X'.
    row_source = np.full((1, row.length, chips_per_node), column.length * chips_per_node * share)
    row_rails = row.rail_loads(row_source)[0]
    arrived = row.arrivals(row_rails[None])[0]  # [X', chip]: flow that has its column and is spread over the column's nodes
    # Column phase: what arrived and what starts here, towards each other node of the column.
    per_node = arrived / column.length + chips_per_node * share
    column_source = np.broadcast_to(per_node[:, None, :], (row.length, column.length, chips_per_node))
    column_rails = column.rail_loads(column_source)
    entered = column.arrivals(column_rails) + arrived[:, None, :] / column.length  # [X, Y, chip]: flow spread over the node's chips
    local = share * (1 - np.eye(chips_per_node))
    walks = np.empty((row.length, column.length, len(mesh_links(m))))
    paths = _mesh_paths(m)
    row_walk = row.walks(row_source)[0]
    for x in range(row.length):
        walk = row_walk[x] + column.walks(column_source[x : x + 1])[0] + entered[x][:, :, None] / chips_per_node + local
        walks[x] = (paths @ walk.reshape(column.length, -1).T).T
    return _spread_over_rows(topology, m, walks, (row, row_rails), (column, column_rails))


def _spread_over_rows(
    topology: Topology, m: int, walks: FloatArray, row: tuple[_Line, FloatArray], column: tuple[_Line, FloatArray]
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


class _Line:
    """The routing choices of one line of nodes.

    ``choice`` (float[L, c, L, 2]): the share of the traffic of chip c of node a to node b that takes link 0 or 1. ``leave`` and
    ``enter`` (int[L, L, 2]): the local chips at the two ends of a link.
    """

    def __init__(self, wiring: LineWiring, m: int, dimension: int, routing: Routing) -> None:
        self.wiring = wiring
        self.length = wiring.length
        self.chips = m * m
        beside = np.maximum(wiring.rail, 0) // (int(wiring.rail.max() + 1) // m)
        self.leave = _edge_chip(beside, wiring.plus, m, dimension)
        self.enter = _edge_chip(beside, ~wiring.plus, m, dimension)
        distance = _mesh_distance(m)[:, self.leave]  # [c, a, b, link]
        nearer = np.sign(distance[..., 1] - distance[..., 0])
        tie = 1.0 if routing == "min" else 0.5
        first = np.choose(nearer + 1, [0.0, tie, 1.0]).transpose(1, 0, 2)
        off_diagonal = ~np.eye(self.length, dtype=np.bool_)
        self.choice = np.stack([first, 1 - first], axis=-1) * off_diagonal[:, None, :, None]

    def rail_loads(self, source: FloatArray) -> FloatArray:
        """Load (float[k, L, L, 2]) of each link of k lines whose chips send ``source`` (float[k, L, c]) to each other node."""
        loads: FloatArray = np.einsum("kac,acbo->kabo", source, self.choice, optimize=True)
        return loads

    def arrivals(self, rails: FloatArray) -> FloatArray:
        """Flow (float[k, L, c]) that enters each chip from the links of its line, for link loads float[k, L, L, 2]."""
        entered = np.zeros((len(rails), self.length, self.chips))
        to = np.broadcast_to(np.arange(self.length)[None, :, None], self.enter.shape)
        for line, loads in zip(entered, rails, strict=True):
            np.add.at(line, (to, self.enter), loads)
        return entered

    def walks(self, source: FloatArray) -> FloatArray:
        """Flow (float[k, L, c, c]) inside each node from each chip to the edge chip where it leaves, for the same ``source``."""
        to_edge = np.zeros((self.length, self.chips, self.chips))
        for a in range(self.length):
            for chip in range(self.chips):
                to_edge[a, chip] = np.bincount(self.leave[a].ravel(), weights=self.choice[a, chip].ravel(), minlength=self.chips)
        return source[..., None] * to_edge[None]


def _edge_chip(beside: IntArray, plus: NDArray[np.bool_], m: int, dimension: int) -> IntArray:
    """Local chip that owns a rail's port: rail i sits on chip row (x) or chip column (y) i // n."""
    edge = np.where(plus, m - 1, 0)
    return beside * m + edge if dimension == 0 else edge * m + beside


def _mesh_distance(m: int) -> IntArray:
    """Manhattan distance between the local chips of a node (int[c, c])."""
    y, x = np.divmod(np.arange(m * m), m)
    distance: IntArray = np.abs(x[:, None] - x) + np.abs(y[:, None] - y)
    return distance


def _mesh_paths(m: int) -> Any:
    """Which mesh links the XY path from chip c to chip d takes: a sparse matrix [mesh link, c * m^2 + d] of ones."""
    from scipy.sparse import csr_array

    source, target = np.divmod(np.arange(m**4), m * m)
    sy, sx = np.divmod(source, m)
    ty, tx = np.divmod(target, m)
    rows, columns = [], []
    for link, (a, b) in enumerate(mesh_links(m).tolist()):
        (ay, ax), (by, bx) = divmod(a, m), divmod(b, m)
        # Along x in the source's chip row, then along y in the target's chip column.
        taken = (sy == ay) & _between(sx, tx, ax, bx) if ay == by else (tx == ax) & _between(sy, ty, ay, by)
        path = np.flatnonzero(taken)
        rows.append(np.full(len(path), link))
        columns.append(path)
    where = (np.concatenate([*rows, np.empty(0, np.int64)]), np.concatenate([*columns, np.empty(0, np.int64)]))
    return csr_array((np.ones(len(where[0])), where), shape=(len(mesh_links(m)), m**4))


def _between(start: IntArray, stop: IntArray, a: int, b: int) -> NDArray[np.bool_]:
    """Whether a straight walk from start to stop takes the step from a to b = a +- 1."""
    return (start <= a) & (stop >= b) if b > a else (start >= a) & (stop <= b)
