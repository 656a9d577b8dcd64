"""The seeds of a simulation that is repeated."""

from __future__ import annotations

import numpy as np

__all__ = ["repeat_seeds"]


def repeat_seeds(seed: int, repeats: int) -> tuple[int, ...]:
    """``seed`` itself, then seeds drawn from it, ``repeats`` in all.

    More repeats keep those that fewer had.
    """
    drawn = (
        int(np.random.SeedSequence(seed, spawn_key=(repeat,)).generate_state(1)[0])
        for repeat in range(1, repeats)
    )
    return (seed, *drawn)
