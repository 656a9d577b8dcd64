"""What a RailX grid costs that is set to a torus."""

from __future__ import annotations

from dataclasses import replace

from railx.families.railx_torus.settings import RailXTorusSettings, grid_of
from railx.vocabulary.counts import Bill, Ports, best_size, too_large, torus_all_to_all_ports
from railx.vocabulary.grid_counts import (
    grid_hop_count,
    grid_ports,
    in_node_lanes_per_chip,
    longest_line,
    ring_bisection_ports,
)

__all__ = ["BILL", "external_hops", "ports", "resize"]

#: How far above the smallest size a torus may go, so that it is not drawn out.
_SLACK = 1.1


def ports(settings: RailXTorusSettings) -> Ports:
    """What the grid is built of, and its bandwidths in ports per chip."""
    grid = grid_of(settings)
    return grid_ports(
        grid,
        all_to_all=torus_all_to_all_ports((grid.m * grid.columns, grid.m * grid.rows), grid.n),
        bisection=ring_bisection_ports(grid, 2),
    )


def external_hops(settings: RailXTorusSettings) -> float:
    """Mean optical hops of a packet under uniform traffic, minimally routed."""
    return grid_hop_count(grid_of(settings), 0) / settings.m


def resize(settings: RailXTorusSettings, chips: int) -> RailXTorusSettings:
    """The most all-to-all bandwidth among sizes close to the smallest.

    Sizes go up to a tenth above the smallest that has at least so many chips.
    """
    node = settings.m**2
    longest = longest_line(settings.ocs_radix, settings.x_scale, settings.y_scale)
    if longest**2 * node < chips:
        raise too_large(
            chips,
            longest**2 * node,
            f"nodes of {settings.m} x {settings.m} chips, {2 * longest}-port switches",
        )
    pairs = [(x, y) for x in range(2, longest + 1) for y in range(2, x + 1)]
    least = min(x * y * node for x, y in pairs if x * y * node >= chips)
    return best_size(
        [
            replace(settings, x_scale=x, y_scale=y)
            for x, y in pairs
            if least <= x * y * node <= int(_SLACK * least)
        ],
        ports,
    )


BILL = Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip)
