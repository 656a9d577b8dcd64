"""Settings of the family ``railx_torus``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.grid import Grid

__all__ = ["RailXTorusSettings", "grid_of"]


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


def grid_of(settings: RailXTorusSettings) -> Grid:
    """The grid of nodes behind the settings."""
    return Grid.of(settings, columns=settings.x_scale, rows=settings.y_scale)
