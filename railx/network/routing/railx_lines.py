"""Lines of an all-to-all setting of RailX: where its links leave and enter the nodes, and which of a pair's two links packets take.

Every ordered pair of nodes of a line is joined by two links, which leave from chips at different edges of the node. Who takes which
is the *choice*: the share of the traffic of each chip that goes to link 0 (the minus side first, as in
:class:`railx.topology.LineWiring`). Sources: the MIN routing of the RailX simulator for the nearest link; the balanced choice is
this project's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from railx.topology import LineWiring, RailXHyperXSettings, Topology, line_wiring, settings_of
from railx.topology.model import kind_code

__all__ = ["WALK_ORDERS", "HyperXFlow", "Line", "halving_shares", "WalkOrder", "hyperx_flow", "mesh_distance", "mesh_steps", "rail_rows"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Which way a walk inside a node goes first.
WalkOrder = Literal["xy", "yx"]

#: Walks to a rail of the row, to a rail of the column and to the chip, each on its own virtual channel. A row's rails start at the
#: left and right edge of a node; going along y first spreads the walks over the chip columns and keeps them off those edges.
WALK_ORDERS: dict[str, tuple[WalkOrder, WalkOrder, WalkOrder]] = {"min": ("xy", "xy", "xy"), "balanced": ("yx", "xy", "yx")}


class Line:
    """One line of nodes of m x m chips; all lines of a dimension are alike.

    ``leave`` and ``enter`` (int[L, L, 2]): the local chips at the two ends of link 0 and 1 from position a to position b;
    ``detour`` (int[L, c, L]): how many more steps it is from chip c of a to link 0 than to link 1.
    """

    def __init__(self, wiring: LineWiring, m: int, dimension: int) -> None:
        self.wiring = wiring
        self.length = wiring.length
        self.chips = m * m
        beside = np.maximum(wiring.rail, 0) // (int(wiring.rail.max() + 1) // m)
        self.leave = _edge_chip(beside, wiring.plus, m, dimension)
        self.enter = _edge_chip(beside, ~wiring.plus, m, dimension)
        distance = mesh_distance(m)[:, self.leave]  # [c, a, b, link]
        self.detour: IntArray = (distance[..., 0] - distance[..., 1]).transpose(1, 0, 2)

    def nearest(self) -> FloatArray:
        """Share of link 0 (float[L, c, L]) when every chip takes the nearer link, ties to link 0."""
        return (self.detour <= 0).astype(np.float64)

    def halves(self, source: FloatArray) -> FloatArray:
        """Share of link 0 (float[..., L, c, L]) that gives each of two links half of a pair's flow, with the shortest walks.

        ``source`` (float[..., L, c]): what stands at each chip for each other node of the line.
        """
        return halving_shares(source, self.detour)

    def arrivals(self, rails: FloatArray) -> FloatArray:
        """Flow (float[k, L, c]) that enters each chip from the links of its line, for link loads float[k, L, L, 2]."""
        slot = (np.arange(self.length)[None, :, None] * self.chips + self.enter).ravel()
        size = self.length * self.chips
        entered = [np.bincount(slot, weights=loads.ravel(), minlength=size) for loads in rails]
        return np.stack(entered).reshape(len(rails), self.length, self.chips)

    def rail_loads(self, source: FloatArray, first: FloatArray) -> FloatArray:
        """Load (float[k, L, L, 2]) of each link of k lines, for ``source`` float[k, L, c] and the shares of link 0 in ``first``."""
        link0 = np.matmul(source[:, :, None, :], np.broadcast_to(first, (len(source), *first.shape[-3:])))[:, :, 0, :]
        loads = np.stack([link0, source.sum(axis=2)[..., None] - link0], axis=-1)
        loads[:, np.arange(self.length), np.arange(self.length)] = 0
        return loads

    def walks(self, source: FloatArray, first: FloatArray) -> FloatArray:
        """Flow (float[k, L, c, c]) inside each node from each chip to the edge chips where it leaves, as in :meth:`rail_loads`."""
        lines = len(source)
        first = np.broadcast_to(first, (lines, *first.shape[-3:]))
        flow = np.empty((lines, self.length, self.chips, self.chips))
        for a in range(self.length):
            others = np.arange(self.length) != a
            edge = [np.eye(self.chips)[self.leave[a, others, link]] for link in (0, 1)]  # [b, edge chip]
            share = first[:, a][:, :, others]
            to_edge = share.reshape(-1, share.shape[-1]) @ (edge[0] - edge[1]) + edge[1].sum(axis=0)
            flow[:, a] = source[:, a, :, None] * to_edge.reshape(lines, self.chips, self.chips)
        return flow


@dataclass(frozen=True, eq=False)
class HyperXFlow:
    """What stands where under uniform all-to-all on a 2D HyperX crossed row first, one flit a cycle sent by every chip.

    ``row_source`` (float[1, L, c]) and ``column_source`` (float[X, L, c]): what each chip of a node holds for each other node of its
    row and of its column. ``row_first`` (float[1, L, c, L]) and ``column_first`` (float[X or 1, L, c, L]): the share that takes
    link 0.
    """

    row: Line
    column: Line
    row_source: FloatArray
    row_first: FloatArray
    column_source: FloatArray
    column_first: FloatArray
    orders: tuple[WalkOrder, WalkOrder, WalkOrder]


def hyperx_flow(topology: Topology, routing: Literal["min", "balanced"]) -> HyperXFlow:
    """The flow of a 2D HyperX: ``min`` takes the nearer link of a pair, ``balanced`` gives both links half of the pair's flow."""
    settings = settings_of(topology)
    assert isinstance(settings, RailXHyperXSettings)
    row, column = (Line(line_wiring(topology, dimension), settings.m, dimension) for dimension in (0, 1))
    share = 1 / (topology.chips - 1)
    # Row phase: each chip of a node of column X sends to all chips of all nodes of column X'.
    row_source = np.full((1, row.length, row.chips), column.length * row.chips * share)
    row_first = row.halves(row_source) if routing == "balanced" else row.nearest()[None]
    # Column phase: what arrived and what starts here, towards each other node of the column.
    arrived = row.arrivals(row.rail_loads(row_source, row_first))[0]
    per_node = arrived / column.length + row.chips * share
    column_source = np.broadcast_to(per_node[:, None, :], (row.length, column.length, column.chips))
    column_first = column.halves(column_source) if routing == "balanced" else column.nearest()[None]
    return HyperXFlow(row, column, row_source, row_first, column_source, column_first, WALK_ORDERS[routing])


def halving_shares(weight: FloatArray, detour: IntArray) -> FloatArray:
    """Shares of link 0 that halve the flow: the chips with the smallest detour take it, those at the threshold in part.

    Sending one chip over link 0 instead of another costs the difference of their detours in steps, so that no other even split has
    shorter walks in sum. ``weight`` (float[..., L, c], positive): flow at each chip towards each other node; ``detour``
    (int[L, c, L]): extra steps to link 0. Returns float[..., L, c, L].
    """
    share = np.empty((*weight.shape[:-1], weight.shape[-1], detour.shape[-1]))
    order = np.argsort(detour, axis=1, kind="stable")
    half = weight.sum(axis=-1) / 2
    for a, b in np.ndindex(detour.shape[0], detour.shape[2]):
        own, ranked = detour[a, :, b], order[a, :, b]
        starts = np.flatnonzero(np.diff(own[ranked], prepend=own[ranked[0]] - 1))
        group = np.add.reduceat(weight[..., a, ranked], starts, axis=-1)
        before = np.cumsum(group, axis=-1) - group
        part = np.clip((half[..., a, None] - before) / group, 0, 1)
        size = np.diff(starts, append=len(ranked))
        share[..., a, ranked, b] = np.repeat(part, size, axis=-1)
    return share


def mesh_distance(m: int) -> IntArray:
    """Manhattan distance between the local chips of a node (int[c, c])."""
    y, x = np.divmod(np.arange(m * m), m)
    distance: IntArray = np.abs(x[:, None] - x) + np.abs(y[:, None] - y)
    return distance


def mesh_steps(m: int, order: WalkOrder) -> IntArray:
    """The next local chip on the walk from chip c to chip d, first along x (``xy``) or along y (``yx``): int[c, d]."""
    y, x = np.divmod(np.arange(m * m), m)
    dx, dy = np.sign(x[None, :] - x[:, None]), np.sign(y[None, :] - y[:, None])
    x_moves = dx != 0 if order == "xy" else dy == 0
    step: IntArray = np.arange(m * m)[:, None] + np.where(x_moves, dx, m * dy)
    return step


def rail_rows(topology: Topology, line: Line, dimension: int, columns: int) -> IntArray:
    """Link rows of the rails of a dimension: int[lines, L, L, 2], -1 on the diagonal. ``columns``: nodes in a row of the grid."""
    links = topology.links
    rows = np.flatnonzero(links.kind == kind_code("rail_x" if dimension == 0 else "rail_y"))
    src, dst = topology.chip_node[links.src[rows]].astype(np.int64), topology.chip_node[links.dst[rows]].astype(np.int64)
    own, a, b = (
        (src // columns, src % columns, dst % columns) if dimension == 0 else (src % columns, src // columns, dst // columns)
    )
    table = np.full((int(own.max()) + 1, line.length, line.length, 2), -1)
    table[own, a, b, (line.wiring.rail[a, b, 1] == links.rail[rows]).astype(np.int64)] = rows
    return table


def _edge_chip(beside: IntArray, plus: NDArray[np.bool_], m: int, dimension: int) -> IntArray:
    """Local chip that owns a rail's port: rail i sits on chip row (x) or chip column (y) i // n."""
    edge = np.where(plus, m - 1, 0)
    return beside * m + edge if dimension == 0 else edge * m + beside
