"""Settings of the family ``railx_dragonfly``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid
from railx.vocabulary.line_parts import (
    PartSettings,
    check_radix,
    check_rails,
    check_rings,
)

__all__ = ["RailXDragonflySettings", "grid_of"]


@dataclass(frozen=True)
class RailXDragonflySettings:
    """RailX set to a Dragonfly: every row of nodes is a group."""

    family: Literal["railx_dragonfly"]
    """Which network family this is."""

    m: Annotated[int, AtLeast(1)]
    """Chips on a side of a node, so that a node is a mesh of m x m chips."""

    n: Annotated[int, AtLeast(1)]
    """Ports on each of the 4 sides of a chip."""

    columns: Annotated[int, AtLeast(2)]
    """Nodes of a group; columns - 1 divides r = m * n, for r / (columns - 1) copies of
    the all-to-all of a row.
    """

    rows: Annotated[int, AtLeast(2)]
    """Groups."""

    rings: Literal["directed", "undirected"]
    """The Hamiltonian decomposition of the all-to-all of a row."""

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
        rails = self.m * self.n
        check_rails(rails)
        if rails % (self.columns - 1):
            sizes = sorted(
                (d + 1 for d in range(1, rails + 1) if rails % d == 0),
                key=lambda size: (abs(size - self.columns), size),
            )
            raise SettingsError(
                "columns",
                f"got {self.columns}; allowed: a number whose columns - 1 divides m * n = {rails}"
                f" rails; the nearest are {' and '.join(map(str, sorted(sizes[:2])))}",
            )
        check_rings("columns", (_row(self),), self.rings)
        most = 2 * rails * self.columns + 1
        if self.rows > most:
            raise SettingsError(
                "rows",
                f"got {self.rows}; allowed: at most {most}, {self.columns} columns of {rails} rails"
                f" cannot join more; the nearest are {most - 1} and {most}",
            )
        check_radix(self.ocs_radix, self.columns, self.rows)


def grid_of(settings: RailXDragonflySettings) -> Grid:
    """The grid of nodes behind the settings."""
    return Grid.of(settings, columns=settings.columns, rows=settings.rows)


def _row(settings: RailXDragonflySettings) -> PartSettings:
    return PartSettings("all_to_all", settings.m * settings.n, settings.columns, 1)
