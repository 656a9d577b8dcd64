"""All-to-all lines of RailX: the links that packets take, and the resulting flows.

In settings whose dimensions are all-to-alls a packet corrects one coordinate of its
node after the other. Several links join each ordered pair of nodes of a line, two per
copy of the all-to-all, from chips at different edges of the node. The *share* is the
part of a chip's traffic that goes to link 0, 1, ... (in the order of
:class:`railx.vocabulary.grid.LineWiring`: minus side first). Under uniform traffic
every phase follows from the one before, exactly and for any size. Sources: the MIN
routing of the RailX simulator for the nearest link; the even shares are this project's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.grid import LineWiring, port_chip

#: The first direction of a walk inside a node.
WalkOrder = Literal["xy", "yx"]
LineRouting = Literal["min", "balanced"]


class Phase:
    """A coordinate of the nodes and the all-to-all that corrects it.

    * ``dimension``: 0 for rails of rows, 1 for rails of columns.
    * ``stride``: difference of node numbers for a difference of 1 in the coordinate.
    * ``leave`` and ``enter`` (int[L, L, k]): the local chips at the two ends of the k
      links from coordinate a to b.
    * ``distance`` (int[L, c, L, k]): steps from chip c of a node to them.
    """

    def __init__(self, wiring: LineWiring, *, m: int, n: int, dimension: int, stride: int) -> None:
        self.wiring = wiring
        self.m, self.dimension, self.stride = m, dimension, stride
        self.length, self.links = wiring.length, wiring.rail.shape[2]
        self.chips = m * m
        self.leave, self.enter = (
            port_chip(np.maximum(wiring.rail, 0), plus, m, n, dimension)
            for plus in (wiring.plus, ~wiring.plus)
        )
        self.distance: IntArray = mesh_distance(m)[:, self.leave].transpose(1, 0, 2, 3)

    def coordinate(self, node: IntArray) -> IntArray:
        """The coordinate of nodes that this phase corrects."""
        return node // self.stride % self.length

    def rail_rows(self, ports: IntArray) -> IntArray:
        """Link rows from each node to each other coordinate: int[nodes, L, k].

        -1 to the same coordinate. ``ports``: link rows as of
        ``railx.vocabulary.grid.rail_ports``.
        """
        node = np.arange(ports.shape[1])
        here = self.coordinate(node)
        rail, plus = self.wiring.rail[here], self.wiring.plus[here].astype(np.int64)
        rows = ports[self.dimension, node[:, None, None], np.maximum(rail, 0), plus]
        return np.where(rail < 0, -1, rows)


@dataclass(frozen=True, eq=False)
class FlowPhase:
    """A phase under uniform all-to-all of one flit per cycle from every chip.

    Lines are those of :func:`by_line`. ``source`` (float[lines, L, c]): the flow at
    each chip for each other node of its line. ``shares`` (float[lines, L, c, L, k]):
    the part on each link. Both have a single line where all lines are alike.
    """

    phase: Phase
    source: FloatArray
    shares: FloatArray

    def rails(self) -> FloatArray:
        """Load of the links between the nodes of each line: float[lines, L, L, k]."""
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
        """Flow in each node from chips to edge chips: float[lines, L, c, c]."""
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
    """The phases in order under uniform all-to-all, and the flow that arrives.

    The last (float[nodes, c]) is the flow at each chip of the destination node,
    including that which started there, spread evenly over the node's chips. A chip's
    packets to itself count in it, and never take a link.
    """
    chips = phases[0].chips
    standing = np.full((nodes, chips), nodes * chips / (nodes * chips - 1))
    flows = []
    for phase in phases:
        source = by_line(standing / phase.length, phase)
        alike = bool((source == source[:1]).all())
        sources = source[:1] if alike else source
        flow = FlowPhase(phase, sources, link_shares(sources, phase.distance, routing))
        flows.append(flow)
        standing = by_node(arrivals(phase, flow.rails()) + source, phase, nodes)
    return flows, standing


def arrivals(phase: Phase, rails: FloatArray) -> FloatArray:
    """Flow (float[lines, L, c]) into each chip, from link loads[lines, L, L, k]."""
    slot = (np.arange(phase.length)[None, :, None] * phase.chips + phase.enter).ravel()
    size = phase.length * phase.chips
    entered = [np.bincount(slot, weights=loads.ravel(), minlength=size) for loads in rails]
    arrived: FloatArray = (
        np.stack(entered).reshape(len(rails), phase.length, phase.chips).astype(np.float64)
    )
    return arrived


def by_line(values: FloatArray, phase: Phase) -> FloatArray:
    """Values of nodes as lines of a phase: float[nodes / L, L, ...]."""
    rest = values.shape[1:]
    lines = len(values) // phase.length
    grid = values.reshape(lines // phase.stride, phase.length, phase.stride, *rest)
    return np.moveaxis(grid, 1, 2).reshape(lines, phase.length, *rest)


def by_node(values: FloatArray, phase: Phase, nodes: int) -> FloatArray:
    """The inverse of :func:`by_line`; a single line serves all."""
    rest = values.shape[2:]
    lines = np.broadcast_to(values, (nodes // phase.length, phase.length, *rest))
    grid = lines.reshape(len(lines) // phase.stride, phase.stride, phase.length, *rest)
    return np.moveaxis(grid, 2, 1).reshape(nodes, *rest)


def link_shares(source: FloatArray, distance: IntArray, routing: str) -> FloatArray:
    """The shares of :func:`even_shares`, under ``min`` of :func:`nearest_shares`."""
    return nearest_shares(distance)[None] if routing == "min" else even_shares(source, distance)


def nearest_shares(distance: IntArray) -> FloatArray:
    """All flow to the nearest link, the first of equals, as ``distance``."""
    nearest = distance.argmin(axis=-1)
    shares: FloatArray = (nearest[..., None] == np.arange(distance.shape[-1])).astype(np.float64)
    return shares


def even_shares(source: FloatArray, distance: IntArray) -> FloatArray:
    """Shares that give each of the k links of a pair exactly 1/k of the pair's flow.

    Returns float[lines, L, c, L, k] with short walks. ``source``: the flow at each chip
    for each other node, the same (float[lines, L, c]) or not (float[lines, L, c, L]).

    The links are cut in two groups, again and again: the chips with the smallest detour
    to the first group take it until it has its quota, those at the threshold in part.
    Sending a chip to a group instead of another costs the difference of their detours
    in steps, so for two links no other even split has shorter walks in sum.
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
    """Give a ``part`` (float[lines, L, c, L], None: all) evenly to ``links``."""
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
    """The share of each chip that fills ``quota`` of each pair's flow, by detour.

    float[lines, L, c, L].
    """
    chips, pairs = detour.shape[1], detour.shape[0] * detour.shape[2]
    steps = detour.transpose(0, 2, 1).reshape(pairs, chips)
    order = np.argsort(steps, axis=1, kind="stable")
    steps = np.take_along_axis(steps, order, axis=1)
    # The chips of each pair with the same detour, one pair after the other.
    starts = np.flatnonzero(np.diff(steps, prepend=steps[:, :1] - 1, axis=1))
    pair = starts // chips
    rank = np.arange(len(starts)) - np.searchsorted(pair, pair)
    flow = weight.transpose(0, 1, 3, 2).reshape(-1, pairs, chips)
    ranked = np.take_along_axis(flow, order[None], axis=-1).reshape(len(flow), -1)
    group = np.add.reduceat(ranked, starts, axis=-1)
    by_pair = np.zeros((len(flow), pairs, int(rank.max()) + 1))
    by_pair[:, pair, rank] = group
    before = (np.cumsum(by_pair, axis=-1) - by_pair)[:, pair, rank]
    filled = quota * weight.sum(axis=2).reshape(-1, pairs)[:, pair]
    part = np.clip((filled - before) / np.where(group > 0, group, 1), 0, 1)
    ranked = np.repeat(part, np.diff(starts, append=pairs * chips), axis=-1)
    share = np.empty(flow.shape)
    np.put_along_axis(share, order[None], ranked.reshape(flow.shape), axis=-1)
    by_chip = share.reshape(*weight.transpose(0, 1, 3, 2).shape).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(by_chip)


def walk_orders(phases: Sequence[Phase], routing: LineRouting) -> list[WalkOrder]:
    """The order of the walks before each phase and of the last walk to the chip.

    Each walk has its virtual channel. ``min`` walks XY. ``balanced`` goes along y first
    to the rails of a row, which start at the left and right edge, and along x first to
    those of a column: this spreads the walks over the rows and columns of the mesh and
    keeps them off the edges. The last walk leaves the edge of the last rail in the same
    way.
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
    """The next local chip on the walk from c to d: int[c, d]; ``xy``: along x first."""
    y, x = np.divmod(np.arange(m * m), m)
    dx, dy = np.sign(x[None, :] - x[:, None]), np.sign(y[None, :] - y[:, None])
    x_moves = dx != 0 if order == "xy" else dy == 0
    step: IntArray = np.arange(m * m)[:, None] + np.where(x_moves, dx, m * dy)
    return step
