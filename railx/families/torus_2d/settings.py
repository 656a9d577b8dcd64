"""Settings of the family ``torus_2d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.counts import check_boards

__all__ = ["Torus2DSettings"]


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
    bill. The graph does not tell boards apart."""

    def __post_init__(self) -> None:
        check_boards(self.board_side, x_scale=self.x_scale, y_scale=self.y_scale)
