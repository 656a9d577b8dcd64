"""Settings of the family ``mesh_2d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive

__all__ = ["Mesh2DSettings"]


@dataclass(frozen=True)
class Mesh2DSettings:
    """A plain 2D mesh of chips; chip (x, y) is number y * x_scale + x."""

    family: Literal["mesh_2d"]
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
