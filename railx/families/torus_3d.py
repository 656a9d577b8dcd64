"""A plain 3D torus: single chips with n parallel links to each of 6 neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Literal

import numpy as np

from railx.families.chip_grids import ChipTorusSettings, torus_family
from railx.settings import AtLeast
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.line_rings import torus_rings

__all__ = ["FAMILY", "Torus3DSettings"]


@dataclass(frozen=True)
class Torus3DSettings(ChipTorusSettings):
    """A plain 3D torus of chips; chip (x, y, z) is number (z * y_scale + y) * x_scale +
    x.
    """

    family: Literal["torus_3d"]

    x_scale: Annotated[int, AtLeast(2)] = 4

    y_scale: Annotated[int, AtLeast(2)] = 4

    z_scale: Annotated[int, AtLeast(2)] = 4
    """Chips along z."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips along each dimension, x first."""
        return self.x_scale, self.y_scale, self.z_scale


def node_hop_counts(settings: Torus3DSettings) -> IntArray:
    """Ordered pairs of chips that are h links apart (index h) round the three rings."""
    steps = [np.minimum(np.arange(length), length - np.arange(length)) for length in settings.shape]
    return reduce(np.convolve, [len(step) * np.bincount(step) for step in steps])


FAMILY = torus_family(
    "torus_3d",
    Torus3DSettings,
    node_hop_counts=node_hop_counts,
    chip_rings=lambda of: torus_rings(np.arange(of.chips).reshape(of.shape[::-1]).T, of.n),
)
