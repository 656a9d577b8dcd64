"""Settings of the family ``torus_3d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.counts import check_boards

__all__ = ["Torus3DSettings"]


@dataclass(frozen=True)
class Torus3DSettings:
    """A plain 3D torus of chips.

    Chip (x, y, z) is number (z * y_scale + y) * x_scale + x.
    """

    family: Literal["torus_3d"]
    """Which network family this is."""

    n: Annotated[int, AtLeast(1)]
    """Parallel ports on each of the 6 sides of a chip."""

    x_scale: Annotated[int, AtLeast(2)]
    """Chips along x."""

    y_scale: Annotated[int, AtLeast(2)]
    """Chips along y."""

    z_scale: Annotated[int, AtLeast(2)]
    """Chips along z."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    latency_ns: Annotated[float, NonNegative()]
    """Time of flight of a link, in nanoseconds."""

    board_side: Annotated[int, AtLeast(1)] = 1
    """Chips on a side of a board; the graph does not tell boards apart. Links on a
    board need no transceivers and are in no bill.
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
