"""Parts of a line: rails that wire equal sub-lines of its nodes.

Each sub-line is a ring or an all-to-all. A part takes the next ``rails`` of a line's r
rails and cuts its L nodes into L / size sub-lines of ``size`` nodes at a distance of
``stride`` positions: position p is coordinate (p // stride) % size of its sub-line.
With strides 1, s1, s1 s2, ... the parts of sizes s1, s2, s3, ... arrange the line as a
grid with a logical dimension each. An optical switch closes any matching of its ports,
so one rail of one switch closes the rings of all sub-lines of the line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.settings import AtLeast, SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.grid import Grid, LineWiring, build_lines, pair_wiring, successor_arcs
from railx.vocabulary.hamiltonian import hamiltonian_cycles, undirected_rings
from railx.vocabulary.topology import FamilySettings, Topology, two_nearest
from railx.vocabulary.union import roots

Rings = Literal["directed", "undirected"]
#: A limit far above the rails of any line in the paper.
MOST_RAILS = 1024


@dataclass(frozen=True)
class PartSettings:
    """The settings of a part of a line.

    An all-to-all takes size - 1 rails per copy; each copy joins every pair of a
    sub-line twice.
    """

    kind: Literal["ring", "all_to_all"]
    """Whether each sub-line is a ring or an all-to-all."""
    rails: Annotated[int, AtLeast(1)]
    """Rails of the line that the part takes."""
    size: Annotated[int, AtLeast(2)]
    """Nodes of a sub-line."""
    stride: Annotated[int, AtLeast(1)]
    """Positions of the line from one node of a sub-line to the next."""


@dataclass(frozen=True)
class LinePart(PartSettings):
    """A part with its rails: ``first_rail`` to ``first_rail + rails - 1``."""

    first_rail: int = 0

    @property
    def copies(self) -> int:
        """Copies of the all-to-all (2 links per pair) or of the ring (1)."""
        return self.rails // (self.size - 1) if self.kind == "all_to_all" else self.rails

    def coordinate(self, position: IntArray) -> IntArray:
        """The coordinate of a line position in its sub-line, 0 to size - 1."""
        return position // self.stride % self.size

    def move(self, position: IntArray, coordinate: IntArray) -> IntArray:
        """The line position at another coordinate of the same sub-line."""
        return position + (coordinate - self.coordinate(position)) * self.stride

    def sub_lines(self, length: int) -> IntArray:
        """The positions of every sub-line of a line: shape (length / size, size)."""
        block, offset, coordinate = np.indices(
            (length // (self.size * self.stride), self.stride, self.size)
        )
        positions: IntArray = (
            block * self.size * self.stride + coordinate * self.stride + offset
        ).reshape(-1, self.size)
        return positions


def line_parts(parts: tuple[PartSettings, ...]) -> tuple[LinePart, ...]:
    """The parts with the rails of each, in order."""
    first = np.concatenate([[0], np.cumsum([part.rails for part in parts])])
    return tuple(
        LinePart(part.kind, part.rails, part.size, part.stride, int(rail))
        for part, rail in zip(parts, first, strict=False)
    )


def part_rings(part: LinePart, rings: Rings) -> IntArray:
    """The ring of places of every rail of a part: shape (rails, size).

    A ring part closes 0, 1, 2, ... on each rail. An all-to-all repeats the
    decomposition of its size ``copies`` times; two nodes are joined by the ring 0, 1.
    """
    if part.kind == "ring" or part.size == 2:
        return np.tile(np.arange(part.size), (part.rails, 1))
    cycles = hamiltonian_cycles(part.size) if rings == "directed" else undirected_rings(part.size)
    return np.tile(cycles, (part.copies, 1))


def part_wiring(part: LinePart, rings: Rings) -> LineWiring:
    """The 2 * copies links between every ordered pair of places of an all-to-all
    sub-line.

    ``rail`` counts within the line, from ``first_rail``. Raises ValueError for a ring
    part.
    """
    if part.kind == "ring":
        raise ValueError(
            "part: a ring does not join every pair of its nodes; allowed: an all_to_all part"
        )
    ring = part_rings(part, rings)
    rail = np.repeat(part.first_rail + np.arange(part.rails), part.size)
    return pair_wiring(ring.ravel(), np.roll(ring, -1, axis=1).ravel(), rail, 2 * part.copies)


def build_parts(
    settings: FamilySettings,
    grid: Grid,
    parts: tuple[tuple[LinePart, ...], tuple[LinePart, ...]],
    rings: Rings,
) -> Topology:
    """Build a RailX topology whose rails close the rings of their parts."""
    next_x = line_successors(parts[0], grid.columns, rings)
    next_y = line_successors(parts[1], grid.rows, rings)
    arcs = (
        successor_arcs(np.broadcast_to(following, (lines, *following.shape)))
        for following, lines in ((next_x, grid.rows), (next_y, grid.columns))
    )
    return build_lines(settings, grid, *arcs)


def line_successors(parts: tuple[LinePart, ...], length: int, rings: Rings) -> IntArray:
    """The next position on each rail from each position of a line: (r, length)."""
    successors = np.full((sum(part.rails for part in parts), length), -1)
    for part in parts:
        lines = part.sub_lines(length)
        for rail, ring in enumerate(part_rings(part, rings), start=part.first_rail):
            successors[rail, lines[:, ring]] = lines[:, np.roll(ring, -1)]
    return successors


def crossing_ports(parts: tuple[LinePart, ...], length: int) -> int:
    """Links of a line between its first ``length // 2`` positions and the others.

    A sub-line with h of its s places below the cut has 2 h (s - h) links across it per
    copy of its all-to-all, and 2 per rail of its ring where 0 < h < s.
    """
    total = 0
    for part in parts:
        below = (part.sub_lines(length) < length // 2).sum(axis=1)
        if part.kind == "all_to_all":
            total += 2 * part.copies * int((below * (part.size - below)).sum())
        else:
            total += 2 * part.rails * int(((below > 0) & (below < part.size)).sum())
    return total


def cut_dimension(
    grid: Grid, parts: tuple[tuple[LinePart, ...], tuple[LinePart, ...]]
) -> tuple[int, int]:
    """The dimension to cut in the middle, and the ports across the cut in one
    direction.

    Equal halves are preferred, then fewer ports, then x.
    """
    lengths = (grid.columns, grid.rows)
    ports = [crossing_ports(parts[d], lengths[d]) * lengths[1 - d] for d in (0, 1)]
    dimension = min((0, 1), key=lambda d: (lengths[d] % 2, ports[d], d))
    return dimension, ports[dimension]


def check_line(key: str, parts: tuple[PartSettings, ...], length: int, rails: int) -> None:
    """Check that the parts fit and join a line; SettingsError names ``key``.

    The line has ``length`` nodes with ``rails`` rails.
    """
    for i, part in enumerate(parts):
        where = f"{key}[{i}]"
        if part.kind == "all_to_all" and part.rails % (part.size - 1):
            near = _multiples(part.rails, part.size - 1)
            raise SettingsError(
                f"{where}.rails",
                f"got {part.rails}; allowed: a multiple of size - 1 = {part.size - 1} for an"
                f" all-to-all; the nearest are {near}",
            )
        if length % (part.size * part.stride):
            raise SettingsError(
                f"{where}.size",
                f"got {part.size} with stride {part.stride}; allowed: size * stride that divides"
                f" the {length} nodes of the line; {_near_sizes(part, length)}",
            )
    used = sum(part.rails for part in parts)
    if used != rails:
        raise SettingsError(
            key,
            f"the parts take {used} rails; allowed: exactly m * n = {rails}, each rail of a line is"
            " wired",
        )
    sub_lines = (line for part in line_parts(parts) for line in part.sub_lines(length).tolist())
    joined = ((first, other) for first, *others in sub_lines for other in others)
    pieces = len(set(roots(range(length), joined).values()))
    if pieces > 1:
        raise SettingsError(
            key,
            f"the parts leave the line of {length} nodes in {pieces} separate pieces; allowed:"
            f" parts that join all nodes, such as one more of size {pieces} with stride"
            f" {length // pieces}",
        )


def check_rails(rails: int) -> None:
    """Refuse more rails of a line than :data:`MOST_RAILS`, which bounds searches."""
    if rails > MOST_RAILS:
        raise SettingsError(
            "m", f"got {rails:,} rails of a line, m * n; allowed: at most {MOST_RAILS:,}"
        )


def check_rings(key: str, parts: tuple[PartSettings, ...], rings: Rings) -> None:
    """Refuse directed rings over 4 or 6 nodes: no decomposition exists."""
    for i, part in enumerate(parts):
        if rings == "directed" and part.kind == "all_to_all" and part.size in (4, 6):
            near = "3 and 5" if part.size == 4 else "5 and 7"
            raise SettingsError(
                f"{key}[{i}]",
                f"an all-to-all over {part.size} nodes has no directed Hamiltonian decomposition;"
                f" allowed: rings=undirected, or another size; the nearest are {near}",
            )


def _multiples(value: int, step: int) -> str:
    below, above = value // step * step, (value // step + 1) * step
    return f"{below} and {above}" if below else f"{above} and {above + step}"


def _near_sizes(part: PartSettings, length: int) -> str:
    """The nearest sizes (at least 2) that fit a part's stride, or fitting strides."""
    fits = length // part.stride if length % part.stride == 0 else 1
    sizes = [d for d in range(2, fits + 1) if fits % d == 0]
    if sizes:
        return f"the nearest sizes are {two_nearest(part.size, sizes)}"
    strides = (d for d in range(1, length) if length % d == 0)
    return f"no size fits this stride, the nearest strides are {two_nearest(part.stride, strides)}"
