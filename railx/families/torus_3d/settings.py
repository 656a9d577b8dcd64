"""Settings of the family ``torus_3d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.counts import check_boards

__all__ = ["Torus3DSettings"]


@dataclass(frozen=True)
class Torus3DSettings:
    """Chips in ``x_scale`` x ``y_scale`` x ``z_scale``; chip (x, y, z) is number (z *
    y_scale + y) * x_scale + x.

    ``n``: parallel ports on each of the 6 sides of a chip.
    """

    family: Literal["torus_3d"]
    n: Annotated[int, AtLeast(1)]
    x_scale: Annotated[int, AtLeast(2)]
    y_scale: Annotated[int, AtLeast(2)]
    z_scale: Annotated[int, AtLeast(2)]
    port_gbps: Annotated[float, Positive()]
    latency_ns: Annotated[float, NonNegative()]
    board_side: Annotated[int, AtLeast(1)] = 1
    """Chips on a side of a board; links on a board need no transceivers and are in no
    bill. The graph does not tell boards apart.
    """

    def __post_init__(self) -> None:
        check_boards(
            self.board_side, x_scale=self.x_scale, y_scale=self.y_scale, z_scale=self.z_scale
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.x_scale, self.y_scale, self.z_scale

    @property
    def chips(self) -> int:
        return self.x_scale * self.y_scale * self.z_scale
