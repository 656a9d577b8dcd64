"""Settings of the family ``hammingmesh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Fraction, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid

__all__ = ["HammingMeshSettings", "grid_of"]


@dataclass(frozen=True)
class HammingMeshSettings:
    """``x_scale`` by ``y_scale`` boards of ``m`` x ``m`` chips with ``n`` ports on each
    of their 4 sides.

    Board (X, Y) is number Y * x_scale + X; its chip (x, y) adds y * m + x, as in RailX.
    ``switch_radix``: ports of a row or column switch, two for each board of its line.
    ``internal_width``: rate of an internal lane over that of an external port.
    """

    family: Literal["hammingmesh"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    x_scale: Annotated[int, AtLeast(2)]
    y_scale: Annotated[int, AtLeast(2)]
    switch_radix: Annotated[int, AtLeast(4)]
    port_gbps: Annotated[float, Positive()]
    internal_width: Annotated[float, Positive()]
    internal_latency_ns: Annotated[float, NonNegative()]
    external_latency_ns: Annotated[float, NonNegative()]

    taper: Annotated[float, Fraction()] = 1.0
    """Uplinks per downlink of the two-level trees that join lines of more boards than a
    switch has room for; 1 is non-blocking. The graph has single switches only.
    """

    def __post_init__(self) -> None:
        largest = self.switch_radix**2 // 4
        for key in ("x_scale", "y_scale"):
            if getattr(self, key) > largest:
                raise SettingsError(
                    key,
                    f"got {getattr(self, key)}; allowed: at most {largest} boards a line with two"
                    f" levels of {self.switch_radix}-port switches; the nearest is {largest}",
                )

    @property
    def boards(self) -> int:
        return self.x_scale * self.y_scale

    @property
    def chips(self) -> int:
        return self.boards * self.m**2


def grid_of(settings: HammingMeshSettings) -> Grid:
    """The grid of boards behind the settings."""
    return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)
