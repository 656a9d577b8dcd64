"""Settings of the family ``mesh_2d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive

__all__ = ["Mesh2DSettings"]


@dataclass(frozen=True)
class Mesh2DSettings:
    """``x_scale`` by ``y_scale`` chips; chip (x, y) is number y * x_scale + x. ``n``:
    parallel ports on each side of a chip.
    """

    family: Literal["mesh_2d"]
    n: Annotated[int, AtLeast(1)]
    x_scale: Annotated[int, AtLeast(2)]
    y_scale: Annotated[int, AtLeast(2)]
    port_gbps: Annotated[float, Positive()]
    latency_ns: Annotated[float, NonNegative()]
