"""Settings of the family ``railx_twisted_torus``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid

__all__ = ["RailXTwistedTorusSettings", "grid_of"]


@dataclass(frozen=True)
class RailXTwistedTorusSettings:
    """RailX set to a twisted torus, with rows twice as long as columns."""

    family: Literal["railx_twisted_torus"]
    """Which network family this is."""

    m: Annotated[int, AtLeast(1)]
    """Chips on a side of a node, so that a node is a mesh of m x m chips."""

    n: Annotated[int, AtLeast(1)]
    """Ports on each of the 4 sides of a chip."""

    x_scale: Annotated[int, AtLeast(4)]
    """Nodes of a row, 2 y_scale."""

    y_scale: Annotated[int, AtLeast(2)]
    """Nodes of a column."""

    wrap: Literal["twisted", "straight"]
    """How a column closes: twisted by y_scale columns, or straight (a plain torus on
    the same cabling).
    """

    ocs_radix: Annotated[int, AtLeast(2)] | None
    """Ports of an optical switch; null: what rows and column pairs need, 2 x_scale."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    internal_width: Annotated[float, Positive()]
    """Rate of an internal lane over the rate of an external port."""

    internal_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of a link inside a node, in nanoseconds."""

    external_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of an optical circuit between nodes, in nanoseconds."""

    def __post_init__(self) -> None:
        if self.x_scale != 2 * self.y_scale:
            near = sorted({self.y_scale, self.x_scale // 2, -(-self.x_scale // 2)})
            raise SettingsError(
                "x_scale",
                f"got {self.x_scale} with y_scale = {self.y_scale}; allowed: x_scale = 2 y_scale;"
                f" the nearest are {' and '.join(f'{2 * y} x {y}' for y in near)}",
            )
        if self.ocs_radix is not None and self.ocs_radix < 2 * self.x_scale:
            most = self.ocs_radix // 4
            fit = (
                f"or {2 * most} x {most} nodes for this radix"
                if most >= 2
                else "no size fits this radix"
            )
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: at least {2 * self.x_scale}, two ports for each of"
                f" {self.x_scale} nodes of a row or of a pair of columns ({fit})",
            )


def grid_of(settings: RailXTwistedTorusSettings) -> Grid:
    """The grid of nodes behind the settings."""
    return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)
