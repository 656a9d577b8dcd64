"""What the batches of any sequence-parallel planner must keep to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from railx.performance.sequence_cost import CostModel
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.planner import PlanningTask
from railx.workload.batches import SampledBatch
from tests.builders import checked

__all__ = ["check_batch", "planned_of", "task_of"]


def planned_of(
    plan: Callable[..., SequenceParallelBatch], lengths: Sequence[int], *rest: Any
) -> SequenceParallelBatch:
    """A plan of these lengths, made twice: both must be the same."""
    made, again = (plan(0, _batch(lengths), *rest) for _ in range(2))
    assert made == again
    return made


def check_batch(
    made: SequenceParallelBatch,
    lengths: Sequence[int],
    devices: int,
    cost: CostModel,
    use_plan_times: bool = False,
) -> None:
    """Every sequence once, memory and devices enough, times those of the cost model
    (``use_plan_times``: of the planner's own).
    """
    planned = [s for m in made.micro_batches for group in m.groups for s in group.sequences]
    assert sorted(planned) == [10 + index for index in range(len(lengths))]
    for micro_batch in made.micro_batches:
        ranks = [rank for group in micro_batch.groups for rank in group.ranks]
        assert len(ranks) == len(set(ranks))
        assert max(ranks) < devices
        assert micro_batch.predicted_ms == max(g.predicted_ms for g in micro_batch.groups)
        for group in micro_batch.groups:
            assert [lengths[s - 10] for s in group.sequences] == list(group.lengths)
            assert group.tokens <= cost.tokens_per_device * group.degree
            if not use_plan_times:
                time = cost.group_time_ms(group.lengths, group.degree)
                assert group.predicted_ms == pytest.approx(time.total_ms, rel=1e-12)


def task_of(lengths: Sequence[int], devices: int, cost: CostModel) -> PlanningTask:
    """One batch of these lengths for the tiny model on a small cluster."""
    return PlanningTask(
        cost,
        max(lengths),
        checked("cluster", "cpu_4", devices=devices),
        checked("model", "tiny"),
        checked("cost_model", "analytic"),
        (_batch(lengths),),
    )


def _batch(lengths: Sequence[int]) -> SampledBatch:
    return SampledBatch(10 + np.arange(len(lengths)), np.asarray(lengths, dtype=np.int64))
