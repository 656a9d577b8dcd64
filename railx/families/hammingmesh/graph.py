"""HammingMesh: boards of m x m chips, joined by switches in rows and columns.

Every row and every column of chips has a switched network (Hoefler 2022). Boards form a
grid. The ports at the left and right ends of chip row y of all boards of a board row
meet in the row network of that chip row, with a switch for each of the n parallel
lanes; columns alike. Source of the layout: the HammingMesh that the RailX simulator
compares with.

A switch acts as a rail: through it any boards of a line make a ring each way, out of
the plus side of a board into the minus side of the next and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railx.families.node_grids import NodeGridSettings
from railx.settings import AtLeast, Fraction, Positive, SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.counts import Ports, too_large
from railx.vocabulary.grid import grid_halves, mesh_links
from railx.vocabulary.grid_rings import Arc, GridRings, Link, closed_rings
from railx.vocabulary.topology import Links, Topology, check_size, duplex_links, topology_of

#: Kinds of board lines, and of links to their switches.
LineKind: TypeAlias = Literal["row", "column"]


@dataclass(frozen=True)
class HammingMeshSettings(NodeGridSettings):
    """Boards of m x m chips in a grid, with a switch for each row and column of boards.

    Board (X, Y) is number Y * x_scale + X; its chip (x, y) adds y * m + x, as in RailX.
    """

    family: Literal["hammingmesh"]

    x_scale: Annotated[int, AtLeast(2)] = 5
    """Boards of a row."""
    y_scale: Annotated[int, AtLeast(2)] = 5
    """Boards of a column."""
    switch_radix: Annotated[int, AtLeast(4)] = 10
    """Ports of a row or column switch, two for each board of its line."""
    internal_width: Annotated[float, Positive()] = 1.0
    """Rate of an internal lane over the rate of an external port. Default: input file
    of the RailX simulator."""
    taper: Annotated[float, Fraction()] = 1.0
    """Uplinks per downlink of the two-level trees that join lines of more boards than a
    switch has room for; 1 is non-blocking. The graph has single switches only."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.x_scale, self.y_scale

    def __post_init__(self) -> None:
        super().__post_init__()
        largest = self.switch_radix**2 // 4
        for key in ("x_scale", "y_scale"):
            if getattr(self, key) > largest:
                raise SettingsError(
                    key,
                    f"got {getattr(self, key)}; allowed: at most {largest} boards per line with two"
                    f" levels of {self.switch_radix}-port switches; the nearest is {largest}",
                )

    @property
    def boards(self) -> int:
        return self.x_scale * self.y_scale

    @property
    def chips(self) -> int:
        return self.boards * self.m**2


# Graph


def check(settings: HammingMeshSettings) -> None:
    """Refuse lines longer than a switch, and more links than fit in memory."""
    longest = max(settings.x_scale, settings.y_scale)
    if settings.switch_radix < 2 * longest:
        raise SettingsError(
            "switch_radix",
            f"got {settings.switch_radix}; allowed: at least {2 * longest}, two ports for each of"
            f" {longest} boards of a line (or x_scale and y_scale of at most"
            f" {settings.switch_radix // 2} for this radix)",
        )
    node = 4 * settings.m * (settings.m - 1) + 8 * settings.m * settings.n
    check_size("x_scale", settings.boards * node)


def build(settings: HammingMeshSettings) -> Topology:
    """Build the network. Row switches follow the chips, then column switches."""
    return topology_of(
        settings,
        [_internal(settings), *_lines(settings, "row"), *_lines(settings, "column")],
        chips=settings.chips,
        chips_per_node=settings.m**2,
        switches=sum(settings.shape) * settings.m * settings.n,
    )


def line_switches(settings: HammingMeshSettings, kind: LineKind) -> IntArray:
    """The switches of board lines by chip line and lane: int[lines, m, n]."""
    number = np.arange(sum(settings.shape) * settings.m * settings.n)
    switches = settings.chips + number.reshape(-1, settings.m, settings.n)
    rows = settings.y_scale
    return switches[:rows] if kind == "row" else switches[rows:]


def side_links(settings: HammingMeshSettings, kind: LineKind, end: Literal[0, 1]) -> IntArray:
    """Link rows between a side of the boards and the switches of a kind.

    The side is minus (``end`` 0) or plus (1). int[lines, m, n, boards of the line, 2]:
    by line, chip line, lane, board, and up to the switch (0) or down from it (1).
    """
    boards, lines = settings.shape if kind == "row" else settings.shape[::-1]
    shape = (lines, settings.m, settings.n, boards, 2)
    internal = settings.boards * 4 * settings.m * (settings.m - 1)
    tables_before = 2 * (kind == "column") + end
    rows: IntArray = (
        internal + tables_before * int(np.prod(shape)) + np.arange(np.prod(shape)).reshape(shape)
    )
    return rows


def halves(settings: HammingMeshSettings) -> NDArray[np.int8]:
    """Half (0: the smaller, or 1) of each vertex, cut through the longer board
    dimension.

    The switches of the cut lines go with the larger half, so that the ports of the
    smaller half cross the cut.
    """
    shorter, longer = sorted(settings.shape)
    along = np.repeat(np.arange(longer) >= longer // 2, settings.rails)
    across = np.ones(shorter * settings.rails, dtype=np.bool_)
    cut_rows = settings.x_scale >= settings.y_scale
    switches = (across, along) if cut_rows else (along, across)
    return np.concatenate([grid_halves(settings.grid), *switches]).astype(np.int8)


def bisection_ports(settings: HammingMeshSettings) -> int:
    """Ports in one direction across that cut: both ends of the smaller half's lines."""
    shorter, longer = sorted(settings.shape)
    return 2 * settings.rails * shorter * (longer // 2)


def node_hop_counts(settings: HammingMeshSettings) -> IntArray:
    """Ordered pairs of chips by links between boards, 2 per other dimension."""
    counts = np.array([settings.m**4], dtype=np.int64)
    for length in (settings.x_scale, settings.y_scale):
        counts = np.convolve(counts, [length, 0, length * (length - 1)])
    return counts


def _internal(settings: HammingMeshSettings) -> Links:
    mesh = mesh_links(settings.m)
    near_first = mesh[: len(mesh) // 2]  # the second half are the same links back
    board = np.arange(settings.boards)[:, None] * settings.m**2
    ends = board + near_first[:, 0], board + near_first[:, 1]
    rate, latency_ns = settings.port_gbps * settings.internal_width, settings.internal_latency_ns
    return duplex_links(*ends, "internal", rate, latency_ns, lanes=settings.n)


def _lines(settings: HammingMeshSettings, kind: LineKind) -> list[Links]:
    """The links of all boards to the switches of a kind, minus side then plus side.

    In the order (line, chip line, lane, board).
    """
    m, n, switches = settings.m, settings.n, line_switches(settings, kind)
    boards = np.arange(settings.boards).reshape(settings.y_scale, settings.x_scale)
    board = (boards if kind == "row" else boards.T)[:, None, None, :] * m**2
    beside = np.arange(m)[None, :, None, None]
    rail = beside * n + np.arange(n)[None, None, :, None]
    tables = []
    for end in (0, m - 1):
        local = beside * m + end if kind == "row" else end * m + beside
        ends = board + local, switches[..., None]
        rate, latency_ns = settings.port_gbps, settings.external_latency_ns
        tables.append(duplex_links(*ends, kind, rate, latency_ns, rail=rail))
    return tables


# Rings


class BoardRings(GridRings):
    """A ring per rail through any boards of a line, each hop over the line's switch."""

    joined: ClassVar[bool] = True

    def arcs(self, positions: Sequence[int], dimension: int) -> tuple[list[list[Arc]], bool]:
        """The directed rings through positions of a line, always closed."""
        return closed_rings([positions] * self.grid.rails), True

    def arc_links(self, dimension: int, arc: Arc) -> list[Link]:
        """The link up to the switch of the rail and the link down from it."""
        src, dst = self.arc_chips(dimension, arc)
        switch = self.length(dimension) * self.grid.m**2 + arc.rail
        # Both sides of a board of one chip are ports of that chip, the minus side
        # first.
        single = self.grid.m == 1
        return [
            (src, switch, -1, int(single and arc.plus)),
            (switch, dst, -1, int(single and not arc.plus)),
        ]

    def vertices(self, dimension: int, lines: Sequence[int]) -> IntArray:
        """The chips of all positions, then the switches of the line by rail."""
        settings = self.topology.settings
        assert isinstance(settings, HammingMeshSettings)
        chips = super().vertices(dimension, lines)
        switches = line_switches(settings, "column" if dimension else "row")[list(lines)]
        return np.concatenate([chips, switches.reshape(len(chips), -1)], axis=1)


# Bill of materials


def ports(settings: HammingMeshSettings) -> Ports:
    """Components of the lines, and the bandwidths in ports per chip.

    An end is a port of a board at a switch: 2 n per board and line of chips, with m
    lines of a board in each dimension. A line with more ends than a switch has ports is
    a two-level tree.
    """
    ends = 2 * settings.m * settings.n * settings.boards
    tapers = [
        settings.taper if 2 * boards > settings.switch_radix else None for boards in settings.shape
    ]
    cut = min(1.0 if taper is None else taper for taper in tapers)
    uplinks = sum(math.ceil(ends * taper) for taper in tapers if taper is not None)
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"row": 2 * ends, "column": 2 * ends, "uplink": 2 * uplinks},
        injection=4 * settings.n,
        all_to_all=min(bound for boards in settings.shape for bound in _bounds(settings, boards)),
        bisection=2 * settings.n / settings.m * cut,
        electrical_switch_ports=2 * ends + 2 * uplinks,
    )


def resize(settings: HammingMeshSettings, chips: int) -> HammingMeshSettings:
    """The grid of boards nearest to a square with at least ``chips`` chips."""
    longest, boards = settings.switch_radix**2 // 4, math.ceil(chips / settings.m**2)
    if boards > longest**2:
        raise too_large(
            chips,
            longest**2 * settings.m**2,
            f"two levels of {settings.switch_radix}-port switches in a line",
        )
    row = max(2, math.ceil(math.sqrt(boards) - 1e-9))
    return replace(settings, x_scale=row, y_scale=max(2, math.ceil(boards / row)))


def _bounds(settings: HammingMeshSettings, boards: int) -> Iterator[float]:
    """Bounds of all-to-all by the boards' ports and by the uplinks of the leaves."""
    port, chips = 2 * settings.n / settings.m, settings.chips
    yield port / ((boards - 1) / boards * chips / (chips - 1))
    under = max(1, int(settings.switch_radix / (1 + settings.taper)) // 2)
    if 2 * boards > settings.switch_radix and under < boards:
        yield port * settings.taper / ((boards - under) / boards * chips / (chips - 1))
