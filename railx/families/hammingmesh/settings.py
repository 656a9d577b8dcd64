"""Settings of the family ``hammingmesh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Fraction, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid

__all__ = ["HammingMeshSettings", "grid_of"]


@dataclass(frozen=True)
class HammingMeshSettings:
    """Boards of m x m chips in a grid, with a switch for each row and column of boards.

    Board (X, Y) is number Y * x_scale + X; its chip (x, y) adds y * m + x, as in RailX.
    """

    family: Literal["hammingmesh"]
    """Which network family this is."""

    m: Annotated[int, AtLeast(1)]
    """Chips on a side of a board."""

    n: Annotated[int, AtLeast(1)]
    """Ports on each of the 4 sides of a chip."""

    x_scale: Annotated[int, AtLeast(2)]
    """Boards of a row."""

    y_scale: Annotated[int, AtLeast(2)]
    """Boards of a column."""

    switch_radix: Annotated[int, AtLeast(4)]
    """Ports of a row or column switch, two for each board of its line."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    internal_width: Annotated[float, Positive()]
    """Rate of an internal lane over the rate of an external port."""

    internal_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of a link inside a board, in nanoseconds."""

    external_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between a board and a switch, in nanoseconds."""

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
                    f"got {getattr(self, key)}; allowed: at most {largest} boards per line with two"
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
