"""Settings of the family ``railx_hyperx``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid

__all__ = ["RailXHyperXSettings", "grid_of"]


@dataclass(frozen=True)
class RailXHyperXSettings:
    """(r + 1)^2 nodes of m x m chips, r = m * n rails a side.

    ``n``: ports on each of the 4 sides of a chip. ``rings``: the decomposition that the
    rails follow. ``ocs_radix``: ports of an optical switch; null takes what the lines
    need, 2 (r + 1). ``internal_width``: rate of an internal lane over that of an
    external port.
    """

    family: Literal["railx_hyperx"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    rings: Literal["directed", "undirected"]
    ocs_radix: Annotated[int, AtLeast(2)] | None
    port_gbps: Annotated[float, Positive()]
    internal_width: Annotated[float, Positive()]
    internal_latency_ns: Annotated[float, NonNegative()]
    external_latency_ns: Annotated[float, NonNegative()]

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
