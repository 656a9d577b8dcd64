"""Settings of the family ``railx_torus``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid

__all__ = ["RailXTorusSettings", "grid_of"]


@dataclass(frozen=True)
class RailXTorusSettings:
    """RailX set to a torus: (m x_scale) x (m y_scale) chips with n links per side."""

    family: Literal["railx_torus"]
    """Which network family this is."""

    m: Annotated[int, AtLeast(1)]
    """Chips on a side of a node, so that a node is a mesh of m x m chips."""

    n: Annotated[int, AtLeast(1)]
    """Ports on each of the 4 sides of a chip."""

    x_scale: Annotated[int, AtLeast(2)]
    """Nodes of a row."""

    y_scale: Annotated[int, AtLeast(2)]
    """Nodes of a column."""

    ocs_radix: Annotated[int, AtLeast(2)] | None
    """Ports of an optical switch; null: what the longer line needs."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    internal_width: Annotated[float, Positive()]
    """Rate of an internal lane over the rate of an external port."""

    internal_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of a link inside a node, in nanoseconds."""

    external_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of an optical circuit between nodes, in nanoseconds."""

    def __post_init__(self) -> None:
        longest = max(self.x_scale, self.y_scale)
        if self.ocs_radix is not None and self.ocs_radix < 2 * longest:
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: at least {2 * longest}, two ports for each of"
                f" {longest} nodes (or x_scale and y_scale of at most {self.ocs_radix // 2} for"
                " this radix)",
            )


def grid_of(settings: RailXTorusSettings) -> Grid:
    """The grid of nodes behind the settings."""
    return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)
