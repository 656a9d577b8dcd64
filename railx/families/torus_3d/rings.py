"""Rings through the lines of family ``torus_3d``."""

from __future__ import annotations

import numpy as np

from railx.families.torus_3d.settings import Torus3DSettings
from railx.vocabulary.chip_rings import torus_rings
from railx.vocabulary.line_rings import LineRings

__all__ = ["chip_rings"]


def chip_rings(settings: Torus3DSettings) -> tuple[LineRings, ...]:
    """The rings of every dimension."""
    chip = np.arange(settings.chips).reshape(settings.shape[::-1]).transpose()
    return torus_rings(chip, settings.n)
