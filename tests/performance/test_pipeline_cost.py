"""Time and memory of pipeline chunks against closed forms of the paper's equations."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.performance.decoder import parameter_count, stage_parameters
from railx.performance.layer_profile import fit_profile
from railx.performance.pipeline_cost import PipelineCost, PipelineShape, build_pipeline_cost
from railx.performance.sequence_cost import (
    CostModel,
    ShardingTraffic,
    build_cost_model,
    with_profile,
)
from railx.performance.trainer_memory import ModelShard, Pass, rank_memory
from railx.settings import SettingsError, to_dict
from tests.builders import checked, profile_rows

_SLICES = st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 50_000)), max_size=6)


_FIT = fit_profile(profile_rows(), 1)


def _built(shape: PipelineShape, size: str = "7b", **changes: Any) -> PipelineCost:
    return build_pipeline_cost(
        checked("cost_model", f"flexsp_{size}"),
        replace(checked("cluster", "a100_64"), **changes),
        checked("model", f"gpt_{size}"),
        192_000,
        shape,
    )


@cache
def _timed(shape: PipelineShape) -> PipelineCost:
    """With memory enough for any shape."""
    return _built(shape, memory_gib=1000.0)


@cache
def _whole_cluster() -> CostModel:
    return build_cost_model(
        checked("cost_model", "flexsp_7b"),
        checked("cluster", "a100_64"),
        checked("model", "gpt_7b"),
        192_000,
    )


def _states(stage: int, shape: PipelineShape, size: str = "7b") -> float:
    model = checked("model", f"gpt_{size}")
    ranks = shape.degree * shape.replicas
    return stage_parameters(model, 192_000, stage, shape.stages) * 16 / ranks


def test_a_shape_counts_the_devices_of_one_replica_and_of_all() -> None:
    shape = PipelineShape(4, 8, 2)
    assert (shape.devices, shape.all_devices) == (32, 64)


@given(_SLICES, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 8]))
def test_a_chunk_takes_what_its_slices_and_the_constants_add_up_to(
    slices: list[tuple[int, int]], stages: int, degree: int
) -> None:
    built = _timed(PipelineShape(stages, degree))
    contexts, tokens = (np.array([one[i] for one in slices]) for i in range(2))
    forward, backward, exchange = (part.sum() for part in built.slice_times_ms(contexts, tokens))
    time, empty = built.chunk_time_ms(slices), built.chunk_time_ms([])
    assert time.forward_ms == pytest.approx(forward + empty.forward_ms)
    assert time.backward_ms == pytest.approx(backward + empty.backward_ms)
    assert time.all_to_all_ms == pytest.approx(exchange + empty.all_to_all_ms)
    assert empty.total_ms == pytest.approx(built.chunk_constant_ms)
    squares = float(sum((c + s) ** 2 - c**2 for c, s in slices))
    whole = built.quadratic_ms * squares + built.linear_ms * sum(s for _, s in slices)
    assert time.total_ms == pytest.approx(whole + built.chunk_constant_ms)


@given(_SLICES, st.sampled_from([(1, 1), (2, 8), (4, 8), (8, 8), (16, 1)]))
def test_times_are_equations_1_to_4(slices: list[tuple[int, int]], shape: tuple[int, int]) -> None:
    stages, degree = shape
    cost = _whole_cluster()
    time = _timed(PipelineShape(stages, degree)).chunk_time_ms(slices)
    tokens = sum(new for _, new in slices)
    squares = sum((context + new) ** 2 - context**2 for context, new in slices)
    work = cost.quadratic_ms * squares + cost.linear_ms * tokens
    compute = work / (stages * degree) + cost.constant_ms / stages
    exchange = tokens * cost.all_to_all_ms[degree] / stages
    assert time.forward_ms == pytest.approx(compute * cost.forward_share + exchange / 2)
    assert time.total_ms == pytest.approx(compute + exchange)
    assert time.all_to_all_ms == pytest.approx(exchange)


def test_one_stage_of_one_rank_is_a_group_of_one() -> None:
    time = _timed(PipelineShape(1, 1)).chunk_time_ms([(0, 100), (0, 50)])
    alone = _whole_cluster().group_time_ms([100, 50], 1)
    assert time.total_ms == pytest.approx(alone.total_ms)


def test_recomputing_every_layer_of_a_stage_is_its_forward_pass() -> None:
    built = _built(PipelineShape(4, 8))
    time = built.chunk_time_ms([(3000, 5000)])
    assert built.layers_of(0) == 8
    assert 8 * built.layer_forward_ms(time.forward_ms) == pytest.approx(time.forward_ms)


def test_the_widest_stage_gives_the_times() -> None:
    built = _built(PipelineShape(3, 8))
    assert [built.layers_of(stage) for stage in range(3)] == [11, 11, 10]
    whole, part = (_timed(PipelineShape(s, 8)).chunk_time_ms([(0, 9000)]) for s in (1, 3))
    assert part.total_ms == pytest.approx(whole.total_ms * 11 / 32)


@pytest.mark.parametrize("split", [False, True])
def test_memory_is_equations_5_9_and_10(split: bool) -> None:
    shape = PipelineShape(4, 8)
    built = replace(_built(shape), logits_bytes=1000.0)
    hidden, layers, token = 4096, 32, 4.480441895 * 2**20
    for stage in range(4):
        for count in range(9):
            gradients = split * 2 * 2 * layers * hidden / 32
            inputs = 2 * (hidden + 2 * split * hidden) * count / 8
            kept = (layers - count * 4) / layers * token / 32
            logits = 1000 / 8 if stage == 3 else 0
            assert built.activation_bytes(700, split, stage, count) == pytest.approx(
                700 * (gradients + inputs + kept + logits)
            )
    saved = built.activation_bytes(700, split, 0, 2) - built.activation_bytes(700, split, 0, 3)
    assert built.layer_saving_bytes(700, split) == pytest.approx(saved)
    several = built.activation_bytes(
        np.array([1, 2]), np.array([split, False]), 3, np.array([8, 0])
    )
    assert several == pytest.approx(
        [built.activation_bytes(1, split, 3, 8), built.activation_bytes(2, False, 3, 0)]
    )


@pytest.mark.parametrize("name", ["gpt_7b", "llama_7b", "tiny", "llama2_70b"])
def test_stages_hold_the_model_between_them(name: str) -> None:
    model = checked("model", name)
    for stages in (1, 2, 3, 4):
        held = [stage_parameters(model, 192_000, stage, stages) for stage in range(stages)]
        assert sum(held) == parameter_count(model, 192_000)
        tied = replace(model, tied_embeddings=True)
        held = [stage_parameters(tied, 192_000, stage, stages) for stage in range(stages)]
        again = 0 if stages == 1 else model.vocabulary * model.hidden
        assert sum(held) == parameter_count(tied, 192_000) + again


def test_states_lie_on_the_devices_that_the_pipelines_use() -> None:
    for shape in (PipelineShape(8, 8), PipelineShape(4, 8), PipelineShape(4, 8, 2)):
        built = _built(shape)
        for stage in range(shape.stages):
            assert built.capacity_bytes(stage) == pytest.approx(30 * 2**30 - _states(stage, shape))
    small = PipelineShape(2, 1)
    needed = max((_states(stage, small)) for stage in range(2)) / 2**30
    assert needed > 30 > parameter_count(checked("model", "gpt_7b"), 192_000) * 16 / 64 / 2**30
    with pytest.raises(
        SettingsError,
        match=r"^cluster\.memory_gib: got 30\.0; allowed: more than 62\.\d+, for the states of"
        r" stage 0 on 1 devices$",
    ):
        _built(small)
    # Other devices of the cluster change nothing.
    assert _built(PipelineShape(4, 8), devices=32) == _built(PipelineShape(4, 8), devices=64)


def test_a_cluster_that_counts_tokens_gives_every_stage_as_many() -> None:
    built = replace(_built(PipelineShape(3, 8), tokens_per_device=1000), logits_bytes=0.0)
    for stage in range(3):
        assert built.capacity_bytes(stage) == pytest.approx(
            built.activation_bytes(1000 * 24, False, stage)
        )


@pytest.mark.parametrize("replicas", [1, 2])
def test_traffic_of_sharding_is_a_stages_own(replicas: int) -> None:
    model, cluster = checked("model", "gpt_7b"), checked("cluster", "a100_64")
    shape, plain = PipelineShape(4, 8, replicas), checked("cost_model", "flexsp_7b")
    none, ranks = _built(shape), 8 * replicas
    held = [stage_parameters(model, 192_000, stage, 4) for stage in range(4)]
    one_byte_ms = held[0] * (ranks - 1) / ranks / 20e6 / 2
    found = {}
    for often in ("batch", "chunk"):
        traffic = ShardingTraffic(20.0, 2, 4, 0.5, often)
        settings = replace(plain, sharding=traffic)
        found[often] = build_pipeline_cost(settings, cluster, model, 192_000, shape)
    # Once: parameters and gradients, which then stay.
    batch, chunk = found["batch"], found["chunk"]
    assert batch.batch_ms == pytest.approx((2 + 4) * one_byte_ms)
    assert batch.chunk_constant_ms == pytest.approx(629.3563 / 4)
    for stage in range(4):
        less = none.capacity_bytes(stage) - batch.capacity_bytes(stage)
        assert less == pytest.approx((2 + 4) * held[stage])
    # For every chunk: parameters for each pass, gradients after the backward one.
    assert chunk.batch_ms == 0
    assert chunk.capacities == none.capacities
    assert chunk.forward.constant_ms == pytest.approx(none.forward.constant_ms + 2 * one_byte_ms)
    assert chunk.backward.constant_ms == pytest.approx(none.backward.constant_ms + 6 * one_byte_ms)
    # Backward has gathered what recomputing needs: it costs the same however often.
    times = [one.chunk_time_ms([(3000, 5000)]).forward_ms for one in (none, batch, chunk)]
    again = [
        one.layer_forward_ms(time) for one, time in zip((none, batch, chunk), times, strict=True)
    ]
    assert times[2] == pytest.approx(times[0] + 2 * one_byte_ms)
    assert again == pytest.approx([times[0] / 8] * 3)
    assert none.batch_ms == 0.0


def test_exchanges_have_a_latency_and_sends_a_time_where_the_cluster_says_so() -> None:
    shape = PipelineShape(4, 8)
    plain = _built(shape)
    assert (plain.send_ms(1000), plain.all_to_all.constant_ms) == (0.0, 0.0)
    slow = _built(
        shape,
        all_to_all_latency_ms={"8": 0.25, "2": 9.0},
        point_to_point_gb_s=5.0,
        point_to_point_latency_ms=0.5,
    )
    # Eight layers of a stage, forward and backward together.
    empty = slow.chunk_time_ms([])
    assert empty.all_to_all_ms == pytest.approx(8 * 0.25)
    assert empty.forward_ms == pytest.approx(plain.chunk_time_ms([]).forward_ms + 1.0)
    assert slow.chunk_constant_ms == pytest.approx(plain.chunk_constant_ms + 2.0)
    # A rank sends its eighth of the hidden states, two bytes an element.
    assert slow.send_ms(800) == pytest.approx(100 * 2 * 4096 / 5e6 + 0.5)
    assert _timed(PipelineShape(1, 8)).send_ms(800) == 0.0
    assert _built(shape, point_to_point_latency_ms=0.5).send_ms(800) == 0.0


def test_the_gather_of_a_stage_takes_the_bandwidth_of_its_devices() -> None:
    model = checked("model", "gpt_7b")
    traffic = ShardingTraffic(gb_s=10.0, parameter_bytes=2, gradient_bytes=2, exposed_share=1.0)
    settings = replace(checked("cost_model", "flexsp_7b"), sharding=traffic)
    cluster = replace(checked("cluster", "a100_64"), gather_gb_s={"4": 50.0, "8": 40.0})
    for replicas, ranks, gb_s in ((1, 8, 40.0), (2, 16, 10.0)):
        shape = PipelineShape(4, 8, replicas)
        built = build_pipeline_cost(settings, cluster, model, 192_000, shape)
        moved = stage_parameters(model, 192_000, 0, 4) * 4 * (ranks - 1) / ranks
        assert built.batch_ms == pytest.approx(moved / (gb_s * 1e6))


def test_pipelines_plan_their_own_checkpoints() -> None:
    model, cluster = checked("model", "gpt_7b"), checked("cluster", "a100_64")
    plain = checked("cost_model", "flexsp_7b")
    half = replace(plain, checkpoint_layers=16)
    shape = PipelineShape(4, 8)
    built = build_pipeline_cost(half, cluster, model, 192_000, shape)
    assert built == _built(shape)
    given = build_cost_model(half, cluster, model, 192_000)
    assert build_pipeline_cost(half, cluster, model, 192_000, shape, given) == built
    whole = build_cost_model(plain, cluster, model, 192_000)
    assert build_pipeline_cost(plain, cluster, model, 192_000, shape, whole) == built


def test_a_profile_gives_the_passes_apart() -> None:
    fit = fit_profile(profile_rows(attention_forward=0.25, exchanges=512.0), 1)
    settings = with_profile(checked("cost_model", "profile_tiny"), to_dict(fit))
    cluster = replace(checked("cluster", "cpu_4"), tokens_per_device=None)
    model = checked("model", "tiny")

    def built(degree: int) -> PipelineCost:
        return build_pipeline_cost(settings, cluster, model, 1024, PipelineShape(2, degree))

    # Two of four layers; embedding, head and loss count half on each stage.
    one = built(2)
    time = one.chunk_time_ms([(100, 300)])
    squares, own = (400**2 - 100**2) / 2, 150
    exchange = 4 * 4 * 4 * 192 / 2 / 1e5 * 300 / 2
    forward = 2 * (3e-5 / 4 * squares + (0.02 * own + 1.5) / 3) + (0.004 * own + 0.3) / 2 * (
        fit.forward_share
    )
    total = 2 * (3e-5 * squares + 0.02 * own + 1.5) + (0.004 * own + 0.3) / 2
    assert time.all_to_all_ms == pytest.approx(exchange)
    assert time.forward_ms == pytest.approx(forward + exchange / 2)
    assert time.total_ms == pytest.approx(total + exchange)
    assert one.layer_forward_ms(time.forward_ms) == pytest.approx(0.9 * time.forward_ms / 2)
    # Bytes: what groups exchange, recomputed inputs, and the ends on the last stage.
    assert one.activation_bytes(200, False, 0) == pytest.approx(100 * 2 * (8000 + 512))
    assert one.activation_bytes(200, False, 1, 1) == pytest.approx(100 * (8512 + 576 + 1024))
    assert built(1).activation_bytes(100, False, 0) == pytest.approx(100 * 2 * 8000)
    latent = replace(settings, fit=replace(fit, all_to_all_latency_ms={"2": 0.5}))
    slower = build_pipeline_cost(latent, cluster, model, 1024, PipelineShape(2, 2))
    assert slower.chunk_constant_ms == pytest.approx(one.chunk_constant_ms + 2 * 0.5)


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_profiled_runtime_has_the_memory_that_its_states_leave(degree: int, stage: int) -> None:
    """Against the tensors that the trainer keeps, without activations."""
    settings = with_profile(checked("cost_model", "profile_tiny"), to_dict(_FIT))
    cluster = replace(checked("cluster", "cpu_4"), tokens_per_device=None)
    model = checked("model", "tiny")
    built = build_pipeline_cost(settings, cluster, model, 1024, PipelineShape(2, degree))
    held = rank_memory(
        model, ModelShard(2, stage == 0, stage == 1, degree), [Pass(1)], loss_chunk_tokens=1
    )
    steady = held.master_bytes + held.moments_bytes + held.gradients_bytes + held.gathered_bytes
    states = cluster.memory_gib * 2**30 - built.capacity_bytes(stage)
    assert states == pytest.approx(steady, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            PipelineShape(33, 1),
            r"^planner\.stages: got 33; allowed: at most 32, the layers of",
        ),
        (
            PipelineShape(8, 8, 2),
            r"^planner\.stages: 8 stages x 2 replicas x degree 8 need 128 d",
        ),
        (PipelineShape(2, 3), r"^planner\.sequence_parallel_degree: got 3; allowed: 1, 2, 4, 8"),
    ],
)
def test_shapes_that_cannot_be_name_the_key(shape: PipelineShape, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        _built(shape)


def test_a_layer_is_a_share_of_the_stage_that_has_most() -> None:
    """Chunks take as long on every stage as on that one."""
    built = _timed(PipelineShape(3, 8))
    assert built.layer_counts == (11, 11, 10)
    assert built.layer_forward_ms(22.0) == pytest.approx(2.0)
