"""RailX with split dimensions: each part of a line's rails is an all-to-all.

The nodes of a row form a grid of ``sizes_x`` (first size fastest), and part k of its
rails, ``split_x[k]`` of them, joins all nodes that differ only in coordinate k. Rails
r1 + r2 = r reach (r1 + 1)(r2 + 1) nodes in a line instead of r + 1, and each part costs
one more inter-node hop. A 3D or 4D HyperX has diameter 3 or 4, which explains the "2 to
4" of RailX's abstract (derived from the abstract; the authors' mapping is unpublished).

A part whose rails are a multiple of its size - 1 wires several copies of its
all-to-all, so that all rails of a large node are used: 63 rails over 8 x 8 nodes are 5
copies (35 rails) and 4 copies (28 rails).

Layout: nodes, chips and rails as in :mod:`railx.vocabulary.grid`; parts as in
:mod:`railx.vocabulary.line_parts`. Routing corrects one logical coordinate after the
other, then walks to the chip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Annotated, Literal

from railx.families.family import check_radix
from railx.families.node_grids import (
    all_rail_lines,
    best_grid,
    in_node_lanes_per_chip,
    longest_line,
    node_grid_family,
)
from railx.families.railx_lines import ALL_TO_ALLS, PartedSettings, build, check_circuits, ports
from railx.settings import AtLeast, NotEmpty, SettingsError
from railx.vocabulary.counts import Bill
from railx.vocabulary.line_parts import (
    MOST_RAILS,
    LinePart,
    PartSettings,
    check_rails,
    check_rings,
    line_parts,
)
from railx.vocabulary.placement import Placement, Sizes, node_placement
from railx.vocabulary.topology import Topology, check_size

__all__ = ["FAMILY", "RailXSplitSettings"]


@dataclass(frozen=True)
class RailXSplitSettings(PartedSettings):
    """RailX with split lines: prod(sizes_x) nodes of a row, prod(sizes_y) of a column.

    A single size is the plain all-to-all.
    """

    family: Literal["railx_split"]

    sizes_x: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()] = (3, 3)
    """Nodes of the all-to-alls that a row is split in, one size per part."""
    split_x: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()] | None = (2, 2)
    """Rails of each part of a row: m * n in all, each a multiple of its size - 1; null:
    as many copies of the all-to-all of each size as fit together, rails that are left
    over in no part (the graph needs every rail in a part)."""
    sizes_y: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()] = (3, 3)
    """Nodes of the all-to-alls that a column is split in, one size per part."""
    split_y: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()] | None = (2, 2)
    """Rails of each part of a column, as ``split_x`` of a row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rails = self.rails
        check_rails(rails)
        axes = (("x", self.sizes_x, self.split_x), ("y", self.sizes_y, self.split_y))
        for axis, sizes, _ in axes:
            if max(sizes) > MOST_RAILS + 1:
                raise SettingsError(
                    f"sizes_{axis}",
                    f"got {list(sizes)}; allowed: at most {MOST_RAILS + 1:,} nodes each",
                )
        for axis, sizes, split in axes:
            if split is None:
                _check_sizes(axis, sizes, rails)
            else:
                _check_split(axis, sizes, split, rails)
        for (axis, *_), parts in zip(axes, self.parts, strict=True):
            check_rings(f"sizes_{axis}", parts, self.rings)
        check_radix(self.ocs_radix, max(self.shape))

    @property
    def shape(self) -> tuple[int, int]:
        return math.prod(self.sizes_x), math.prod(self.sizes_y)

    @property
    def unsplit(self) -> bool:
        """Whether every line is one all-to-all, as in a HyperX."""
        return len(self.sizes_x) == len(self.sizes_y) == 1

    @property
    def rails_x(self) -> tuple[int, ...]:
        """Rails of the parts of a row."""
        return _equal_copies(self.sizes_x, self.rails) if self.split_x is None else self.split_x

    @property
    def rails_y(self) -> tuple[int, ...]:
        """Rails of the parts of a column."""
        return _equal_copies(self.sizes_y, self.rails) if self.split_y is None else self.split_y

    @property
    def parts(self) -> tuple[tuple[LinePart, ...], tuple[LinePart, ...]]:
        """The parts of a row and of a column; a part is a logical dimension."""
        return _parts(self.sizes_x, self.rails_x), _parts(self.sizes_y, self.rails_y)


def _parts(sizes: tuple[int, ...], split: tuple[int, ...]) -> tuple[LinePart, ...]:
    """The parts of a line by their sizes and rails."""
    strides = [math.prod(sizes[:k]) for k in range(len(sizes))]
    return line_parts(
        tuple(
            PartSettings("all_to_all", rails, size, stride)
            for rails, size, stride in zip(split, sizes, strides, strict=True)
        )
    )


def _equal_copies(sizes: tuple[int, ...], rails: int) -> tuple[int, ...]:
    copies = rails // sum(size - 1 for size in sizes)
    return tuple(copies * (size - 1) for size in sizes)


def _check_sizes(axis: str, sizes: tuple[int, ...], rails: int) -> None:
    needed = sum(size - 1 for size in sizes)
    if needed > rails:
        raise SettingsError(
            f"sizes_{axis}",
            f"got {list(sizes)}; allowed: the sizes less one together at most m * n = {rails}"
            f" rails; the nearest single size is {rails + 1}",
        )


def _check_split(axis: str, sizes: tuple[int, ...], split: tuple[int, ...], rails: int) -> None:
    """Refuse rails that are no multiples of size - 1 or not r in sum."""
    key = f"split_{axis}"
    fit = _fit(sizes, rails)
    works = (
        f"such as {list(fit)}"
        if fit
        else f"no split does for sizes_{axis} = {list(sizes)}; {_near_rails(sizes, rails)}"
    )
    if len(split) != len(sizes):
        raise SettingsError(
            key,
            f"got {len(split)} parts; allowed: one for each of the {len(sizes)} sizes of"
            f" sizes_{axis}, {works}",
        )
    if sum(split) != rails:
        raise SettingsError(
            key,
            f"got {' + '.join(map(str, split))} = {sum(split)} rails; allowed: m * n = {rails},"
            f" {works}",
        )
    for rail, size in zip(split, sizes, strict=True):
        if rail % (size - 1):
            raise SettingsError(
                key,
                f"got {rail} rails for {size} nodes; allowed: a multiple of {size - 1} in that"
                f" part, {rails} in all, {works}",
            )


def _fit(sizes: tuple[int, ...], rails: int) -> tuple[int, ...] | None:
    """Positive multiples of each size - 1 that sum to ``rails``, or None."""
    if len(sizes) == 1:
        return (rails,) if rails and rails % (sizes[0] - 1) == 0 else None
    for copies in range(1, rails // (sizes[0] - 1) + 1):
        rest = _fit(sizes[1:], rails - copies * (sizes[0] - 1))
        if rest is not None:
            return (copies * (sizes[0] - 1), *rest)
    return None


def _near_rails(sizes: tuple[int, ...], rails: int) -> str:
    fewest = sum(size - 1 for size in sizes)
    near = [
        r
        for step in range(1, fewest + rails + 1)
        for r in (rails - step, rails + step)
        if r > 0 and _fit(sizes, r)
    ]
    return f"the nearest numbers of rails that do are {' and '.join(map(str, sorted(near[:2])))}"


# Graph


def check(settings: RailXSplitSettings) -> None:
    """Refuse rails outside all parts, and more links than fit in memory."""
    for key, rails in (("split_x", settings.rails_x), ("split_y", settings.rails_y)):
        if sum(rails) != settings.rails:
            raise SettingsError(
                key,
                f"is null, which leaves {settings.rails - sum(rails)} of {settings.rails} rails in"
                " no part; allowed: rails for each part that make m * n together",
            )
    check_size("sizes_x", settings.grid.link_rows)


# Bill of materials


def resize(settings: RailXSplitSettings, chips: int) -> RailXSplitSettings:
    """The smallest grid with at least ``chips`` chips and as many dimensions per line.

    Lines of one dimension use every rail. Split lines have equal copies in their
    dimensions and the most all-to-all bandwidth among sizes up to a tenth above the
    smallest.
    """
    rails, longest = settings.rails, longest_line(settings)
    pairs = [
        (row, column)
        for row in _lines(len(settings.sizes_x), rails, longest)
        for column in _lines(len(settings.sizes_y), rails, longest)
        if row >= column
    ]
    return best_grid(
        settings,
        chips,
        [(math.prod(row) * math.prod(column), (row, column)) for row, column in pairs],
        lambda shape: _shaped(settings, *shape),
        ports,
        max_oversize=1.0 if settings.unsplit else 1.1,
    )


def _lines(dimensions: int, rails: int, longest: int) -> list[tuple[int, ...]]:
    """The possible sizes of a line with ``dimensions`` logical dimensions."""
    if dimensions == 1:
        return [(size,) for size in all_rail_lines(rails, longest)]
    return [
        sizes
        for sizes in combinations_with_replacement(range(longest, 1, -1), dimensions)
        if math.prod(sizes) <= longest and sum(size - 1 for size in sizes) <= rails
    ]


def _shaped(
    settings: RailXSplitSettings, row: tuple[int, ...], column: tuple[int, ...]
) -> RailXSplitSettings:
    if (row, column) == (settings.sizes_x, settings.sizes_y):
        return settings
    return replace(
        settings,
        sizes_x=row,
        split_x=None,
        sizes_y=column,
        split_y=None,
        rings="undirected" if {4, 6} & {*row, *column} else settings.rings,
    )


def placement(settings: RailXSplitSettings, topology: Topology, sizes: Sizes) -> Placement:
    """As a HyperX where no line is split; elsewhere nodes follow their numbers."""
    return node_placement(topology, sizes, settings.shape if settings.unsplit else None)


FAMILY = node_grid_family(
    "railx_split",
    RailXSplitSettings,
    **ALL_TO_ALLS,
    build=build,
    check=check,
    check_circuits=check_circuits,
    placement=placement,
    bill=Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip),
)
