"""Settings of the family ``torus_3d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.topology import check_size

__all__ = ["Torus3DSettings"]


@dataclass(frozen=True)
class Torus3DSettings:
    """A plain 3D torus of chips; chip (x, y, z) is number (z * y_scale + y) * x_scale +
    x.
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

    def __post_init__(self) -> None:
        check_size("x_scale", 6 * self.chips)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.x_scale, self.y_scale, self.z_scale

    @property
    def chips(self) -> int:
        return self.x_scale * self.y_scale * self.z_scale
