"""Settings of the family ``torus_2d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.topology import check_size

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

    def __post_init__(self) -> None:
        check_size("x_scale", 4 * self.x_scale * self.y_scale)
