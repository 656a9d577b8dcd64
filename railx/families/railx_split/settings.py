"""Settings of the family ``railx_split``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, NotEmpty, Positive, SettingsError
from railx.vocabulary.grid import Grid
from railx.vocabulary.line_parts import (
    MOST_RAILS,
    PartSettings,
    check_radix,
    check_rails,
    check_rings,
)

__all__ = ["RailXSplitSettings", "grid_of", "parts_of_line"]


@dataclass(frozen=True)
class RailXSplitSettings:
    """RailX with split lines: prod(sizes_x) nodes of a row, prod(sizes_y) of a column.

    A single size is the plain all-to-all.
    """

    family: Literal["railx_split"]
    """Which network family this is."""

    m: Annotated[int, AtLeast(1)]
    """Chips on a side of a node, so that a node is a mesh of m x m chips."""

    n: Annotated[int, AtLeast(1)]
    """Ports on each of the 4 sides of a chip."""

    sizes_x: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()]
    """Nodes of the all-to-alls that a row is split in, one size per part."""

    split_x: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()] | None
    """Rails of each part of a row: m * n in all, each a multiple of its size - 1; null:
    as many copies of the all-to-all of each size as fit together, rails that are left
    over in no part (the graph needs every rail in a part).
    """

    sizes_y: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()]
    """Nodes of the all-to-alls that a column is split in, one size per part."""

    split_y: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()] | None
    """Rails of each part of a column, as ``split_x`` of a row."""

    rings: Literal["directed", "undirected"]
    """The Hamiltonian decomposition that the rails of a part follow."""

    ocs_radix: Annotated[int, AtLeast(2)] | None
    """Ports of an optical switch; null: what the longer line needs."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    internal_width: Annotated[float, Positive()]
    """Rate of an internal lane over the rate of an external port."""

    internal_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of a link inside a node, in nanoseconds."""

    external_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of an optical circuit between nodes, in nanoseconds."""

    def __post_init__(self) -> None:
        rails = self.m * self.n
        check_rails(rails)
        for axis, sizes in (("x", self.sizes_x), ("y", self.sizes_y)):
            if max(sizes) > MOST_RAILS + 1:
                raise SettingsError(
                    f"sizes_{axis}",
                    f"got {list(sizes)}; allowed: at most {MOST_RAILS + 1:,} nodes each",
                )
        for axis, sizes, split in (
            ("x", self.sizes_x, self.split_x),
            ("y", self.sizes_y, self.split_y),
        ):
            if split is None:
                _check_sizes(axis, sizes, rails)
            else:
                _check_split(axis, sizes, split, rails)
        check_rings("sizes_x", parts_of_line(self.sizes_x, self.rails_x), self.rings)
        check_rings("sizes_y", parts_of_line(self.sizes_y, self.rails_y), self.rings)
        check_radix(self.ocs_radix, math.prod(self.sizes_x), math.prod(self.sizes_y))

    @property
    def rails_x(self) -> tuple[int, ...]:
        """Rails of each part of a row."""
        return _equal_copies(self.sizes_x, self.rails) if self.split_x is None else self.split_x

    @property
    def rails_y(self) -> tuple[int, ...]:
        """Rails of each part of a column."""
        return _equal_copies(self.sizes_y, self.rails) if self.split_y is None else self.split_y

    @property
    def rails(self) -> int:
        """Rails of a line."""
        return self.m * self.n


def grid_of(settings: RailXSplitSettings) -> Grid:
    """The grid of nodes behind the settings."""
    return Grid.of(settings, columns=math.prod(settings.sizes_x), rows=math.prod(settings.sizes_y))


def parts_of_line(sizes: tuple[int, ...], split: tuple[int, ...]) -> tuple[PartSettings, ...]:
    """The parts of a line of these sizes with so many rails each."""
    strides = [math.prod(sizes[:k]) for k in range(len(sizes))]
    return tuple(
        PartSettings("all_to_all", rails, size, stride)
        for rails, size, stride in zip(split, sizes, strides, strict=True)
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
    """One number of rails for each size, multiples of size - 1, r together.

    The error names a split that works.
    """
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
    """Rails of each part, a positive multiple of its size - 1 each.

    They sum to ``rails``; None where there are none.
    """
    if len(sizes) == 1:
        return (rails,) if rails and rails % (sizes[0] - 1) == 0 else None
    for copies in range(1, rails // (sizes[0] - 1) + 1):
        rest = _fit(sizes[1:], rails - copies * (sizes[0] - 1))
        if rest is not None:
            return (copies * (sizes[0] - 1), *rest)
    return None


def _near_rails(sizes: tuple[int, ...], rails: int) -> str:
    least = sum(size - 1 for size in sizes)
    near = [
        r
        for step in range(1, least + rails + 1)
        for r in (rails - step, rails + step)
        if r > 0 and _fit(sizes, r)
    ]
    return f"the nearest numbers of rails that do are {' and '.join(map(str, sorted(near[:2])))}"
