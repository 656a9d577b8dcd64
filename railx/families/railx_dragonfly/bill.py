"""What a RailX grid costs that is set to a Dragonfly: a row is a group."""

from __future__ import annotations

from dataclasses import replace

from railx.families.railx_dragonfly.settings import RailXDragonflySettings, grid_of
from railx.vocabulary.counts import Bill, Ports, best_size, dragonfly_hops, too_large
from railx.vocabulary.grid_counts import (
    grid_ports,
    in_node_lanes_per_chip,
    longest_line,
    whole_lines,
)

__all__ = ["BILL", "external_hops", "ports", "resize"]

#: How far above the smallest size a grid may go for a better shape.
_SLACK = 1.1


def ports(settings: RailXDragonflySettings) -> Ports:
    """What the grid is built of, and its bandwidths in ports per chip."""
    grid = grid_of(settings)
    groups = grid.rows
    bisection = 4 * grid.rails * (groups // 2) * (groups - groups // 2) / (groups * (groups - 1))
    return grid_ports(
        grid,
        all_to_all=min(2 * grid.n / grid.m / hops for hops in _hops(settings)),
        bisection=bisection / grid.m**2,
    )


def external_hops(settings: RailXDragonflySettings) -> float:
    """Mean optical hops of a packet under uniform traffic, minimally routed."""
    return sum(_hops(settings))


def resize(settings: RailXDragonflySettings, chips: int) -> RailXDragonflySettings:
    """The most all-to-all bandwidth among sizes close to the smallest.

    Sizes go up to a tenth above the smallest that has at least so many chips. The
    all-to-all of a group uses every rail.
    """
    rails, node = settings.m * settings.n, settings.m**2
    longest = longest_line(settings.ocs_radix, settings.columns, settings.rows)
    pairs = [
        (columns, rows)
        for columns in whole_lines(rails, longest)
        for rows in range(2, min(longest, 2 * rails * columns + 1) + 1)
    ]
    largest = max((columns * rows * node for columns, rows in pairs), default=0)
    if largest < chips:
        raise too_large(
            chips,
            largest,
            f"nodes of {settings.m} x {settings.m} chips, {2 * longest}-port switches",
        )
    least = min(columns * rows * node for columns, rows in pairs if columns * rows * node >= chips)
    return best_size(
        [
            _shaped(settings, columns, rows)
            for columns, rows in pairs
            if least <= columns * rows * node <= int(_SLACK * least)
        ],
        ports,
    )


def _shaped(settings: RailXDragonflySettings, columns: int, rows: int) -> RailXDragonflySettings:
    rings = "undirected" if columns in (4, 6) else settings.rings
    return replace(settings, columns=columns, rows=rows, rings=rings)


def _hops(settings: RailXDragonflySettings) -> tuple[float, float]:
    return dragonfly_hops(settings.columns, settings.rows, settings.m**2)


BILL = Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip)
