"""Groups that work through several passes before they meet the others again.

Some planners let each group run pass after pass and wait for nobody. A plan knows
micro-batches that all groups begin together, so the passes of all groups become
micro-batches, the first of each in the first. Both times are predicted: that of the
plan, and that without the waiting, which the planner's own runtime would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from railx.planning.groups import Assignment, Lengths
from railx.workload.cost import CostModel

__all__ = ["Passes", "in_step", "packed_in_order", "without_waiting_ms"]


@dataclass(frozen=True)
class Passes:
    """A group of ``degree`` ranks and the positions of each of its passes."""

    degree: int
    passes: tuple[tuple[int, ...], ...]


def packed_in_order(
    positions: Sequence[int], lengths: Lengths, capacity: int
) -> tuple[tuple[int, ...], ...]:
    """Cut positions into passes of at most ``capacity`` tokens, in the order given.

    Each one must fit alone.
    """
    passes: list[list[int]] = []
    room = 0
    for position in positions:
        if not passes or lengths[position] > room:
            passes.append([])
            room = capacity
        passes[-1].append(position)
        room -= int(lengths[position])
    return tuple(map(tuple, passes))


def in_step(groups: Sequence[Passes]) -> list[Assignment]:
    """The groups' passes as micro-batches: the first ones, the second ones, ..."""
    rounds = max(len(group.passes) for group in groups)
    made = []
    for index in range(rounds):
        busy = [group for group in groups if index < len(group.passes)]
        made.append(
            Assignment(
                tuple(group.degree for group in busy),
                tuple(group.passes[index] for group in busy),
            )
        )
    return made


def without_waiting_ms(groups: Sequence[Passes], lengths: Lengths, cost: CostModel) -> float:
    """Time of the slowest group where none waits for another between passes."""
    return max(
        sum(cost.group_time_ms(lengths[list(one)], group.degree).total_ms for one in group.passes)
        for group in groups
    )
