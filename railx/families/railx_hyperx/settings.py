"""Settings of the family ``railx_hyperx``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid

__all__ = ["RailXHyperXSettings", "grid_of"]


@dataclass(frozen=True)
class RailXHyperXSettings:
    """RailX set to a 2D HyperX.

    (r + 1)^2 nodes of m x m chips, r = m * n rails per side.
    """

    family: Literal["railx_hyperx"]
    """Which network family this is."""

    m: Annotated[int, AtLeast(1)]
    """Chips on a side of a node, so that a node is a mesh of m x m chips."""

    n: Annotated[int, AtLeast(1)]
    """Ports on each of the 4 sides of a chip."""

    rings: Literal["directed", "undirected"]
    """The Hamiltonian decomposition that the rails of a line follow."""

    ocs_radix: Annotated[int, AtLeast(2)] | None
    """Ports of an optical switch; null: what the lines need, 2 (r + 1)."""

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
        if rails < 2:
            raise SettingsError(
                "n",
                f"m * n = {rails} rail cannot close a ring over its 2 nodes; allowed: m * n of at"
                " least 2",
            )
        if rails in (3, 5) and self.rings == "directed":
            raise SettingsError(
                "n",
                f"m * n = {rails} rails make lines of N = {rails + 1} nodes, and K*_{rails + 1} has"
                f" no directed Hamiltonian decomposition (nor has K*_{10 - rails - 1}); allowed: m"
                " * n = 2, 4 or at least 6, or rings=undirected",
            )
        self._check_radix(rails)

    def _check_radix(self, rails: int) -> None:
        needed = 2 * (rails + 1)
        if self.ocs_radix is not None and self.ocs_radix < needed:
            fits = (self.ocs_radix // 2 - 1) // self.m
            fit = (
                f"or n = {fits} for this radix"
                if fits * self.m >= 2
                else "no n fits this radix with this m"
            )
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: at least {needed}, two ports for each of"
                f" {rails + 1} nodes ({fit})",
            )


def grid_of(settings: RailXHyperXSettings) -> Grid:
    """The grid of nodes behind the settings."""
    side = settings.m * settings.n + 1
    return Grid.of(settings, columns=side, rows=side)
