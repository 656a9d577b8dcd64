"""What a RailX grid costs that is set to a 2D HyperX.

Every row and column of r + 1 nodes is one all-to-all.
"""

from __future__ import annotations

from dataclasses import replace

from railx.families.railx_hyperx.settings import RailXHyperXSettings, grid_of
from railx.families.railx_split import bill as split
from railx.families.railx_split.settings import RailXSplitSettings
from railx.vocabulary.counts import Bill, Ports
from railx.vocabulary.grid_counts import (
    grid_ports,
    hyperx_all_to_all_ports,
    hyperx_bisection_ports,
    hyperx_external_hops,
    in_node_lanes_per_chip,
)

__all__ = ["BILL", "external_hops", "ports", "resize", "square"]


def ports(settings: RailXHyperXSettings) -> Ports:
    """What the grid is built of, and its bandwidths in ports per chip."""
    grid = grid_of(settings)
    dimensions = [(grid.columns, 1), (grid.rows, 1)]
    return grid_ports(
        grid,
        all_to_all=hyperx_all_to_all_ports(grid, dimensions),
        bisection=hyperx_bisection_ports(grid, dimensions),
    )


def external_hops(settings: RailXHyperXSettings) -> float:
    """Mean optical hops of a packet under uniform traffic, minimally routed."""
    grid = grid_of(settings)
    return hyperx_external_hops(grid, (grid.columns, grid.rows))


def resize(settings: RailXHyperXSettings, chips: int) -> RailXHyperXSettings | RailXSplitSettings:
    """The smallest grid of whole all-to-alls with at least so many chips.

    Another than the full square is a ``railx_split`` of one size per line.
    """
    side, rails = settings.m * settings.n + 1, settings.m * settings.n
    sized = split.resize(
        RailXSplitSettings(
            family="railx_split",
            m=settings.m,
            n=settings.n,
            sizes_x=(side,),
            split_x=(rails,),
            sizes_y=(side,),
            split_y=(rails,),
            rings="undirected",
            ocs_radix=settings.ocs_radix,
            port_gbps=settings.port_gbps,
            internal_width=settings.internal_width,
            internal_latency_ns=settings.internal_latency_ns,
            external_latency_ns=settings.external_latency_ns,
        ),
        chips,
    )
    return settings if sized.sizes_x == sized.sizes_y == (side,) else sized


def square(settings: RailXHyperXSettings, m: int | None, n: int | None) -> RailXHyperXSettings:
    """The largest square all-to-all of nodes of ``m`` x ``m`` chips.

    They have ``n`` ports per side (None: as they are) and r + 1 nodes in a line, on
    switches with just the ports for it.
    """
    m, n = settings.m if m is None else m, settings.n if n is None else n
    rings = "undirected" if m * n in (3, 5) else settings.rings
    return replace(settings, m=m, n=n, rings=rings, ocs_radix=2 * (m * n + 1))


BILL = Bill(
    ports=ports,
    resize=resize,
    in_node_lanes=in_node_lanes_per_chip,
    square=square,
)
