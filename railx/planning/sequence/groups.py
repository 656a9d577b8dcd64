"""Assignments of sequences to groups, and their way into a plan.

It is the form that sequence-parallel planners share.
"""

from __future__ import annotations

from dataclasses import dataclass

from railx.planning.format.parts import Group, MicroBatch
from railx.planning.packing import Lengths
from railx.settings import PowerOfTwo
from railx.workload.cost import CostModel

__all__ = ["Assignment", "micro_batch", "micro_batch_ms"]


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
    consecutive ranks in order of falling degree, powers of two before all others, so
    that each of those starts at a multiple of its size.
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
