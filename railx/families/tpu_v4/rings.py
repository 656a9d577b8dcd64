"""Rings through the lines of family ``tpu_v4``."""

from __future__ import annotations

import numpy as np

from railx.families.tpu_v4.graph import chip_places
from railx.families.tpu_v4.settings import TpuV4Settings
from railx.vocabulary.chip_rings import torus_rings
from railx.vocabulary.line_rings import LineRings

__all__ = ["chip_rings"]


def chip_rings(settings: TpuV4Settings) -> tuple[LineRings, ...]:
    """The rings of every dimension, through the cubes and the optical switches."""
    chip = np.empty(settings.lengths, dtype=np.int64)
    chip[tuple(chip_places(settings))] = np.arange(settings.chips)
    return torus_rings(chip, settings.n)
