"""The optimum of a few sequences by trying everything, and costs to try it with."""

import math
from collections.abc import Iterator
from functools import cache

from hypothesis import strategies as st

from railx.performance.sequence_cost import CostModel

__all__ = ["costs", "equals_ms", "optimum_ms"]

DEGREES = (1, 2, 3, 4, 6, 8)


@st.composite
def costs(draw: st.DrawFn) -> CostModel:
    """Cost models of any shape: degrees that are no powers, all-to-all that falls or
    rises with the degree.
    """
    degrees = draw(st.sets(st.sampled_from(DEGREES), min_size=1))
    return CostModel(
        quadratic_ms=draw(st.sampled_from([0.0, 1e-3, 2e-2])),
        linear_ms=draw(st.sampled_from([0.1, 1.0])),
        constant_ms=draw(st.sampled_from([0.0, 1.0, 30.0])),
        all_to_all_ms={
            degree: 0.0 if degree == 1 else draw(st.sampled_from([0.0, 0.02, 0.05, 0.3]))
            for degree in sorted(degrees)
        },
        tokens_per_device=draw(st.sampled_from([20, 60, 200])),
        latency_ms={d: draw(st.sampled_from([0.0, 0.5, 20.0])) for d in sorted(degrees) if d > 1},
        forward_share=1 / 3,
        split_memory=1.0,
    )


def _subsets(whole: int) -> Iterator[int]:
    """Subsets that hold the lowest member."""
    lowest = whole & -whole
    rest = whole ^ lowest
    part = rest
    while True:
        yield part | lowest
        if not part:
            return
        part = (part - 1) & rest


def optimum_ms(lengths: list[int], devices: int, cost: CostModel) -> float:
    """The best plan of all: every cut, every partition into groups, every degree."""

    def members(part: int) -> list[int]:
        return [tokens for index, tokens in enumerate(lengths) if part >> index & 1]

    @cache
    def slowest(part: int, free: int) -> float:
        if not part:
            return 0.0
        return min(
            (
                max(
                    cost.group_time_ms(members(group), degree).total_ms - cost.constant_ms,
                    slowest(part ^ group, free - degree),
                )
                for group in _subsets(part)
                for degree in cost.any_degrees
                if degree <= free and sum(members(group)) <= degree * cost.tokens_per_device
            ),
            default=math.inf,
        )

    @cache
    def total(part: int) -> float:
        if not part:
            return 0.0
        return min(
            cost.constant_ms + slowest(one, devices) + total(part ^ one) for one in _subsets(part)
        )

    return total((1 << len(lengths)) - 1)


def equals_ms(count: int, tokens: int, devices: int, cost: CostModel) -> float:
    """The best plan of equal sequences at degrees that are powers of two.

    Tries every number of sequences of the next micro-batch, and every number and degree
    of its next group.
    """
    degrees = [d for d in cost.any_degrees if d <= devices and not d & (d - 1)]

    @cache
    def slowest(sequences: int, free: int) -> float:
        if not sequences:
            return 0.0
        return min(
            (
                max(
                    cost.group_time_ms([tokens] * size, degree).total_ms - cost.constant_ms,
                    slowest(sequences - size, free - degree),
                )
                for degree in degrees
                if degree <= free
                for size in range(1, sequences + 1)
                if size * tokens <= degree * cost.tokens_per_device
            ),
            default=math.inf,
        )

    best = [0.0]
    for sequences in range(1, count + 1):
        best.append(
            min(
                cost.constant_ms + slowest(size, devices) + best[sequences - size]
                for size in range(1, sequences + 1)
            )
        )
    return best[count]
