"""What a step computes and sends, against closed forms and sums over all chips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.mapping.layout import compute_flops, step_transfers
from railx.mapping.settings import JobSettings
from railx.performance.decoder import forward_flops, key_value_width, parameter_count
from railx.performance.volumes import Transfer
from railx.settings import SettingsError

JobOf = Callable[..., JobSettings]
Changes = dict[str, Any]


def of(job: JobSettings, name: str) -> list[Transfer]:
    return [transfer for transfer in step_transfers(job) if transfer.name == name]


def feed_forward_weights(job: JobSettings) -> int:
    return 3 * job.model.hidden * job.model.feed_forward


def test_tensor_parallelism_all_reduces_four_times_a_layer(job_of: JobOf) -> None:
    """Two all-reduces forward and two backward (Megatron-LM), each a reduce-scatter and
    an all-gather of the activations.
    """
    job = job_of()
    layers_of_a_stage = 8 // 4
    activation = 4096 * 512 * 2
    gathers = of(job, "tensor")
    assert all(transfer.kind == "all_gather" and not transfer.per_step for transfer in gathers)
    assert (
        sum(transfer.times * transfer.bytes for transfer in gathers)
        == layers_of_a_stage * 4 * 2 * activation
    )


def test_data_parallelism_scatters_gradients_and_gathers_parameters(job_of: JobOf) -> None:
    job = job_of()
    own = parameter_count(job.model, 4096) / (4 * 4)
    transfers = of(job, "data")
    assert sorted(transfer.bytes for transfer in transfers) == [2 * own, 4 * own]
    assert all(
        transfer.per_step and transfer.times == 1 and transfer.kind == "all_gather"
        for transfer in transfers
    )


def test_stages_hand_on_one_shard_of_the_activations_each_way(job_of: JobOf) -> None:
    (transfer,) = of(job_of(), "pipeline")
    assert (transfer.bytes, transfer.times, transfer.kind) == (4096 * 512 * 2 / 4, 2, "send")


def test_tokens_of_all_chips_visit_their_experts_and_return(
    job_of: JobOf, experts: Changes
) -> None:
    """Over the chips of a stage: every token's activations, k times, there and back,
    forward and backward, in every layer.
    """
    job = job_of(**experts)
    (transfer,) = of(job, "expert")
    layers_of_a_stage, tensor = 8 // 2, 4
    assert transfer.kind == "all_to_all"
    assert transfer.times * transfer.bytes * tensor == 4 * layers_of_a_stage * 2 * 4096 * 512 * 2


def test_experts_gather_the_tokens_that_they_get(job_of: JobOf, experts: Changes) -> None:
    """Attention gathers the activations, the feed-forward k times as much."""
    attention, mixture = sorted(
        of(job_of(**experts), "tensor"), key=lambda transfer: transfer.bytes
    )
    assert mixture.bytes == 2 * attention.bytes


def test_sequence_parallelism_passes_keys_and_values_of_the_whole_sequence(job_of: JobOf) -> None:
    job = job_of(
        layout={"mesh": {"tensor": 4}, "x": {"sequence": 4}, "y": {"data": 2, "pipeline": 2}}
    )
    (transfer,) = of(job, "sequence")
    assert transfer.bytes == 2 * key_value_width(job.model) / 4 * 4096 * 2
    assert transfer.times == 3 * 8 // 2  # forward, again backward, and their gradients
    wide = job_of(layout={"mesh": {"tensor": 16}, "x": {"sequence": 4}, "y": {}})
    (transfer,) = of(wide, "sequence")
    assert (
        transfer.bytes == 2 * wide.model.head_width * 4096 * 2
    )  # no chip has less than one head of the keys


def test_replicated_parameters_are_reduced_over_the_sequence_too(job_of: JobOf) -> None:
    job = job_of(
        layout={"mesh": {"tensor": 4}, "x": {"sequence": 4}, "y": {"data": 2, "pipeline": 2}}
    )
    assert {transfer.over for transfer in of(job, "data")} == {("sequence", "expert", "data")}


def test_all_chips_together_hold_every_parameter_of_the_experts(
    job_of: JobOf, experts: Changes
) -> None:
    job = job_of(**experts)
    model, width = job.model, 4
    shared = (
        max(t.bytes for t in of(job, "data") if t.over == ("sequence", "expert", "data"))
        / width
        * 4
        * 2
    )
    expert = (
        max(t.bytes for t in of(job, "data") if t.over == ("sequence", "data")) / width * 4 * 2 * 4
    )
    router = 8 * model.hidden * model.layers
    dense = parameter_count(model, 4096)
    assert shared + expert == pytest.approx(
        dense + 7 * model.layers * feed_forward_weights(job) + router, rel=1e-12
    )


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    sequence=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4, 8]),
)
def test_chips_of_a_replica_share_all_operations(
    job_of: JobOf, tensor: int, sequence: int, pipeline: int
) -> None:
    layout = {"mesh": {"tensor": tensor}, "x": {"sequence": sequence}, "y": {"pipeline": pipeline}}
    job = job_of(layout=layout)
    assert compute_flops(job) * tensor * sequence * pipeline == pytest.approx(
        3 * forward_flops(job.model, 4096), rel=1e-12
    )


def test_a_token_computes_in_each_of_its_experts_and_in_the_router(
    job_of: JobOf, experts: Changes
) -> None:
    dense, mixture = job_of(layout=experts["layout"] | {"x": {"data": 4}}), job_of(**experts)
    router = 512 * 8
    more = 3 * 2 * (feed_forward_weights(dense) + router) * 8 * 4096 / (4 * 2)
    assert compute_flops(mixture) - compute_flops(dense) == pytest.approx(more, rel=1e-12)


def test_a_micro_batch_of_two_sequences_is_two_of_one_but_for_messages(job_of: JobOf) -> None:
    layout = {"mesh": {"tensor": 4}, "x": {"sequence": 4}, "y": {"data": 2, "pipeline": 2}}
    one, two = (job_of(layout=layout, micro_batch_sequences=number) for number in (1, 2))
    assert compute_flops(two) == 2 * compute_flops(one)
    assert two.plan.tokens == 2 * one.plan.tokens
    for first, second in zip(step_transfers(one), step_transfers(two), strict=True):
        assert second.times == first.times
        assert second.bytes == first.bytes * (1 if first.per_step else 2)


def test_recomputation_runs_scores_or_layers_again(job_of: JobOf) -> None:
    none, scores, layers = (job_of(recompute=word) for word in ("none", "selective", "full"))
    chips = 4 * 4
    pairs = 2 * 8 * 512 * 4096**2  # two products of all heads for half of the pairs
    assert (compute_flops(scores) - compute_flops(none)) * chips == pytest.approx(pairs)
    head = 2 * 1000 * 512 * 4096
    assert (compute_flops(layers) - compute_flops(none)) * chips == pytest.approx(
        forward_flops(none.model, 4096) - head
    )
    assert step_transfers(scores) == step_transfers(none)
    for name, often in (("tensor", 6 / 4), ("pipeline", 1), ("data", 1)):
        for first, second in zip(of(none, name), of(layers, name), strict=True):
            assert second.times == often * first.times


@given(degree=st.sampled_from([1, 2, 4, 8]), axis=st.sampled_from(["mesh", "x", "y"]))
def test_the_axis_changes_no_volume(job_of: JobOf, degree: int, axis: str) -> None:
    """Where a parallelism lies decides over time, not over bytes."""
    empty: dict[str, Any] = {"mesh": {}, "x": {}, "y": {}}
    jobs = [
        job_of(layout=empty | {where: {"tensor": degree, "data": 2}}) for where in ("mesh", axis)
    ]
    assert step_transfers(jobs[0]) == step_transfers(jobs[1])


def test_degree_one_sends_nothing(job_of: JobOf) -> None:
    assert step_transfers(job_of(layout={"mesh": {"tensor": 1}, "x": {"data": 1}, "y": {}})) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"layout": {"mesh": {"tensor": 3}, "x": {}, "y": {}}},
            "job.layout: tensor degree 3; allowed: a divisor of the 16 heads",
        ),
        (
            {"layout": {"mesh": {}, "x": {"pipeline": 3}, "y": {}}},
            "job.layout: pipeline degree 3; allowed: a divisor of the 8 layers",
        ),
        (
            {"layout": {"mesh": {}, "x": {"expert": 2}, "y": {}}},
            "job.layout: expert degree 2; allowed: a divisor of the 1 experts",
        ),
        (
            {"layout": {"mesh": {"tensr": 2}, "x": {}, "y": {}}},
            "job.layout.mesh.tensr: unknown parallelism; allowed: tensor, seq",
        ),
        (
            {"layout": {"mesh": {"tensor": 0}, "x": {}, "y": {}}},
            "job.layout.mesh.tensor: got 0; allowed: at least 1",
        ),
        (
            {"sequence_tokens": 4098},
            "job.sequence_tokens: got 4098; allowed: a multiple of 4, sequence x tensor",
        ),
        (
            {"experts": {"experts": 2, "experts_per_token": 3}},
            "job.experts.experts_per_token: got 3; allowed: at most 2, the experts",
        ),
    ],
)
def test_jobs_that_cannot_be_name_the_key(
    job_of: JobOf, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        job_of(**change)
    assert str(raised.value).startswith(message)
