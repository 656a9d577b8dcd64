"""Megatron-LM's shapes and pipelines: memory, times by hand, plans and refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.decoder import stage_parameters
from railx.performance.pipeline_cost import PipelineShape, build_pipeline_cost
from railx.performance.sequence_cost import CostModel, build_cost_model
from railx.performance.tensor_context_cost import Shape
from railx.planning.format.parts import PlanError
from railx.planning.format.predictions import tensor_ranks
from railx.planning.planner import PlanningTask
from railx.planning.rivals.megatron import (
    MEGATRON,
    MEGATRON_PIPELINE,
    MegatronSettings,
    every_shape,
    plan_megatron_batch,
    shapes,
    stage_cost,
)
from railx.workload.batches import SampledBatch
from tests.builders import checked
from tests.planning.pipeline_rules import check_pipelines
from tests.planning.rules import check_batch, planned_of, task_of

RING = MegatronSettings("megatron", None, None, "ring", 8, 0.9, "full")
ALL_TO_ALL = replace(RING, exchange="all_to_all")
BEST = replace(RING, exchange=None)


@cache
def _settings(model: str) -> tuple[Any, Any, Any]:
    return (
        checked("cost_model", f"flexsp_{model}"),
        checked("cluster", "a100_64"),
        checked("model", f"gpt_{model}"),
    )


def _task(longest: int, *lengths: int, model: str = "7b") -> PlanningTask:
    """GPT of FlexSP on its 64 devices."""
    settings = _settings(model)
    batch = SampledBatch(10 + np.arange(len(lengths)), np.array(lengths, dtype=np.int64))
    cost = build_cost_model(*settings, longest)
    return PlanningTask(cost, longest, settings[1], settings[2], settings[0], (batch,))


def _shape(tensor: int, context: int, chosen: MegatronSettings = RING) -> Shape:
    only = replace(chosen, tensor=tensor, context=context)
    [shape] = shapes(only, _task(1000, 1000))
    return shape


def _found(chosen: MegatronSettings, longest: int, model: str = "7b") -> list[tuple[int, int]]:
    task = _task(longest, 1, model=model)
    return [(one.tensor, one.context) for one in shapes(chosen, task)]


def test_memory_is_what_tensor_parallelism_and_zero_1_leave() -> None:
    """16 bytes of 7.11745 · 2^30 parameters over 8, a quarter of it whole and the rest
    over 8 more: 4.89 of 30 GiB.
    """
    [shape] = shapes(replace(RING, tensor=8, context=8), _task(192_000, 1000))
    states_gib = 16 * 7.11745 / 8 * (1 / 4 + 3 / 4 / 8)
    assert shape.cost.tokens_per_device == int((30 - states_gib) * 1024 / 4.480441895)
    assert shape.degree == 64


def test_shapes_hold_the_longest_context() -> None:
    """At 192K all 64 devices, or 32 of two nodes a tensor group; the states of 30B
    leave room for 384K with tensor parallelism over all devices alone.
    """
    assert (8, 4) not in _found(RING, 192_000)
    assert {(8, 8), (16, 4), (16, 2)} <= set(_found(RING, 192_000))
    assert (8, 4) in _found(RING, 128_000)
    assert (16, 4) in _found(RING, 192_000, "30b")
    assert _found(RING, 384_000, "30b") == [(64, 1)]
    # All-to-alls share out the heads of a tensor rank.
    assert {tensor * context for tensor, context in _found(ALL_TO_ALL, 1000)} <= {
        2**k for k in range(7)
    }


def test_a_tensor_group_in_a_node_by_hand() -> None:
    """8 · 32 · 4096 · 2 bytes = 2 MiB a token at 96.5 and 104.07."""
    assert _shape(8, 1).gather_ms == pytest.approx(2 / 96.5)
    assert _shape(4, 2).gather_ms == pytest.approx(2 / 104.07 / 2)
    assert _shape(8, 1).exchange_ms == 0


def test_a_tensor_group_of_two_nodes_by_hand() -> None:
    """Each node takes in half at its uplink of 8 · 10.33 / 2."""
    assert _shape(16, 1).gather_ms == pytest.approx(2 * 0.5 / (8 * 10.33 * 0.5))
    assert _shape(64, 1).gather_ms == pytest.approx(2 * (7 / 8) / (8 * 4.87 * 7 / 8))


def test_a_ring_over_nodes_by_hand() -> None:
    """Keys and values of 512 wide, three times, seven steps; eight devices share an
    uplink of 8 · 4.87 · 7 / 8.
    """
    shape = _shape(8, 8)
    moved_mib = 3 * 7 * 2 * 512 * 2 * 32 / 8 / 2**20
    assert shape.exchange_ms == pytest.approx(moved_mib / (4.87 * 7 / 8))
    assert shape.hidden_share == 7 / 8
    lengths = np.array([100_000, 20_000])
    time = shape.group_time_ms(lengths)
    attention = 5.128e-6 * (1e10 + 4e8) / 64
    assert time.compute_ms == pytest.approx(attention + 0.1839576 * 120_000 / 64 + 629.3563)
    assert time.tensor_ms == pytest.approx(120_000 * 2 / 8 / 96.5)
    assert time.context_ms == pytest.approx(120_000 * shape.exchange_ms - 7 / 8 * attention)


def test_a_ring_in_a_node_hides_behind_attention() -> None:
    """Two neighbours at 96.5 · 7 / 8 outrun the attention of a long sequence."""
    shape = _shape(4, 2)
    moved_mib = 3 * 1 * 2 * 1024 * 2 * 32 / 2 / 2**20
    assert shape.exchange_ms == pytest.approx(moved_mib / (96.5 * 7 / 8))
    assert shape.group_time_ms(np.array([8000])).context_ms == 0
    assert shape.group_time_ms(np.array([10] * 600)).context_ms > 0


@pytest.mark.parametrize("context", [2, 4, 8, 16, 32, 64])
def test_without_tensor_parallelism_an_all_to_all_is_that_of_ulysses(context: int) -> None:
    shape = _shape(1, context, ALL_TO_ALL)
    assert shape.exchange_ms == pytest.approx(shape.cost.all_to_all_ms[context])
    assert shape.hidden_share == shape.gather_ms == 0


def test_recomputed_layers_pass_keys_and_values_once_more() -> None:
    """A third of a ring's exchanges are of the forward pass, half of the gathers."""
    task = _task(1000, 1000)
    every = replace(task.constants, checkpoint_layers=task.model.layers)
    again = replace(
        task, constants=every, cost=build_cost_model(every, task.cluster, task.model, 1000)
    )
    only = replace(RING, tensor=8, context=4)
    [plain], [twice] = shapes(only, task), shapes(only, again)
    assert twice.exchange_ms == pytest.approx(plain.exchange_ms * 4 / 3)
    assert twice.gather_ms == pytest.approx(plain.gather_ms * 3 / 2)


def test_no_gather_is_faster_than_inside_a_node() -> None:
    task = _task(1000, 1000)
    table = {"2": 100.0, "4": 100.0, "8": 10.0, "16": 900.0}
    cluster = replace(task.cluster, all_to_all_gb_s=table)
    cost = build_cost_model(task.constants, cluster, task.model, 1000)
    fast = replace(task, cluster=cluster, cost=cost)
    inside, outside = (
        shapes(replace(RING, tensor=tensor, context=1), fast)[0].gather_ms for tensor in (8, 16)
    )
    assert outside == pytest.approx(inside)


def test_the_best_shape_is_taken_for_all_batches() -> None:
    lengths = [150_000, 90_000, 40_000, *[2000] * 60]
    task = _task(192_000, *lengths)
    [best] = MEGATRON.plan(RING, task)
    times = {
        (one.tensor, one.context): plan_megatron_batch(
            0, task.batches[0], RING, 64, one
        ).predicted_ms
        for one in shapes(RING, task)
    }
    assert best.predicted_ms == min(times.values())  # type: ignore[union-attr]
    assert times[best.solver["tensor"], best.solver["context"]] == best.predicted_ms  # type: ignore[union-attr]


def test_the_better_exchange_is_taken() -> None:
    task = _task(192_000, 150_000, 90_000, 40_000, *[2000] * 60)
    ring, exchanged, best = (
        MEGATRON.plan(one, task)[0].predicted_ms  # type: ignore[union-attr]
        for one in (RING, ALL_TO_ALL, BEST)
    )
    assert best == min(ring, exchanged) < max(ring, exchanged)
    found = [(one.tensor, one.context, one.exchange) for one in shapes(BEST, _task(1000, 1))]
    assert len(found) == len(set(found))
    assert (8, 4, "ring") in found
    assert (8, 4, "all_to_all") in found
    assert (8, 1, "all_to_all") not in found


def test_shapes_that_do_not_exist_are_named() -> None:
    with pytest.raises(
        PlanError, match=r"planner\.tensor, planner\.context: got 128, None; allowed"
    ):
        shapes(replace(RING, tensor=128), _task(192_000, 1000))
    with pytest.raises(
        PlanError, match=r"max_length_tokens: got 192000; allowed: at most 45904, what TP8 CP1"
    ):
        shapes(replace(RING, tensor=8, context=1), _task(192_000, 1000))


def test_traffic_of_zero_3_is_not_megatrons() -> None:
    task = _task(1000, 1000)
    dear = replace(task, cost=replace(task.cost, constant_ms=900.0, sharding_ms=300.0))
    [shape] = shapes(replace(RING, tensor=8, context=1), dear)
    assert shape.cost.constant_ms == 600


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 192_000), min_size=1, max_size=40),
    st.sampled_from([(8, 8, "ring"), (16, 2, "ring"), (4, 16, "all_to_all")]),
)
def test_plans_hold_every_sequence_once_within_memory(
    lengths: list[int], chosen: tuple[int, int, Any]
) -> None:
    tensor, context, exchange = chosen
    own = replace(RING, tensor=tensor, context=context, exchange=exchange)
    [shape] = shapes(own, _task(192_000, *lengths))
    made = planned_of(plan_megatron_batch, lengths, own, 64, shape)
    check_batch(made, lengths, 64, shape.cost, use_plan_times=True)
    for one in made.micro_batches:
        for group in one.groups:
            time = shape.group_time_ms(np.asarray(group.lengths))
            assert group.predicted_ms == time.total_ms
            assert group.degree == shape.degree


def test_tokens_never_exceed_the_common_cap() -> None:
    """ZeRO-1 leaves no more room than the ZeRO-3 of the common cost model."""
    task = _task(1000, 1)
    found = shapes(RING, task)
    assert len(found) > 20
    assert all(one.cost.tokens_per_device <= task.cost.tokens_per_device for one in found)


def test_the_configs_are_checked(small: CostModel) -> None:
    assert checked("planner", "megatron") == BEST
    assert checked("planner", "megatron_ring") == RING
    assert checked("planner", "megatron_all_to_all") == ALL_TO_ALL
    [made] = MEGATRON.plan(BEST, task_of([250, 90], 4, small))
    assert made.solver["tensor"] * made.solver["context"] <= 4


def _pipeline_task(*lengths: int, longest: int | None = None, **constants: Any) -> PlanningTask:
    """GPT-7B on FlexSP's 64 devices."""
    cluster, model = checked("cluster", "a100_64"), checked("model", "gpt_7b")
    costs = checked("cost_model", "flexsp_7b", **constants)
    most = longest or max(lengths)
    batch = SampledBatch(10 + np.arange(len(lengths)), np.array(lengths, dtype=np.int64))
    return PlanningTask(
        build_cost_model(costs, cluster, model, most), most, cluster, model, costs, (batch,)
    )


def _planned_pipelines(task: PlanningTask, **changes: Any) -> Any:
    fixed = {"tensor": 8, "context": 1, "exchange": "ring", "checkpointed_layers": 0}
    settings = checked("planner", "megatron_pipeline", **(fixed | changes))
    [batch] = MEGATRON_PIPELINE.plan(settings, task)
    return batch


def test_equal_packs_take_the_closed_form() -> None:
    """Eight packs through four stages: eleven times a pack's time on a stage."""
    task = _pipeline_task(*[4000] * 16)
    batch = _planned_pipelines(task, stages=4, chunk_tokens=4000)
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
    task = _pipeline_task(*[4000] * 16)
    plain, again = (
        _planned_pipelines(task, stages=1, chunk_tokens=4000, checkpointed_layers=layers)
        for layers in (0, 32)
    )
    forward = plain.pipelines[0].chunks[0].predicted_forward_ms
    # One stage, 8 replicas of two packs each.
    assert again.predicted_ms - plain.predicted_ms == pytest.approx(2 * forward)


def test_memory_of_stages_is_what_tensor_parallelism_and_zero_1_leave() -> None:
    """A quarter of the states whole, the rest over the 2 x 2 ranks that hold the same,
    all over 8 of tensor parallelism.
    """
    task = _pipeline_task(4000)
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

    task = _pipeline_task(*[4000] * 4)
    [shape] = every_shape(MegatronSettings("megatron", 8, 2, "ring", 8, 1.0, "full"), task)
    own = stage_cost(task, shape, 2)
    planned = _planned_pipelines(task, context=2, stages=2)
    assert tensor_ranks([planned]) == 8
    assert tensor_ranks([replace(planned, solver={"tensor": 5})]) is None
    told = build_pipeline_cost(
        task.constants, task.cluster, task.model, 4000, PipelineShape(2, 16, 2, 8)
    )
    assert told.capacities == pytest.approx(own.capacities)


def test_the_best_shape_of_all_is_taken() -> None:
    task = _pipeline_task(*[30_000, 20_000, 9_000] * 5, longest=48_000)
    free = {"context": None, "exchange": None, "stages": None, "checkpointed_layers": None}
    best = _planned_pipelines(task, **free)
    check_pipelines([best], task, _cost_of(best, task))
    found = []
    for context, stages in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 4), (4, 2), (8, 1)):
        try:
            one = _planned_pipelines(task, **free | {"context": context, "stages": stages})
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
    task, again = _pipeline_task(*[4000] * 16), _pipeline_task(*[4000] * 16, checkpoint_layers=16)
    one, other = (_planned_pipelines(some, stages=4, chunk_tokens=4000) for some in (task, again))
    assert one == other


def test_groups_recompute_their_gathers() -> None:
    """Half of the gathers are forward, a third of a ring's exchanges."""
    chosen = MegatronSettings("megatron", 8, 2, "ring", 8, 1.0, "full")
    [plain] = every_shape(chosen, _pipeline_task(4000))
    [again] = every_shape(chosen, _pipeline_task(4000, checkpoint_layers=16))
    assert again.gather_ms == pytest.approx(plain.gather_ms * (1 + 1 / 4))
    assert again.exchange_ms == pytest.approx(plain.exchange_ms * (1 + 1 / 6))
    [made] = MEGATRON.plan(
        replace(chosen, fill=0.9), _pipeline_task(*[4000] * 20, checkpoint_layers=16)
    )
    [base] = MEGATRON.plan(replace(chosen, fill=0.9), _pipeline_task(*[4000] * 20))
    assert made.solver["tokens_per_device"] > base.solver["tokens_per_device"]


def test_no_shape_is_named() -> None:
    with pytest.raises(PlanError, match=r"^planner\.tensor, planner\.context, planner\.stages: go"):
        _planned_pipelines(_pipeline_task(4000), stages=5)
    with pytest.raises(PlanError, match=r"^sequence 10: 400000 tokens; allowed: at most \d+, the"):
        _planned_pipelines(_pipeline_task(400_000), stages=8)
