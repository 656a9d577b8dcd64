"""RailX set to a 2D torus of nodes: all rails of a line carry the same ring (RailX
simulator, its 2D torus).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.settings import AtLeast, NonNegative, Positive, SettingsError, to_dict
from railx.topology.model import Topology, check_size
from railx.topology.railx_grid import Grid, build_grid, grid_halves

__all__ = ["RailXTorusSettings", "bisection_ports", "build", "grid_of", "halves", "ports_per_chip"]


@dataclass(frozen=True)
class RailXTorusSettings:
    """``x_scale`` by ``y_scale`` nodes of m x m chips: an (m x_scale) x (m y_scale)
    torus of chips with n links a side.

    ``ocs_radix``: ports of an optical switch; null takes what the longer dimension
    needs. ``internal_width``: rate of an internal lane over that of an external port.
    """

    family: Literal["railx_torus"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    x_scale: Annotated[int, AtLeast(2)]
    y_scale: Annotated[int, AtLeast(2)]
    ocs_radix: Annotated[int, AtLeast(2)] | None
    port_gbps: Annotated[float, Positive()]
    internal_width: Annotated[float, Positive()]
    internal_latency_ns: Annotated[float, NonNegative()]
    external_latency_ns: Annotated[float, NonNegative()]

    def __post_init__(self) -> None:
        longest = max(self.x_scale, self.y_scale)
        if self.ocs_radix is not None and self.ocs_radix < 2 * longest:
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: at least {2 * longest}, two ports for each of"
                f" {longest} nodes (or x_scale and y_scale of at most {self.ocs_radix // 2} for"
                " this radix)",
            )
        check_size("x_scale", grid_of(self).link_rows)


def grid_of(settings: RailXTorusSettings) -> Grid:
    """The grid of nodes behind the settings."""
    return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)


def build(settings: RailXTorusSettings) -> Topology:
    """Build the topology: rail i of every line closes the ring 0, 1, 2, ..."""
    grid = grid_of(settings)
    ring_x, ring_y = (
        np.tile(np.arange(length), (grid.rails, 1)) for length in (grid.columns, grid.rows)
    )
    return build_grid(settings.family, to_dict(settings), grid, ring_x, ring_y)


def halves(settings: RailXTorusSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the longer dimension is cut in the middle."""
    return grid_halves(grid_of(settings))


def bisection_ports(settings: RailXTorusSettings) -> int:
    """Ports in one direction across that cut: both boundaries of the cut rings, r rails
    in each line of the other dimension.
    """
    return 2 * settings.m * settings.n * min(settings.x_scale, settings.y_scale)


def ports_per_chip(settings: RailXTorusSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n
