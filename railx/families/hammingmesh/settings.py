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
