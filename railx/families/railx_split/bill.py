"""What a RailX grid costs whose lines are split in all-to-alls.

There is one all-to-all per logical dimension.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations_with_replacement

from railx.families.railx_split.settings import RailXSplitSettings, grid_of
from railx.vocabulary.counts import Bill, Ports, best_size, too_large
from railx.vocabulary.grid_counts import (
    grid_ports,
    hyperx_all_to_all_ports,
    hyperx_bisection_ports,
    hyperx_external_hops,
    in_node_lanes_per_chip,
    longest_line,
    whole_lines,
)

__all__ = ["BILL", "external_hops", "ports", "resize"]

#: How far above the smallest size a split grid may go for a better shape.
_SLACK = 1.1


def ports(settings: RailXSplitSettings) -> Ports:
    """What the grid is built of, and its bandwidths in ports per chip.

    Rails in no part are not counted in the bandwidths.
    """
    grid = grid_of(settings)
    dimensions = [
        (size, rails // (size - 1))
        for sizes, split in (
            (settings.sizes_x, settings.rails_x),
            (settings.sizes_y, settings.rails_y),
        )
        for size, rails in zip(sizes, split, strict=True)
    ]
    return grid_ports(
        grid,
        all_to_all=hyperx_all_to_all_ports(grid, dimensions),
        bisection=hyperx_bisection_ports(grid, dimensions),
    )


def external_hops(settings: RailXSplitSettings) -> float:
    """Mean optical hops of a packet under uniform traffic, minimally routed."""
    return hyperx_external_hops(grid_of(settings), (*settings.sizes_x, *settings.sizes_y))


def resize(settings: RailXSplitSettings, chips: int) -> RailXSplitSettings:
    """The smallest grid with at least so many chips and as many dimensions per line.

    Lines of one dimension use every rail. Split lines take equal copies in each of
    their dimensions and the most all-to-all bandwidth among sizes up to a tenth above
    the smallest.
    """
    rails, node = settings.m * settings.n, settings.m**2
    longest = longest_line(
        settings.ocs_radix, math.prod(settings.sizes_x), math.prod(settings.sizes_y)
    )
    pairs = [
        (row, column)
        for row in _lines(len(settings.sizes_x), rails, longest)
        for column in _lines(len(settings.sizes_y), rails, longest)
        if row >= column
    ]
    sizes = [math.prod(row) * math.prod(column) * node for row, column in pairs]
    if max(sizes, default=0) < chips:
        raise too_large(
            chips,
            max(sizes, default=0),
            f"nodes of {settings.m} x {settings.m} chips, {2 * longest}-port switches",
        )
    least = min(size for size in sizes if size >= chips)
    flat = len(settings.sizes_x) == len(settings.sizes_y) == 1
    most = least if flat else int(_SLACK * least)
    return best_size(
        [
            _shaped(settings, row, column)
            for (row, column), size in zip(pairs, sizes, strict=True)
            if least <= size <= most
        ],
        ports,
    )


def _lines(dimensions: int, rails: int, longest: int) -> list[tuple[int, ...]]:
    """The sizes that a line can have with so many logical dimensions."""
    if dimensions == 1:
        return [(size,) for size in whole_lines(rails, longest)]
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


BILL = Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip)
