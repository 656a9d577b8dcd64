"""What boards cost whose lines of chips are joined by electrical switches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from railx.families.hammingmesh.settings import HammingMeshSettings
from railx.vocabulary.counts import Bill, Ports, too_large

__all__ = ["BILL", "ports", "resize"]


@dataclass(frozen=True)
class _Dimension:
    """The lines of one dimension.

    Ends at boards, uplinks of the leaves, and bounds of all-to-all and of the cut in
    ports per chip.
    """

    ends: int
    uplinks: int
    all_to_all: float
    cut: float


def ports(settings: HammingMeshSettings) -> Ports:
    """What the lines are joined by, and the bandwidths in ports per chip.

    An end is a port of a board at a switch. There are 2 n of them per board and line of
    chips, and a board has m lines in each dimension. A line of more ends than a switch
    has ports is a two-level tree.
    """
    rows, columns = (
        _dimension(settings, boards) for boards in (settings.x_scale, settings.y_scale)
    )
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={
            "row": 2 * rows.ends,
            "column": 2 * columns.ends,
            "uplink": 2 * (rows.uplinks + columns.uplinks),
        },
        injection=4 * settings.n,
        all_to_all=min(rows.all_to_all, columns.all_to_all),
        bisection=min(rows.cut, columns.cut),
        electrical_switch_ports=sum(line.ends + 2 * line.uplinks for line in (rows, columns)),
    )


def resize(settings: HammingMeshSettings, chips: int) -> HammingMeshSettings:
    """As near to a square of boards as holds the chips."""
    longest, boards = settings.switch_radix**2 // 4, math.ceil(chips / settings.m**2)
    if boards > longest**2:
        raise too_large(
            chips,
            longest**2 * settings.m**2,
            f"two levels of {settings.switch_radix}-port switches in a line",
        )
    row = max(2, math.ceil(math.sqrt(boards) - 1e-9))
    return replace(settings, x_scale=row, y_scale=max(2, math.ceil(boards / row)))


def _dimension(settings: HammingMeshSettings, boards: int) -> _Dimension:
    two_levels = 2 * boards > settings.switch_radix
    ends = 2 * settings.m * settings.n * settings.boards
    return _Dimension(
        ends=ends,
        uplinks=math.ceil(ends * settings.taper) if two_levels else 0,
        all_to_all=min(_bounds(settings, boards, two_levels=two_levels)),
        cut=2 * settings.n / settings.m * (settings.taper if two_levels else 1.0),
    )


def _bounds(settings: HammingMeshSettings, boards: int, *, two_levels: bool) -> Iterator[float]:
    """All-to-all through the boards' ports, and through the uplinks of the leaves."""
    port, chips = 2 * settings.n / settings.m, settings.chips
    yield port / ((boards - 1) / boards * chips / (chips - 1))
    under = max(1, int(settings.switch_radix / (1 + settings.taper)) // 2)
    if two_levels and under < boards:
        yield port * settings.taper / ((boards - under) / boards * chips / (chips - 1))


BILL = Bill(ports=ports, resize=resize, copper=("row", "column"))
