"""Packing sequences into bins of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from railx.planning.format.parts import PlanError

__all__ = ["Lengths", "best_fit_decreasing", "check_lengths_fit", "levelled"]

Lengths = npt.NDArray[np.int64]


def best_fit_decreasing(lengths: npt.ArrayLike, capacity: int) -> list[list[int]]:
    """Pack lengths [n] into bins of ``capacity`` tokens.

    Longest first, each into the fullest bin that still takes it. Returns the positions
    in each bin, bins in the order in which they were opened.
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    bins: list[list[int]] = []
    room = np.empty(0, dtype=np.int64)
    for position in np.argsort(-tokens, kind="stable"):
        left = room - tokens[position]
        fitting = np.flatnonzero(left >= 0)
        if len(fitting):
            chosen = int(fitting[np.argmin(left[fitting])])
        else:
            chosen = len(bins)
            bins.append([])
            room = np.append(room, capacity)
        bins[chosen].append(int(position))
        room[chosen] -= tokens[position]
    return bins


def check_lengths_fit(sequences: Lengths, lengths: Lengths, limit: int, where: str) -> None:
    """Refuse a longest sequence over ``limit`` tokens.

    PlanError names it; ``where`` says what the limit is.
    """
    longest = int(np.argmax(lengths))
    if lengths[longest] > limit:
        raise PlanError(
            f"sequence {sequences[longest]}: {lengths[longest]} tokens; allowed: at most {limit},"
            f" the longest that {where} holds"
        )


def levelled(positions: Sequence[int], lengths: Lengths, bins: int) -> list[list[int]]:
    """Distribute positions over bins by tokens.

    Longest first, each to the bin with the fewest tokens (no capacity).
    """
    filled: list[list[int]] = [[] for _ in range(bins)]
    tokens = np.zeros(bins, dtype=np.int64)
    for position in sorted(positions, key=lambda item: (-lengths[item], item)):
        chosen = int(np.argmin(tokens))
        filled[chosen].append(position)
        tokens[chosen] += lengths[position]
    return [members for members in filled if members]
