"""Settings of the family ``hammingmesh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid
from railx.vocabulary.topology import check_size

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

    def __post_init__(self) -> None:
        longest = max(self.x_scale, self.y_scale)
        if self.switch_radix < 2 * longest:
            raise SettingsError(
                "switch_radix",
                f"got {self.switch_radix}; allowed: at least {2 * longest}, two ports for each of"
                f" {longest} boards of a line (or x_scale and y_scale of at most"
                f" {self.switch_radix // 2} for this radix)",
            )
        check_size("x_scale", self.boards * (4 * self.m * (self.m - 1) + 8 * self.m * self.n))

    @property
    def boards(self) -> int:
        return self.x_scale * self.y_scale

    @property
    def chips(self) -> int:
        return self.boards * self.m**2


def grid_of(settings: HammingMeshSettings) -> Grid:
    """The grid of boards behind the settings."""
    return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)
