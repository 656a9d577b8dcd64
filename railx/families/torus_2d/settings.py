"""Settings of the family ``torus_2d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.counts import check_boards
from railx.vocabulary.grid import Grid

__all__ = ["Torus2DSettings", "grid_of"]


@dataclass(frozen=True)
class Torus2DSettings:
    """A plain 2D torus of chips; chip (x, y) is number y * x_scale + x."""

    family: Literal["torus_2d"]
    """Which network family this is."""

    n: Annotated[int, AtLeast(1)]
    """Parallel ports on each side of a chip."""

    x_scale: Annotated[int, AtLeast(2)]
    """Chips of a row."""

    y_scale: Annotated[int, AtLeast(2)]
    """Chips of a column."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    latency_ns: Annotated[float, NonNegative()]
    """Time of flight of a link, in nanoseconds."""

    board_side: Annotated[int, AtLeast(1)] = 1
    """Chips on a side of a board; the graph does not tell boards apart. Links on a
    board need no transceivers and are in no bill.
    """

    def __post_init__(self) -> None:
        check_boards(self.board_side, x_scale=self.x_scale, y_scale=self.y_scale)


def grid_of(settings: Torus2DSettings) -> Grid:
    """The grid of chips behind the settings: nodes of one chip."""
    return Grid(
        m=1,
        n=settings.n,
        columns=settings.x_scale,
        rows=settings.y_scale,
        port_gbps=settings.port_gbps,
        internal_width=1.0,
        internal_latency_ns=0.0,
        external_latency_ns=settings.latency_ns,
    )
