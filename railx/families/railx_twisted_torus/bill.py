"""What a RailX grid costs that is set to a twisted torus of 2a x a nodes."""

from __future__ import annotations

from dataclasses import replace

from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings, grid_of
from railx.vocabulary.counts import Bill, Ports, best_size, too_large, torus_all_to_all_ports
from railx.vocabulary.grid import Grid
from railx.vocabulary.grid_counts import (
    grid_hop_count,
    grid_ports,
    in_node_lanes_per_chip,
    longest_line,
    ring_bisection_ports,
)

__all__ = ["BILL", "external_hops", "ports", "resize"]

#: How far above the smallest size a torus may go for more all-to-all bandwidth.
_SLACK = 1.1


def ports(settings: RailXTwistedTorusSettings) -> Ports:
    """What the grid is built of, and its bandwidths in ports per chip.

    The twist makes every wrap link of the short dimension cross the cut as well.
    """
    grid = grid_of(settings)
    if settings.wrap == "straight":
        lengths = (grid.m * grid.columns, grid.m * grid.rows)
        return grid_ports(
            grid,
            all_to_all=torus_all_to_all_ports(lengths, grid.n),
            bisection=ring_bisection_ports(grid, 2),
        )
    return grid_ports(
        grid,
        all_to_all=min(
            4 * grid.n / grid_hop_count(grid, _twist(settings, grid)),
            16 * grid.n * (1 - 1 / grid.chips) / (grid.m * grid.columns),
        ),
        bisection=ring_bisection_ports(grid, 4),
    )


def external_hops(settings: RailXTwistedTorusSettings) -> float:
    """Mean optical hops of a packet under uniform traffic, minimally routed."""
    grid = grid_of(settings)
    return grid_hop_count(grid, _twist(settings, grid)) / settings.m


def resize(settings: RailXTwistedTorusSettings, chips: int) -> RailXTwistedTorusSettings:
    """The most all-to-all bandwidth among sizes close to the smallest.

    Sizes go up to a tenth above the smallest that has at least so many chips.
    """
    node, longest = settings.m**2, longest_line(settings.ocs_radix, settings.x_scale)
    sizes = {y: 2 * y * y * node for y in range(2, longest // 2 + 1)}
    largest = max(sizes.values(), default=0)
    if largest < chips:
        raise too_large(
            chips,
            largest,
            f"nodes of {settings.m} x {settings.m} chips, {2 * longest}-port switches",
        )
    least = min(size for size in sizes.values() if size >= chips)
    return best_size(
        [
            replace(settings, x_scale=2 * y, y_scale=y)
            for y, size in sizes.items()
            if least <= size <= int(_SLACK * least)
        ],
        ports,
    )


def _twist(settings: RailXTwistedTorusSettings, grid: Grid) -> int:
    return grid.m * grid.rows if settings.wrap == "twisted" else 0


BILL = Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip)
