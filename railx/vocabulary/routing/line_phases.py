"""All-to-all lines of RailX: which links packets take, and what then stands where.

In every setting whose dimensions are all-to-alls a packet corrects one coordinate of
its node after the other. Each ordered pair of nodes of a line is joined by several
links, two per copy of the all-to-all, which leave from chips at different edges of the
node. Who takes which is the *share* of the traffic of each chip that goes to link 0, 1,
... (the order of :class:`railx.vocabulary.grid.LineWiring`: minus side first). Under
uniform traffic every phase can be computed from the one before, exactly and for any
size. Sources: the MIN routing of the RailX simulator for the nearest link; the even
shares are this project's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.grid import LineWiring

__all__ = [
    "FlowPhase",
    "LineRouting",
    "Phase",
    "WalkOrder",
    "arrivals",
    "by_line",
    "by_node",
    "even_shares",
    "mesh_distance",
    "mesh_steps",
    "nearest_shares",
    "uniform_flow",
    "walk_orders",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Which way a walk inside a node goes first.
WalkOrder = Literal["xy", "yx"]
LineRouting = Literal["min", "balanced"]


class Phase:
    """One coordinate of the nodes and the all-to-all that corrects it.

    * ``dimension``: 0 for rails of rows, 1 for rails of columns.
    * ``stride``: how far nodes whose coordinates differ by 1 are apart in the numbering
      of nodes.
    * ``leave`` and ``enter`` (int[L, L, k]): the local chips at the two ends of the k
      links from coordinate a to b.
    * ``distance`` (int[L, c, L, k]): steps from chip c of a node to them.
    """

    def __init__(self, wiring: LineWiring, *, m: int, n: int, dimension: int, stride: int) -> None:
        self.wiring = wiring
        self.m, self.dimension, self.stride = m, dimension, stride
        self.length, self.links = wiring.length, wiring.rail.shape[2]
        self.chips = m * m
        beside = np.maximum(wiring.rail, 0) // n
        self.leave = _edge_chip(beside, wiring.plus, m, dimension)
        self.enter = _edge_chip(beside, ~wiring.plus, m, dimension)
        self.distance: IntArray = mesh_distance(m)[:, self.leave].transpose(1, 0, 2, 3)

    def coordinate(self, node: IntArray) -> IntArray:
        """The coordinate of nodes that this phase corrects."""
        return node // self.stride % self.length

    def rail_rows(self, ports: IntArray) -> IntArray:
        """Link rows from each node to each other coordinate: int[nodes, L, k].

        -1 for its own. ``ports``: the links behind the ports, as
        ``railx.vocabulary.grid.rail_ports`` has them.
        """
        node = np.arange(ports.shape[1])
        here = self.coordinate(node)
        rail, plus = self.wiring.rail[here], self.wiring.plus[here].astype(np.int64)
        rows = ports[self.dimension, node[:, None, None], np.maximum(rail, 0), plus]
        return np.where(rail < 0, -1, rows)


@dataclass(frozen=True, eq=False)
class FlowPhase:
    """A phase under uniform all-to-all, one flit per cycle sent by every chip.

    Lines are those of :func:`by_line`. ``source`` (float[lines, L, c]): what each chip
    holds for each other node of its line. ``shares`` (float[lines, L, c, L, k]): the
    part that takes each link. Both have a single line where all lines are alike.
    """

    phase: Phase
    source: FloatArray
    shares: FloatArray

    def rails(self) -> FloatArray:
        """Load of the links from each node to each other node of its line.

        float[lines, L, L, k].
        """
        lines, length, chips = self.source.shape
        shares = np.broadcast_to(self.shares, (lines, *self.shares.shape[1:])).reshape(
            lines, length, chips, -1
        )
        loads: FloatArray = np.matmul(self.source[:, :, None, :], shares).reshape(
            lines, length, length, -1
        )
        loads[:, np.arange(length), np.arange(length)] = 0
        return loads

    def walks(self) -> FloatArray:
        """Flow inside each node from each chip to the edge chips where it leaves.

        float[lines, L, c, c].
        """
        lines, length, chips = self.source.shape
        shares = np.broadcast_to(self.shares, (lines, *self.shares.shape[1:]))
        flow = np.empty((lines, length, chips, chips))
        for a in range(length):
            others = np.arange(length) != a
            edge = np.eye(chips)[self.phase.leave[a, others]].reshape(
                -1, chips
            )  # [(b, link), edge chip]
            to_edge = shares[:, a][:, :, others].reshape(lines * chips, -1) @ edge
            flow[:, a] = self.source[:, a, :, None] * to_edge.reshape(lines, chips, chips)
        return flow


def uniform_flow(
    phases: Sequence[Phase], nodes: int, routing: LineRouting
) -> tuple[list[FlowPhase], FloatArray]:
    """The phases one after the other under uniform all-to-all, and what ends where.

    The last (float[nodes, c]) is the flow that has come to each chip of the right node
    (or started there), spread evenly over the node's chips. A chip's packets to itself
    count in it, and never take a link.
    """
    chips = phases[0].chips
    standing = np.full((nodes, chips), nodes * chips / (nodes * chips - 1))
    flows = []
    for phase in phases:
        source = by_line(standing / phase.length, phase)
        alike = bool((source == source[:1]).all())
        sources = source[:1] if alike else source
        shares = (
            nearest_shares(phase.distance)[None]
            if routing == "min"
            else even_shares(sources, phase.distance)
        )
        flow = FlowPhase(phase, sources, shares)
        flows.append(flow)
        standing = by_node(arrivals(phase, flow.rails()) + source, phase, nodes)
    return flows, standing


def arrivals(phase: Phase, rails: FloatArray) -> FloatArray:
    """Flow (float[lines, L, c]) that enters each chip from the links of its line.

    For link loads float[lines, L, L, k].
    """
    slot = (np.arange(phase.length)[None, :, None] * phase.chips + phase.enter).ravel()
    size = phase.length * phase.chips
    entered = [np.bincount(slot, weights=loads.ravel(), minlength=size) for loads in rails]
    arrived: FloatArray = (
        np.stack(entered).reshape(len(rails), phase.length, phase.chips).astype(np.float64)
    )
    return arrived


def by_line(values: NDArray[np.float64], phase: Phase) -> FloatArray:
    """Values of nodes (float[nodes, ...]) arranged as lines of a phase.

    float[nodes / L, L, ...].
    """
    rest = values.shape[1:]
    lines = len(values) // phase.length
    grid = values.reshape(lines // phase.stride, phase.length, phase.stride, *rest)
    return np.moveaxis(grid, 1, 2).reshape(lines, phase.length, *rest)


def by_node(values: NDArray[np.float64], phase: Phase, nodes: int) -> FloatArray:
    """Lines of a phase arranged as nodes again: the inverse of :func:`by_line`.

    A single line stands for all.
    """
    rest = values.shape[2:]
    lines = np.broadcast_to(values, (nodes // phase.length, phase.length, *rest))
    grid = lines.reshape(len(lines) // phase.stride, phase.stride, phase.length, *rest)
    return np.moveaxis(grid, 2, 1).reshape(nodes, *rest)


def nearest_shares(distance: IntArray) -> FloatArray:
    """Everything to the nearest link, at equal distance to the first.

    float[L, c, L, k] for distances of that shape.
    """
    nearest = distance.argmin(axis=-1)
    shares: FloatArray = (nearest[..., None] == np.arange(distance.shape[-1])).astype(np.float64)
    return shares


def even_shares(source: FloatArray, distance: IntArray) -> FloatArray:
    """Shares that give each of the k links of a pair exactly 1/k of the pair's flow.

    Walks are short; float[lines, L, c, L, k]. ``source`` (float[lines, L, c]): what
    stands at each chip for each other node. A ``source`` of float[lines, L, c, L] holds
    something else for each other node.

    The links are cut in two groups, again and again: the chips with the smallest detour
    to the first group take it until it has its quota, those at the threshold in part.
    Sending one chip to a group instead of another costs the difference of their detours
    in steps, so that for two links no other even split has shorter walks in sum.
    """
    shares = np.empty((len(source), *distance.shape))
    weight = np.broadcast_to(source if source.ndim == 4 else source[..., None], shares.shape[:-1])
    _share_out(weight, distance, list(range(distance.shape[-1])), None, shares)
    return shares


def _share_out(
    weight: FloatArray,
    distance: IntArray,
    links: list[int],
    part: FloatArray | None,
    shares: FloatArray,
) -> None:
    """Give a part of each chip's flow ``weight`` to ``links`` in equal sums.

    ``part``: float[lines, L, c, L], None: all.
    """
    if len(links) == 1:
        shares[..., links[0]] = 1.0 if part is None else part
        return
    first, second = links[: len(links) // 2], links[len(links) // 2 :]
    detour = distance[..., first].min(axis=-1) - distance[..., second].min(axis=-1)
    left = weight if part is None else weight * part
    to_first = _quota_shares(left, detour, len(first) / len(links))
    _share_out(weight, distance, first, to_first if part is None else part * to_first, shares)
    _share_out(
        weight, distance, second, 1 - to_first if part is None else part * (1 - to_first), shares
    )


def _quota_shares(weight: FloatArray, detour: IntArray, quota: float) -> FloatArray:
    """The share of each chip (float[lines, L, c, L]) that fills ``quota``.

    Of the flow of each pair, in the order of the detours.
    """
    share = np.empty(weight.shape)
    order = np.argsort(detour, axis=1, kind="stable")
    filled = quota * weight.sum(axis=2)
    for a, b in np.ndindex(detour.shape[0], detour.shape[2]):
        ranked = order[a, :, b]
        ordered = detour[a, ranked, b]
        starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
        group = np.add.reduceat(weight[:, a, ranked, b], starts, axis=-1)
        before = np.cumsum(group, axis=-1) - group
        part = np.clip((filled[:, a, None, b] - before) / np.where(group > 0, group, 1), 0, 1)
        share[:, a, ranked, b] = np.repeat(part, np.diff(starts, append=len(ranked)), axis=-1)
    return share


def walk_orders(phases: Sequence[Phase], routing: LineRouting) -> list[WalkOrder]:
    """The order of the walks before each phase and of the last one to the chip.

    Each is on a virtual channel of its own. ``min`` walks XY. ``balanced`` goes along y
    first to the rails of a row, which start at the left and right edge, and along x
    first to those of a column: this spreads the walks over the rows and columns of the
    mesh and keeps them off the edges. The last walk leaves the edge where the last rail
    ends in the same way.
    """
    if routing == "min":
        return ["xy"] * (len(phases) + 1)
    towards: list[WalkOrder] = ["yx" if phase.dimension == 0 else "xy" for phase in phases]
    return [*towards, "xy" if phases[-1].dimension == 0 else "yx"]


def mesh_distance(m: int) -> IntArray:
    """Manhattan distance between the local chips of a node (int[c, c])."""
    y, x = np.divmod(np.arange(m * m), m)
    distance: IntArray = np.abs(x[:, None] - x) + np.abs(y[:, None] - y)
    return distance


def mesh_steps(m: int, order: WalkOrder) -> IntArray:
    """The next local chip on the walk from chip c to chip d: int[c, d].

    First along x (``xy``) or along y (``yx``).
    """
    y, x = np.divmod(np.arange(m * m), m)
    dx, dy = np.sign(x[None, :] - x[:, None]), np.sign(y[None, :] - y[:, None])
    x_moves = dx != 0 if order == "xy" else dy == 0
    step: IntArray = np.arange(m * m)[:, None] + np.where(x_moves, dx, m * dy)
    return step


def _edge_chip(beside: IntArray, plus: NDArray[np.bool_], m: int, dimension: int) -> IntArray:
    """Local chip that owns a rail's port.

    Rail i sits on chip row (x) or chip column (y) i // n.
    """
    edge = np.where(plus, m - 1, 0)
    return beside * m + edge if dimension == 0 else edge * m + beside
