"""Settings of the family ``railx_mixed``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, NotEmpty, Positive
from railx.vocabulary.grid import Grid
from railx.vocabulary.line_parts import (
    PartSettings,
    check_line,
    check_radix,
    check_rings,
)

__all__ = ["RailXMixedSettings", "grid_of"]


@dataclass(frozen=True)
class RailXMixedSettings:
    """RailX with lines of mixed parts: some rails as rings, others as all-to-alls."""

    family: Literal["railx_mixed"]
    """Which network family this is."""

    m: Annotated[int, AtLeast(1)]
    """Chips on a side of a node, so that a node is a mesh of m x m chips."""

    n: Annotated[int, AtLeast(1)]
    """Ports on each of the 4 sides of a chip."""

    x_scale: Annotated[int, AtLeast(2)]
    """Nodes of a row."""

    y_scale: Annotated[int, AtLeast(2)]
    """Nodes of a column."""

    parts_x: Annotated[tuple[PartSettings, ...], NotEmpty()]
    """Parts that share out the m * n rails of a row."""

    parts_y: Annotated[tuple[PartSettings, ...], NotEmpty()]
    """Parts that share out the m * n rails of a column."""

    rings: Literal["directed", "undirected"]
    """The Hamiltonian decomposition of the all-to-all parts."""

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
        for key, parts, length in (
            ("parts_x", self.parts_x, self.x_scale),
            ("parts_y", self.parts_y, self.y_scale),
        ):
            check_line(key, parts, length, self.m * self.n)
            check_rings(key, parts, self.rings)
        check_radix(self.ocs_radix, self.x_scale, self.y_scale)


def grid_of(settings: RailXMixedSettings) -> Grid:
    """The grid of nodes behind the settings."""
    return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)
