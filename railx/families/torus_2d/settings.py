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
    """``x_scale`` by ``y_scale`` chips; chip (x, y) is number y * x_scale + x. ``n``:
    parallel ports on each side of a chip.
    """

    family: Literal["torus_2d"]
    n: Annotated[int, AtLeast(1)]
    x_scale: Annotated[int, AtLeast(2)]
    y_scale: Annotated[int, AtLeast(2)]
    port_gbps: Annotated[float, Positive()]
    latency_ns: Annotated[float, NonNegative()]
    board_side: Annotated[int, AtLeast(1)] = 1
    """Chips on a side of a board; links on a board need no transceivers and are in no
    bill. The graph does not tell boards apart.
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
