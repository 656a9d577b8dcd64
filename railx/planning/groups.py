"""Packing sequences into bins of tokens and groups of ranks, for all planners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import Group, MicroBatch, PlanError
from railx.settings import PowerOfTwo

__all__ = [
    "Assignment",
    "Lengths",
    "best_fit_decreasing",
    "check_lengths_fit",
    "levelled",
    "micro_batch",
    "micro_batch_ms",
]

Lengths = npt.NDArray[np.int64]


def best_fit_decreasing(
    lengths: npt.ArrayLike, capacity: int, opened: Sequence[int] = ()
) -> list[list[int]]:
    """Pack lengths [n] into bins of ``capacity`` tokens.

    Longest first, each into the fullest bin with room. Returns the positions in each
    bin, in order of opening, first the bins that start with ``opened`` tokens.
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    bins: list[list[int]] = [[] for _ in opened]
    room = capacity - np.array(opened, dtype=np.int64)
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

    PlanError names it; ``where`` describes the limit.
    """
    longest = int(np.argmax(lengths))
    if lengths[longest] > limit:
        raise PlanError(
            f"sequence {sequences[longest]}: {lengths[longest]} tokens; allowed: at most {limit},"
            f" the longest that {where} holds"
        )


def levelled(positions: Sequence[int], lengths: Lengths, bins: int) -> list[list[int]]:
    """Distribute positions over bins by tokens, longest first, to the least
    loaded bin.
    """
    filled: list[list[int]] = [[] for _ in range(bins)]
    tokens = np.zeros(bins, dtype=np.int64)
    for position in sorted(positions, key=lambda item: (-lengths[item], item)):
        chosen = int(np.argmin(tokens))
        filled[chosen].append(position)
        tokens[chosen] += lengths[position]
    return [members for members in filled if members]


@dataclass(frozen=True)
class Assignment:
    """One micro-batch as degrees and positions.

    ``groups[i]`` lists the positions (in the batch) of the sequences in a group of
    degree ``degrees[i]``.
    """

    degrees: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


def micro_batch_ms(assignment: Assignment, lengths: Lengths, cost: CostModel) -> float:
    """Predicted time of a micro-batch: its slowest group."""
    return max(
        cost.group_time_ms(lengths[list(group)], degree).total_ms
        for degree, group in zip(assignment.degrees, assignment.groups, strict=True)
    )


def micro_batch(
    assignment: Assignment, sequences: Lengths, lengths: Lengths, cost: CostModel
) -> MicroBatch:
    """The plan's form of an assignment.

    ``sequences`` [n] are corpus rows, ``lengths`` [n] their tokens. Groups take
    consecutive ranks in order of falling degree, powers of two first, so that each of
    those starts at a multiple of its size.
    """
    groups, rank = [], 0
    order = sorted(
        range(len(assignment.degrees)),
        key=lambda index: (
            not PowerOfTwo().accepts(assignment.degrees[index]),
            -assignment.degrees[index],
            min(assignment.groups[index]),
        ),
    )
    for index in order:
        degree, members = (
            assignment.degrees[index],
            sorted(assignment.groups[index], key=lambda member: (-lengths[member], member)),
        )
        member_lengths = lengths[members]
        time = cost.group_time_ms(member_lengths, degree)
        groups.append(
            Group(
                ranks=tuple(range(rank, rank + degree)),
                sequences=tuple(int(row) for row in sequences[members]),
                lengths=tuple(int(length) for length in member_lengths),
                predicted_ms=time.total_ms,
                predicted_compute_ms=time.compute_ms,
                predicted_all_to_all_ms=time.all_to_all_ms,
            )
        )
        rank += degree
    return MicroBatch(tuple(groups), max(group.predicted_ms for group in groups))
