"""The seeds of a repeated simulation."""

from __future__ import annotations

import numpy as np

__all__ = ["repeat_seeds"]


def repeat_seeds(seed: int, repeats: int) -> tuple[int, ...]:
    """``repeats`` seeds: ``seed``, then draws from it; more repeats only add seeds."""
    drawn = (
        int(np.random.SeedSequence(seed, spawn_key=(repeat,)).generate_state(1)[0])
        for repeat in range(1, repeats)
    )
    return (seed, *drawn)
