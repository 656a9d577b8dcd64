"""Rings of a line of nodes, link by link: who passes a message to whom, and over which channels.

A line is a row or a column of a grid of nodes. In the torus and in the all-to-all setting of RailX every rail of a line is one ring
through all its nodes, so that r rails make 2 r directed rings at once (RailX, abstract). A job may take some positions of a line
only: in an all-to-all setting any c of them keep two links a pair, which make 2 (c - 1) directed rings; on a ring c neighbours keep
a chain, on which a ring goes there and back, so that one is left of the two directions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from railx.network.settings import CollectiveSettings
from railx.settings import SettingsError
from railx.topology import (
    RailXHyperXSettings,
    RailXTorusSettings,
    Topology,
    Torus2DSettings,
    line_wiring,
    railx_hyperx,
    railx_torus,
    settings_of,
    undirected_rings,
)
from railx.topology.railx_grid import Grid, line_circuits

__all__ = ["LineRings", "SubGrid", "chip_rings", "grid_of", "mesh_rings", "node_rings", "sub_grid"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class SubGrid:
    """The nodes of a job: all crossings of these columns and rows (positions in the grid, in the order along a ring)."""

    columns: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return len(self.columns) * len(self.rows)

    def positions(self, dimension: int) -> tuple[int, ...]:
        """The positions on a row (dimension 0) or on a column (1)."""
        return self.columns if dimension == 0 else self.rows

    def lines(self, dimension: int) -> tuple[int, ...]:
        """The rows (dimension 0) or columns (1) that the job has a part of."""
        return self.positions(1 - dimension)

    def chips(self, grid: Grid) -> IntArray:
        """The chips of the job, ascending."""
        node = np.sort((np.array(self.rows)[:, None] * grid.columns + np.array(self.columns)).ravel())
        chips: IntArray = (node[:, None] * grid.m**2 + np.arange(grid.m**2)).ravel()
        return chips


@dataclass(frozen=True, eq=False)
class LineRings:
    """Directed rings at once through ``participants`` of a line, link by link.

    In a step each participant of each ring passes one message on; entry k says that message ``message[k]`` (ring * participants +
    place of the sender) crosses the link from chip ``src[k]`` to chip ``dst[k]`` on rail ``rail[k]`` (-1: inside a node, or a
    link without a rail). Entries are those of line ``line``; another line's chips are ``stride`` further for each line.
    ``copy``: which of several links between the same chips (a ring of two).
    """

    participants: int
    rings: int
    message: IntArray
    src: IntArray
    dst: IntArray
    rail: IntArray
    copy: IntArray
    line: int
    stride: int


def grid_of(topology: Topology) -> Grid | None:
    """The grid of nodes of a RailX HyperX or torus or of a plain 2D torus (its nodes are single chips); None elsewhere."""
    settings = settings_of(topology)
    if isinstance(settings, RailXHyperXSettings):
        return railx_hyperx.grid_of(settings)
    if isinstance(settings, RailXTorusSettings):
        return railx_torus.grid_of(settings)
    if isinstance(settings, Torus2DSettings):
        size = {"columns": settings.x_scale, "rows": settings.y_scale, "n": settings.n, "port_gbps": settings.port_gbps}
        return Grid(**size, m=1, internal_width=1, internal_latency_ns=0.0, external_latency_ns=settings.latency_ns)  # type: ignore[arg-type]
    return None


def sub_grid(topology: Topology, settings: CollectiveSettings) -> SubGrid | None:
    """The nodes that take part (None: the topology is no grid of nodes, all its chips do).

    SettingsError says what is wrong with ``rows`` or ``columns`` and which are allowed: they must exist, be distinct and be joined
    by links among themselves.
    """
    grid = grid_of(topology)
    if grid is None:
        for key in ("rows", "columns"):
            if getattr(settings, key) is not None:
                raise SettingsError(key, f"got a list; allowed: null, {topology.family} is no grid of nodes with lines of its own")
        return None
    joined = topology.family == "railx_hyperx"
    columns = _positions("columns", settings.columns, grid.columns, joined)
    rows = _positions("rows", settings.rows, grid.rows, joined)
    if len(columns) * len(rows) * grid.m**2 < 2:
        raise SettingsError("columns", "got a single chip; allowed: at least two chips, a collective needs someone to talk to")
    return SubGrid(columns, rows)


def node_rings(topology: Topology, positions: Sequence[int], dimension: int, line: int) -> LineRings:
    """Rings whose participants are the nodes at ``positions`` of a line; a node takes a message in at one edge chip of it and
    passes it on from another.
    """
    grid = grid_of(topology)
    assert grid is not None
    arcs, closed = _arcs(topology, grid, positions, dimension)
    places = _places(len(positions), closed)
    entries: list[_Entry] = []
    for ring, hops in enumerate(arcs):
        for k, arc in enumerate(hops):
            message = ring * len(positions) + places[k]
            at = _node(grid, dimension, line, arc.a) * grid.m**2
            before = hops[k - 1]
            enters = _edge_chip(grid, dimension, before.rail, not before.plus)
            walk = _walk(grid.m, enters, _edge_chip(grid, dimension, arc.rail, arc.plus))
            entries += [(message, at + c, at + d, -1, 0) for c, d in walk]
            entries.append((message, *_rail_link(topology, grid, dimension, line, arc)))
    return _line_rings(grid, len(positions), len(arcs), entries, dimension, line)


def chip_rings(topology: Topology, positions: Sequence[int], dimension: int, line: int) -> LineRings | None:
    """Rings whose participants are all chips of one chip row (column) of the nodes: 2 n closed rings, n on a chain.

    The first chip row of the line stands for all m. None in an all-to-all setting that is taken in part: its links do
    not spread evenly over the chip rows.
    """
    grid = grid_of(topology)
    assert grid is not None
    if topology.family == "railx_hyperx" and len(positions) < _length(grid, dimension):
        return None
    arcs, closed = _arcs(topology, grid, positions, dimension)
    participants = grid.m * len(positions)
    places = _places(participants, closed)
    entries: list[_Entry] = []
    own = [hops for hops in arcs if hops[0].rail < grid.n]
    step = 1 if dimension == 0 else grid.m
    for ring, hops in enumerate(own):
        links: list[tuple[int, int, int, int]] = []
        for arc in hops:
            first = _node(grid, dimension, line, arc.a) * grid.m**2
            row = [first + step * place for place in range(grid.m)]
            row = row if arc.plus else row[::-1]
            links += [(c, d, -1, 0) for c, d in itertools.pairwise(row)]
            links.append(_rail_link(topology, grid, dimension, line, arc))
        if not closed:
            # A chain: up to its far end, through the last node's chips, and back over the same links the other way.
            up = links[: len(links) // 2]
            last = _node(grid, dimension, line, hops[len(hops) // 2].a) * grid.m**2
            up += [(last + step * place, last + step * (place + 1), -1, 0) for place in range(grid.m - 1)]
            links = up + [(d, c, rail, copy) for c, d, rail, copy in reversed(up)]
        entries += [(ring * participants + places[k], *link) for k, link in enumerate(links)]
    return _line_rings(grid, participants, len(own), entries, dimension, line)


def mesh_rings(grid: Grid, dimension: int) -> LineRings | None:
    """One ring there and back along the first chip row (column) of the first node; None where a node is a single chip.

    It takes all lanes of its links.
    """
    if grid.m == 1:
        return None
    step = 1 if dimension == 0 else grid.m
    up = [(step * place, step * (place + 1), -1, 0) for place in range(grid.m - 1)]
    links = up + [(d, c, rail, copy) for c, d, rail, copy in reversed(up)]
    places = _places(grid.m, False)
    return _line_rings(grid, grid.m, 1, [(places[k], *link) for k, link in enumerate(links)], dimension, 0)


@dataclass(frozen=True)
class _Arc:
    """From position ``a`` of a line to ``b`` on a rail, out of the plus or the minus side of a."""

    a: int
    b: int
    rail: int
    plus: bool


#: message, source chip, destination chip, rail, copy
_Entry = tuple[int, int, int, int, int]


def _positions(key: str, given: tuple[int, ...] | None, length: int, joined: bool) -> tuple[int, ...]:
    if given is None:
        return tuple(range(length))
    for position in given:
        if position >= length:
            raise SettingsError(key, f"got {position}; allowed: 0 to {length - 1}, the nearest is {length - 1}")
    chosen = sorted(given)
    if joined or len(chosen) == length:
        return tuple(chosen)
    # On a ring the job is what remains without the largest gap.
    gaps = [(following - position - 1) % length for position, following in zip(chosen, chosen[1:] + chosen[:1], strict=True)]
    widest = max(range(len(chosen)), key=gaps.__getitem__)
    in_order = chosen[widest + 1 :] + chosen[: widest + 1]
    if sum(gaps) > gaps[widest]:
        nearest = [(in_order[0] + k) % length for k in range(length - gaps[widest])]
        raise SettingsError(
            key,
            f"got {list(given)}, which no links of their own join on a ring of {length}; allowed: neighbours along the ring, "
            f"the nearest are {sorted(nearest)}",
        )
    return tuple(in_order)


def _arcs(topology: Topology, grid: Grid, positions: Sequence[int], dimension: int) -> tuple[list[list[_Arc]], bool]:
    """The directed rings through positions of a line, and whether they are closed (else there and back along a chain)."""
    length = _length(grid, dimension)
    if topology.family == "railx_hyperx" and len(positions) < length:
        return _subset_arcs(topology, positions, dimension), True
    if len(positions) == length:
        rings = []
        for rail, order in enumerate(_rail_orders(topology, grid, dimension)):
            up = [_Arc(a, b, rail, True) for a, b in zip(order, order[1:] + order[:1], strict=True)]
            rings += [up, [_Arc(arc.b, arc.a, rail, False) for arc in reversed(up)]]
        return rings, True
    rings = []
    for rail in range(grid.rails):
        up = [_Arc(a, b, rail, True) for a, b in itertools.pairwise(positions)]
        rings.append(up + [_Arc(arc.b, arc.a, rail, False) for arc in reversed(up)])
    return rings, False


def _subset_arcs(topology: Topology, positions: Sequence[int], dimension: int) -> list[list[_Arc]]:
    """Both directions of the undirected rings over some positions of an all-to-all line, each of a pair's two links used once."""
    wiring = line_wiring(topology, dimension)

    def arc(a: int, b: int, link: int) -> _Arc:
        low, high = min(a, b), max(a, b)
        return _Arc(a, b, int(wiring.rail[low, high, link]), bool(wiring.plus[low, high, link]) == (a < b))

    if len(positions) == 2:
        a, b = positions
        return [[arc(a, b, link), arc(b, a, link)] for link in (0, 1)]
    used: dict[tuple[int, int], int] = {}
    rings = []
    for order in undirected_rings(len(positions)).tolist():
        nodes = [positions[place] for place in order]
        up = []
        for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True):
            pair = (min(a, b), max(a, b))
            up.append(arc(a, b, used.get(pair, 0)))
            used[pair] = used.get(pair, 0) + 1
        rings += [up, [_Arc(one.b, one.a, one.rail, not one.plus) for one in reversed(up)]]
    return rings


def _rail_orders(topology: Topology, grid: Grid, dimension: int) -> list[list[int]]:
    """The positions along the ring of each rail of a line."""
    length = _length(grid, dimension)
    if topology.circuits is None:
        return [list(range(length))] * grid.rails
    follows = np.empty((grid.rails, length), dtype=np.int64)
    a, b, rail = line_circuits(topology.circuits, dimension).T
    follows[rail, a] = b
    orders = np.zeros((grid.rails, length), dtype=np.int64)
    for place in range(1, length):
        orders[:, place] = follows[np.arange(grid.rails), orders[:, place - 1]]
    as_lists: list[list[int]] = orders.tolist()
    return as_lists


def _places(participants: int, closed: bool) -> list[int]:
    """The place in its ring of the participant that sends the message which crosses link k of the ring.

    Along a chain every second participant takes part on the way up and the others on the way back, so that no message is longer
    than two links.
    """
    if closed:
        return list(range(participants))
    top = participants - 1
    sends = [k % 2 == 0 or k == top if k <= top else (2 * top - k) % 2 == 1 for k in range(2 * top)]
    return [int(place) - 1 for place in np.cumsum(sends)]


def _line_rings(grid: Grid, participants: int, rings: int, entries: Sequence[_Entry], dimension: int, line: int) -> LineRings:
    columns = np.array(entries, dtype=np.int64).T
    message, src, dst, rail, copy = columns[:, np.argsort(columns[0], kind="stable")]
    stride = grid.m**2 * (grid.columns if dimension == 0 else 1)
    return LineRings(participants, rings, message, src, dst, rail, copy, line, stride)


def _rail_link(topology: Topology, grid: Grid, dimension: int, line: int, arc: _Arc) -> tuple[int, int, int, int]:
    """Source chip, destination chip, rail and copy of the link that an arc stands for."""
    src = _node(grid, dimension, line, arc.a) * grid.m**2 + _edge_chip(grid, dimension, arc.rail, arc.plus)
    dst = _node(grid, dimension, line, arc.b) * grid.m**2 + _edge_chip(grid, dimension, arc.rail, not arc.plus)
    several = grid.m == 1 and _length(grid, dimension) == 2
    return src, dst, -1 if topology.circuits is None else arc.rail, int(several and not arc.plus)


def _edge_chip(grid: Grid, dimension: int, rail: int, plus: bool) -> int:
    edge, beside = (grid.m - 1 if plus else 0), rail // grid.n
    return beside * grid.m + edge if dimension == 0 else edge * grid.m + beside


def _walk(m: int, c: int, d: int) -> list[tuple[int, int]]:
    """The steps from local chip c to d, along x and then along y."""
    steps = []
    while c != d:
        x, to_x = c % m, d % m
        following = c + (1 if to_x > x else -1) if x != to_x else c + (m if d > c else -m)
        steps.append((c, following))
        c = following
    return steps


def _node(grid: Grid, dimension: int, line: int, position: int) -> int:
    return line * grid.columns + position if dimension == 0 else position * grid.columns + line


def _length(grid: Grid, dimension: int) -> int:
    return grid.columns if dimension == 0 else grid.rows
