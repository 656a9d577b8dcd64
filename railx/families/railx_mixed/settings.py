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
    """``x_scale`` by ``y_scale`` nodes of m x m chips; ``parts_x`` and ``parts_y``
    share out the m * n rails of a line.

    ``rings``: the decomposition of the all-to-all parts. ``ocs_radix``: ports of an
    optical switch; null takes what the longer line needs. ``internal_width``: rate of
    an internal lane over that of an external port.
    """

    family: Literal["railx_mixed"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    x_scale: Annotated[int, AtLeast(2)]
    y_scale: Annotated[int, AtLeast(2)]
    parts_x: Annotated[tuple[PartSettings, ...], NotEmpty()]
    parts_y: Annotated[tuple[PartSettings, ...], NotEmpty()]
    rings: Literal["directed", "undirected"]
    ocs_radix: Annotated[int, AtLeast(2)] | None
    port_gbps: Annotated[float, Positive()]
    internal_width: Annotated[float, Positive()]
    internal_latency_ns: Annotated[float, NonNegative()]
    external_latency_ns: Annotated[float, NonNegative()]

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
