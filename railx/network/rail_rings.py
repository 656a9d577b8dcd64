"""Rings through the rows and columns of a grid of nodes: who passes a message to whom,
and over which channels.

In the torus and in the all-to-all setting of RailX every rail of a line is one ring
through all its nodes, so that r rails make 2 r directed rings at once (RailX,
abstract). A job may take some positions of a line only: in an all-to-all setting any c
of them keep two links a pair, which make 2 (c - 1) directed rings; on a ring c
neighbours keep a chain, on which a ring goes there and back, so that one is left of the
two directions. The boards of a HammingMesh are such nodes too, and a switch is in the
place of each rail: through it any boards of a line make a ring each way, out of the
plus side of one into the minus side of the next and back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from railx.families.hammingmesh.graph import column_switches, row_switches
from railx.families.hammingmesh.settings import HammingMeshSettings
from railx.families.railx_hyperx import graph as railx_hyperx
from railx.families.railx_hyperx.settings import RailXHyperXSettings
from railx.families.railx_torus import graph as railx_torus
from railx.families.railx_torus.settings import RailXTorusSettings
from railx.families.torus_2d.settings import Torus2DSettings
from railx.network.settings import CollectiveSettings
from railx.settings import SettingsError
from railx.vocabulary.grid import Grid, line_circuits, line_wiring
from railx.vocabulary.hamiltonian import undirected_rings
from railx.vocabulary.line_rings import LineRings, RingLink, line_rings
from railx.vocabulary.topology import Topology

__all__ = ["SubGrid", "chip_rings", "grid_of", "mesh_rings", "node_rings", "sub_grid"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class SubGrid:
    """The nodes of a job: all crossings of these columns and rows (positions in the
    grid, in the order along a ring).
    """

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
        node = np.sort(
            (np.array(self.rows)[:, None] * grid.columns + np.array(self.columns)).ravel()
        )
        chips: IntArray = (node[:, None] * grid.m**2 + np.arange(grid.m**2)).ravel()
        return chips


def grid_of(topology: Topology) -> Grid | None:
    """The grid of nodes of a RailX HyperX or torus, of boards of a HammingMesh or of
    chips of a plain 2D torus; None elsewhere.
    """
    settings = topology.settings
    if isinstance(settings, RailXHyperXSettings):
        return railx_hyperx.grid_of(settings)
    if isinstance(settings, RailXTorusSettings):
        return railx_torus.grid_of(settings)
    if isinstance(settings, Torus2DSettings):
        size = {
            "columns": settings.x_scale,
            "rows": settings.y_scale,
            "n": settings.n,
            "port_gbps": settings.port_gbps,
        }
        return Grid(
            **size,
            m=1,
            internal_width=1,
            internal_latency_ns=0.0,
            external_latency_ns=settings.latency_ns,
        )  # type: ignore[arg-type]
    if isinstance(settings, HammingMeshSettings):
        return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)
    return None


def sub_grid(topology: Topology, settings: CollectiveSettings) -> SubGrid | None:
    """The nodes that take part (None: the topology is no grid of nodes, all its chips
    do).

    SettingsError says what is wrong with ``rows`` or ``columns`` and which are allowed:
    they must exist, be distinct and be joined by links among themselves.
    """
    grid = grid_of(topology)
    if grid is None:
        for key in ("rows", "columns"):
            if getattr(settings, key) is not None:
                raise SettingsError(
                    key,
                    f"got a list; allowed: null, {topology.family} is no grid of nodes with lines"
                    " of its own",
                )
        return None
    joined = topology.family in ("railx_hyperx", "hammingmesh")
    columns = _positions("columns", settings.columns, grid.columns, joined)
    rows = _positions("rows", settings.rows, grid.rows, joined)
    if len(columns) * len(rows) * grid.m**2 < 2:
        raise SettingsError(
            "columns",
            "got a single chip; allowed: at least two chips, a collective needs someone to talk to",
        )
    return SubGrid(columns, rows)


def node_rings(
    topology: Topology, positions: Sequence[int], dimension: int, lines: Sequence[int]
) -> LineRings:
    """Rings whose participants are the nodes at ``positions`` of each of ``lines``; a
    node takes a message in at one edge chip of it and passes it on from another.
    """
    grid = grid_of(topology)
    assert grid is not None
    arcs, closed = _arcs(topology, grid, positions, dimension)
    places = _places(len(positions), closed)
    entries: list[RingLink] = []
    for ring, hops in enumerate(arcs):
        for k, arc in enumerate(hops):
            message = ring * len(positions) + places[k]
            at = arc.a * grid.m**2
            before = hops[k - 1]
            enters = _edge_chip(grid, dimension, before.rail, not before.plus)
            walk = _walk(grid.m, enters, _edge_chip(grid, dimension, arc.rail, arc.plus))
            entries += [(message, at + c, at + d, -1, 0) for c, d in walk]
            entries += [(message, *link) for link in _arc_links(topology, grid, dimension, arc)]
    return line_rings(
        len(positions), len(arcs), _vertices(topology, grid, dimension, lines), entries
    )


def chip_rings(
    topology: Topology, positions: Sequence[int], dimension: int, lines: Sequence[int]
) -> LineRings | None:
    """Rings whose participants are all chips of one chip row (column) of the nodes: 2 n
    closed rings, n on a chain.

    The first chip row of a line stands for all m. None in an all-to-all setting that is
    taken in part: its links do not spread evenly over the chip rows.
    """
    grid = grid_of(topology)
    assert grid is not None
    if topology.family == "railx_hyperx" and len(positions) < _length(grid, dimension):
        return None
    arcs, closed = _arcs(topology, grid, positions, dimension)
    participants = grid.m * len(positions)
    places = _places(participants, closed)
    entries: list[RingLink] = []
    own = [hops for hops in arcs if hops[0].rail < grid.n]
    step = 1 if dimension == 0 else grid.m
    for ring, hops in enumerate(own):
        ways: list[list[_Link]] = []  # from each chip to the next
        for arc in hops:
            first = arc.a * grid.m**2
            row = [first + step * place for place in range(grid.m)]
            row = row if arc.plus else row[::-1]
            ways += [[(c, d, -1, 0)] for c, d in itertools.pairwise(row)]
            ways.append(_arc_links(topology, grid, dimension, arc))
        if not closed:
            # A chain: up to its far end, through the last node's chips, and back over
            # the same links the other way.
            up = ways[: len(ways) // 2]
            last = hops[len(hops) // 2].a * grid.m**2
            up += [
                [(last + step * place, last + step * (place + 1), -1, 0)]
                for place in range(grid.m - 1)
            ]
            ways = up + [[(d, c, rail, channel)] for ((c, d, rail, channel),) in reversed(up)]
        entries += [
            (ring * participants + places[k], *link) for k, way in enumerate(ways) for link in way
        ]
    return line_rings(participants, len(own), _vertices(topology, grid, dimension, lines), entries)


def mesh_rings(grid: Grid, dimension: int) -> LineRings | None:
    """One ring there and back along the first chip row (column) of the first node; None
    where a node is a single chip.

    It takes all lanes of its links.
    """
    if grid.m == 1:
        return None
    step = 1 if dimension == 0 else grid.m
    up = [(step * place, step * (place + 1), -1, 0) for place in range(grid.m - 1)]
    links = up + [(d, c, rail, channel) for c, d, rail, channel in reversed(up)]
    places = _places(grid.m, False)
    entries = [(places[k], *link) for k, link in enumerate(links)]
    return line_rings(
        grid.m, 1, np.arange(grid.m**2)[None, :], entries, grid.n * grid.internal_width
    )


@dataclass(frozen=True)
class _Arc:
    """From position ``a`` of a line to ``b`` on a rail, out of the plus or the minus
    side of a.
    """

    a: int
    b: int
    rail: int
    plus: bool


#: Source place, destination place, rail and channel of a link (:class:`LineRings`).
_Link = tuple[int, int, int, int]


def _positions(
    key: str, given: tuple[int, ...] | None, length: int, joined: bool
) -> tuple[int, ...]:
    if given is None:
        return tuple(range(length))
    for position in given:
        if position >= length:
            raise SettingsError(
                key, f"got {position}; allowed: 0 to {length - 1}, the nearest is {length - 1}"
            )
    chosen = sorted(given)
    if joined or len(chosen) == length:
        return tuple(chosen)
    # On a ring the job is what remains without the largest gap.
    gaps = [
        (following - position - 1) % length
        for position, following in zip(chosen, chosen[1:] + chosen[:1], strict=True)
    ]
    widest = max(range(len(chosen)), key=gaps.__getitem__)
    in_order = chosen[widest + 1 :] + chosen[: widest + 1]
    if sum(gaps) > gaps[widest]:
        nearest = [(in_order[0] + k) % length for k in range(length - gaps[widest])]
        raise SettingsError(
            key,
            f"got {list(given)}, which no links of their own join on a ring of {length}; allowed:"
            f" neighbours along the ring, the nearest are {sorted(nearest)}",
        )
    return tuple(in_order)


def _arcs(
    topology: Topology, grid: Grid, positions: Sequence[int], dimension: int
) -> tuple[list[list[_Arc]], bool]:
    """The directed rings through positions of a line, and whether they are closed (else
    there and back along a chain).
    """
    length = _length(grid, dimension)
    if topology.family == "railx_hyperx" and len(positions) < length:
        return _subset_arcs(topology, positions, dimension), True
    if len(positions) == length or topology.family == "hammingmesh":
        rings = []
        for rail, order in enumerate(_rail_orders(topology, grid, positions, dimension)):
            up = [_Arc(a, b, rail, True) for a, b in zip(order, order[1:] + order[:1], strict=True)]
            rings += [up, [_Arc(arc.b, arc.a, rail, False) for arc in reversed(up)]]
        return rings, True
    rings = []
    for rail in range(grid.rails):
        up = [_Arc(a, b, rail, True) for a, b in itertools.pairwise(positions)]
        rings.append(up + [_Arc(arc.b, arc.a, rail, False) for arc in reversed(up)])
    return rings, False


def _subset_arcs(topology: Topology, positions: Sequence[int], dimension: int) -> list[list[_Arc]]:
    """Both directions of the undirected rings over some positions of an all-to-all
    line, each of a pair's two links used once.
    """
    wiring = line_wiring(topology, dimension)

    def arc(a: int, b: int, link: int) -> _Arc:
        low, high = min(a, b), max(a, b)
        return _Arc(
            a, b, int(wiring.rail[low, high, link]), bool(wiring.plus[low, high, link]) == (a < b)
        )

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


def _rail_orders(
    topology: Topology, grid: Grid, positions: Sequence[int], dimension: int
) -> list[list[int]]:
    """The positions along the ring of each rail of a line: all that it joins, or those
    wanted where a switch joins any.
    """
    if topology.circuits is None:
        return [list(positions)] * grid.rails
    length = _length(grid, dimension)
    follows = np.empty((grid.rails, length), dtype=np.int64)
    a, b, rail = line_circuits(topology.circuits, dimension).T
    follows[rail, a] = b
    orders = np.zeros((grid.rails, length), dtype=np.int64)
    for place in range(1, length):
        orders[:, place] = follows[np.arange(grid.rails), orders[:, place - 1]]
    as_lists: list[list[int]] = orders.tolist()
    return as_lists


def _places(participants: int, closed: bool) -> list[int]:
    """The place in its ring of the participant that sends the message which crosses
    link k of the ring.

    Along a chain every second participant takes part on the way up and the others on
    the way back, so that no message is longer than two links.
    """
    if closed:
        return list(range(participants))
    top = participants - 1
    sends = [k % 2 == 0 or k == top if k <= top else (2 * top - k) % 2 == 1 for k in range(2 * top)]
    return [int(place) - 1 for place in np.cumsum(sends)]


def _vertices(topology: Topology, grid: Grid, dimension: int, lines: Sequence[int]) -> IntArray:
    """The vertices of whole lines: the chips of all positions, then the switches of a
    HammingMesh by rail.
    """
    node = np.arange(grid.nodes).reshape(grid.rows, grid.columns)
    node = (node if dimension == 0 else node.T)[list(lines)]
    chips = (node[:, :, None] * grid.m**2 + np.arange(grid.m**2)).reshape(len(node), -1)
    settings = topology.settings
    if not isinstance(settings, HammingMeshSettings):
        return chips
    switches = (row_switches if dimension == 0 else column_switches)(settings)[list(lines)]
    return np.concatenate([chips, switches.reshape(len(node), -1)], axis=1)


def _arc_links(topology: Topology, grid: Grid, dimension: int, arc: _Arc) -> list[_Link]:
    """The link that an arc stands for, or both links over a switch."""
    src = arc.a * grid.m**2 + _edge_chip(grid, dimension, arc.rail, arc.plus)
    dst = arc.b * grid.m**2 + _edge_chip(grid, dimension, arc.rail, not arc.plus)
    length = _length(grid, dimension)
    if topology.family == "hammingmesh":
        switch = length * grid.m**2 + arc.rail
        single = grid.m == 1  # both sides of a board are ports of one chip, the minus side first
        return [
            (src, switch, -1, int(single and arc.plus)),
            (switch, dst, -1, int(single and not arc.plus)),
        ]
    second = int(
        grid.m == 1 and length == 2 and not arc.plus
    )  # round a ring of two both ways lead to the same neighbour
    if topology.circuits is None:
        return [(src, dst, -1, arc.rail + grid.n * second)]
    return [(src, dst, arc.rail, second)]


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


def _length(grid: Grid, dimension: int) -> int:
    return grid.columns if dimension == 0 else grid.rows
