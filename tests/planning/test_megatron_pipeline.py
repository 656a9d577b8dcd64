"""Megatron-LM's pipelines: times and memory by hand, shapes, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from railx.performance.decoder import stage_parameters
from railx.performance.pipeline_cost import PipelineShape, build_pipeline_cost
from railx.performance.sequence_cost import build_cost_model
from railx.planning.format.parts import PlanError
from railx.planning.format.predictions import tensor_ranks
from railx.planning.planner import PlanningTask
from railx.planning.rivals.megatron import (
    MEGATRON,
    MEGATRON_PIPELINE,
    MegatronSettings,
    every_shape,
    stage_cost,
)
from railx.workload.batches import SampledBatch
from tests.builders import checked
from tests.planning.pipeline_rules import check_pipelines


def _task(*lengths: int, longest: int | None = None, **constants: Any) -> PlanningTask:
    """GPT-7B on FlexSP's 64 devices."""
    cluster, model = checked("cluster", "a100_64"), checked("model", "gpt_7b")
    costs = checked("cost_model", "flexsp_7b", **constants)
    most = longest or max(lengths)
    batch = SampledBatch(10 + np.arange(len(lengths)), np.array(lengths, dtype=np.int64))
    return PlanningTask(
        build_cost_model(costs, cluster, model, most), most, cluster, model, costs, (batch,)
    )


def _planned(task: PlanningTask, **changes: Any) -> Any:
    fixed = {"tensor": 8, "context": 1, "exchange": "ring", "checkpointed_layers": 0}
    settings = checked("planner", "megatron_pipeline", **(fixed | changes))
    [batch] = MEGATRON_PIPELINE.plan(settings, task)
    return batch


def test_equal_packs_take_the_closed_form() -> None:
    """Eight packs through four stages: eleven times a pack's time on a stage."""
    task = _task(*[4000] * 16)
    batch = _planned(task, stages=4, chunk_tokens=4000)
    assert [len(pipeline.chunks) for pipeline in batch.pipelines] == [8, 8]
    chosen = MegatronSettings("megatron", 8, 1, "ring", 8, 1.0, "full")
    [shape] = every_shape(chosen, task)
    whole = shape.group_time_ms(np.array([4000]))
    assert batch.predicted_ms == pytest.approx((8 + 3) * whole.total_ms / 4)
    assert batch.solver == {
        "tensor": 8, "context": 1, "exchange": "ring", "stages": 4, "data": 2,
        "chunk_tokens": 4000, "checkpointed_layers": 0,
    }  # fmt: skip


def test_a_recomputed_layer_does_its_forward_pass_again() -> None:
    task = _task(*[4000] * 16)
    plain, again = (
        _planned(task, stages=1, chunk_tokens=4000, checkpointed_layers=layers)
        for layers in (0, 32)
    )
    forward = plain.pipelines[0].chunks[0].predicted_forward_ms
    # One stage, 8 replicas of two packs each.
    assert again.predicted_ms - plain.predicted_ms == pytest.approx(2 * forward)


def test_memory_is_what_tensor_parallelism_and_zero_1_leave() -> None:
    """A quarter of the states whole, the rest over the 2 x 2 ranks that hold the same,
    all over 8 of tensor parallelism.
    """
    task = _task(4000)
    [shape] = every_shape(MegatronSettings("megatron", 8, 2, "ring", 8, 1.0, "full"), task)
    cost = stage_cost(task, shape, 2)
    assert (cost.shape.stages, cost.shape.degree, cost.shape.replicas) == (2, 16, 2)
    for stage in range(2):
        states = 16 * stage_parameters(task.model, 4000, stage, 2) * (1 / 4 + 3 / 4 / 4) / 8
        assert cost.capacity_bytes(stage) == pytest.approx(30 * 2**30 - states)
    small = replace(task, cluster=replace(task.cluster, memory_gib=20.0))
    with pytest.raises(PlanError, match=r"^planner\.tensor: got 1 with 1 stages; allowed: more"):
        stage_cost(small, replace(shape, tensor=1), 1)


def test_a_plan_s_memory_is_that_of_its_tensor_parallelism() -> None:
    """In the table of memory too, where ZeRO-3 with copies that stay may leave none."""

    task = _task(*[4000] * 4)
    [shape] = every_shape(MegatronSettings("megatron", 8, 2, "ring", 8, 1.0, "full"), task)
    own = stage_cost(task, shape, 2)
    planned = _planned(task, context=2, stages=2)
    assert tensor_ranks([planned]) == 8
    assert tensor_ranks([replace(planned, solver={"tensor": 5})]) is None
    told = build_pipeline_cost(
        task.constants, task.cluster, task.model, 4000, PipelineShape(2, 16, 2, 8)
    )
    assert told.capacities == pytest.approx(own.capacities)


def test_the_best_shape_of_all_is_taken() -> None:
    task = _task(*[30_000, 20_000, 9_000] * 5, longest=48_000)
    free = {"context": None, "exchange": None, "stages": None, "checkpointed_layers": None}
    best = _planned(task, **free)
    check_pipelines([best], task, _cost_of(best, task))
    found = []
    for context, stages in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 4), (4, 2), (8, 1)):
        try:
            one = _planned(task, **free | {"context": context, "stages": stages})
        except PlanError:
            continue
        found.append(one.predicted_ms)
    assert len(found) >= 6
    assert best.predicted_ms == pytest.approx(min(found))


def _cost_of(batch: Any, task: PlanningTask) -> Any:
    account = batch.solver
    chosen = MegatronSettings(
        "megatron", account["tensor"], account["context"], account["exchange"], 8, 1.0, "full"
    )
    [shape] = every_shape(chosen, task)
    return stage_cost(task, shape, account["stages"])


def test_what_groups_recompute_does_not_count_twice() -> None:
    task, again = _task(*[4000] * 16), _task(*[4000] * 16, checkpoint_layers=16)
    one, other = (_planned(some, stages=4, chunk_tokens=4000) for some in (task, again))
    assert one == other


def test_groups_recompute_their_gathers() -> None:
    """Half of the gathers are forward, a third of a ring's exchanges."""
    chosen = MegatronSettings("megatron", 8, 2, "ring", 8, 1.0, "full")
    [plain] = every_shape(chosen, _task(4000))
    [again] = every_shape(chosen, _task(4000, checkpoint_layers=16))
    assert again.gather_ms == pytest.approx(plain.gather_ms * (1 + 1 / 4))
    assert again.exchange_ms == pytest.approx(plain.exchange_ms * (1 + 1 / 6))
    [made] = MEGATRON.plan(replace(chosen, fill=0.9), _task(*[4000] * 20, checkpoint_layers=16))
    [base] = MEGATRON.plan(replace(chosen, fill=0.9), _task(*[4000] * 20))
    assert made.solver["tokens_per_device"] > base.solver["tokens_per_device"]


def test_no_shape_is_named() -> None:
    with pytest.raises(PlanError, match=r"^planner\.tensor, planner\.context, planner\.stages: go"):
        _planned(_task(4000), stages=5)
    with pytest.raises(PlanError, match=r"^sequence 10: 400000 tokens; allowed: at most \d+, the"):
        _planned(_task(400_000), stages=8)
