"""Rings through the lines of family ``hyperx``."""

from __future__ import annotations

import numpy as np

from railx.families.hyperx.settings import HyperXSettings
from railx.vocabulary.chip_rings import joined_rings
from railx.vocabulary.line_rings import LineRings

__all__ = ["chip_rings"]


def chip_rings(settings: HyperXSettings) -> tuple[LineRings, ...] | None:
    """The rings of every dimension where the chips are the routers.

    None with switches.
    """
    if not settings.switchless:
        return None
    chip = np.arange(settings.chips).reshape(settings.shape[::-1]).transpose()
    return joined_rings(chip, settings.lanes)
