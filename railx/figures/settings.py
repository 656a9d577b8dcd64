"""What the settings of every figure have: size, resolution, size of its type.

No plotting library is needed to check them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import Between

__all__ = ["AxisScale", "CanvasSettings"]

AxisScale = Literal["linear", "log"]


@dataclass(frozen=True)
class CanvasSettings:
    """What every figure has."""

    figure: str
    """Which figure it is; a ``Literal`` with the figure's name in each of them."""

    width_inches: Annotated[float, Between(3, 30)]
    """Width on paper in inches."""

    height_inches: Annotated[float, Between(2, 30)]
    """Height on paper in inches."""

    dpi: Annotated[int, Between(50, 600)]
    """Pixels per inch of the PNG."""

    text_points: Annotated[float, Between(6, 16)]
    """Size of all text in points, at the width on paper."""
