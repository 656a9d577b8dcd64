"""Pipeline plans against the cost of the devices that they use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from railx.performance.pipeline_cost import PipelineShape, build_pipeline_cost
from railx.performance.sequence_cost import ShardingTraffic
from railx.planning.format import predictions
from railx.planning.format.files import read_plan, validate_plan, write_plan
from railx.planning.format.parts import Chunk, PlanError
from railx.planning.format.plan import Plan
from railx.planning.make import make_plan
from railx.settings import SettingsError
from tests.builders import checked

LENGTHS = np.array([40_000, 30_000, 9_000, 5_000, *[1_500] * 28])
CLUSTER = checked("cluster", "a800_32", memory_gib=8.0)
TRAFFIC = ShardingTraffic(
    gb_s=10.0, parameter_bytes=2, gradient_bytes=2, exposed_share=0.1, pipelines_gather="chunk"
)


@cache
def _made(planner: str = "pipeline_4x8", often: str = "") -> Plan:
    constants = checked("cost_model", "flexsp_7b_kept")
    if often:
        constants = replace(constants, sharding=replace(TRAFFIC, pipelines_gather=often))
    return make_plan(
        checked("planner", planner),
        LENGTHS,
        replace(CLUSTER, memory_gib=8.0 if often != "batch" else 20.0),
        checked("model", "gpt_7b"),
        constants,
        checked("batch", "global_512_48k", batch_size=32, batches=1),
        1,
    )


def _changed(plan: Plan, change: Callable[[Chunk], Chunk]) -> Plan:
    """The first chunk of the plan otherwise."""
    (batch,) = plan.pipeline_batches()
    first, *rest = batch.pipelines
    chunk, *others = first.chunks
    pipelines = (replace(first, chunks=(change(chunk), *others)), *rest)
    return replace(plan, batches=(replace(batch, pipelines=pipelines),))


def test_a_plan_reads_back_and_recomputes(tmp_path: Any) -> None:
    plan = _made()
    chunks = [c for b in plan.pipeline_batches() for p in b.pipelines for c in p.chunks]
    assert any(any(chunk.checkpoint_layers) for chunk in chunks)
    assert all(chunk.predicted_send_ms > 0 for chunk in chunks)
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    "key",
    [
        "predicted_forward_ms",
        "predicted_backward_ms",
        "predicted_all_to_all_ms",
        "predicted_send_ms",
        "predicted_layer_forward_ms",
        "predicted_weight_ms",
    ],
)
def test_a_chunk_that_is_faster_than_its_cost_is_refused(key: str) -> None:
    plan = _changed(_made(), lambda chunk: replace(chunk, **{key: 0.001}))
    with pytest.raises(
        PlanError, match=rf"^batch 0, pipeline 0, chunk 0: {key} 0\.001; allowed: [0-9.]+, what the"
    ):
        validate_plan(plan)


@pytest.mark.parametrize("often", ["batch", "chunk"])
def test_traffic_of_sharding_is_in_the_plan(often: str) -> None:
    plan, plain = _made(often=often), _made()
    (batch,) = plan.pipeline_batches()
    cost = build_pipeline_cost(
        replace(
            checked("cost_model", "flexsp_7b_kept"),
            sharding=replace(TRAFFIC, pipelines_gather=often),
        ),
        replace(CLUSTER, memory_gib=20.0),
        checked("model", "gpt_7b"),
        48_000,
        PipelineShape(4, 8),
    )
    assert batch.predicted_other_ms == pytest.approx(cost.batch_ms)
    assert (cost.batch_ms > 0) == (often == "batch")
    assert plain.pipeline_batches()[0].predicted_other_ms == 0
    with pytest.raises(PlanError, match=r"^batch 0: predicted_other_ms 7\.0; allowed: "):
        validate_plan(replace(plan, batches=(replace(batch, predicted_other_ms=7.0),)))


def test_stages_hold_what_their_devices_have() -> None:
    plan = _made()
    (batch,) = plan.pipeline_batches()

    def less(chunk: Chunk) -> Chunk:
        """One layer of those that it recomputes."""
        return replace(
            chunk, checkpoint_layers=tuple(min(count, 1) for count in chunk.checkpoint_layers)
        )

    whole = tuple(
        replace(pipeline, chunks=tuple(map(less, pipeline.chunks))) for pipeline in batch.pipelines
    )
    with pytest.raises(
        PlanError,
        match=r"^batch 0, pipeline \d: stage \d holds .* of activations; allowed: at most .* MiB",
    ):
        validate_plan(replace(plan, batches=(replace(batch, pipelines=whole),)))
    # More memory in the settings, and as many tokens as follow from it.
    settings = {**plan.settings, "cluster": {**plan.settings["cluster"], "memory_gib": 80.0}}
    with pytest.raises(PlanError, match=r"^tokens_per_device: got \d+; allowed: \d+"):
        validate_plan(replace(plan, settings=settings))


def test_an_account_lends_a_pipeline_no_memory() -> None:
    """Tensor parallelism holds parameters once that ZeRO-3's copies keep whole."""
    plan = _made(often="batch")
    (batch,) = plan.pipeline_batches()
    told = replace(plan, batches=(replace(batch, solver={**batch.solver, "tensor": 8}),))
    validate_plan(told)
    own, other = (predictions.cost_of(one) for one in (plan, replace(told, predictions="own")))
    assert own is not None
    assert other is not None
    assert other.capacities > own.capacities
    assert predictions.cost_of(told) == own


def test_memory_in_tokens_is_named_in_tokens() -> None:
    plan = make_plan(
        checked("planner", "pipeline_2x1"),
        [900, 900, 700, 500, 300, 20, 40],
        checked("cluster", "cpu_4_pipeline", devices=2, tokens_per_device=400),
        checked("model", "tiny"),
        checked("cost_model", "analytic"),
        checked("batch", "whole"),
        1,
    )
    bare = _changed(plan, lambda chunk: replace(chunk, checkpoint_layers=(0, 1)))
    with pytest.raises(PlanError, match=r"MiB, what settings\.cluster\.tokens_per_device says$"):
        validate_plan(bare)


def test_other_devices_of_a_cluster_lend_a_pipeline_nothing() -> None:
    with pytest.raises(
        SettingsError, match=r"^cluster\.memory_gib: .* states of stage 0 on 1 devices$"
    ):
        _made("pipeline_2x1")
    plan = _made()
    cost = build_pipeline_cost(
        checked("cost_model", "flexsp_7b_kept"),
        CLUSTER,
        checked("model", "gpt_7b"),
        48_000,
        PipelineShape(4, 8),
    )
    assert plan.tokens_per_device == cost.tokens_per_device
    wide = {**plan.settings, "cluster": {**plan.settings["cluster"], "devices": 64}}
    validate_plan(replace(plan, settings=wide))
