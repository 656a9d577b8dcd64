"""Steps with experts as the published generator counts them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from railx.performance.devices import DeviceSettings
from railx.replay.run import replay_programs
from railx.steps.experts import exchange, expert_templates, pass_parts, shares
from railx.steps.settings import DegreeSettings, ExpertCounts, StepJob
from railx.steps.sweep import _prepared as prepared
from railx.steps.sweep import last_step, traffic
from tests.steps.jobs import chosen

JOBS = ("experts_h200", "experts_h200_replicas", "experts_gb200", "experts_gb200_replicas")
CONSERVED = "experts_conserved"


def jobs(*names: str) -> list[tuple[str, StepJob]]:
    return [
        (f"{name} {variant}", job) for name in names for variant, job in chosen(name).jobs().items()
    ]


def electrical_ms(name: str, variant: str) -> float:
    settings = chosen(name)
    replayed = replay_programs(
        prepared(settings.jobs()[variant], "electrical", settings), "electrical", 0
    )
    return last_step(replayed, 1)["step_ms"]


@pytest.mark.parametrize("owners", [1, 2, 7, 64, 256])
def test_shares_are_those_of_many_routed_tokens(owners: int) -> None:
    """Drawn token by token: a sequence's positions, each strided over the experts."""
    positions = (np.arange(4096) + 0.5) / 4096
    drawn = (positions[:, None] + np.arange(8) / 8) % 1.0
    owner = np.floor(drawn**1.5 * 256).astype(int) * owners // 256
    counted = np.bincount(owner.ravel(), minlength=owners) / owner.size
    if 256 % owners == 0:
        np.testing.assert_allclose(shares(owners, 1.5), counted, atol=1 / 4096)
    assert shares(owners, 1.5).sum() == pytest.approx(1)
    np.testing.assert_allclose(shares(owners, 1.0), 1 / owners)


@pytest.mark.parametrize(("name", "job"), jobs(*JOBS, CONSERVED))
def test_every_rank_of_an_exchange_sends_the_same(name: str, job: StepJob) -> None:
    if job.degrees.expert == 1:
        assert not pass_has_exchange(job)
        return
    assert job.expert_counts is not None
    loads = exchange(job, electrical=True).loads
    payload = job.expert_counts.exchanged_copies * 4096 * 7168 * 2 * 8 / job.degrees.tensor
    np.testing.assert_allclose(loads.sum(axis=1), payload)
    assert (np.diag(loads) == 0).all()


def pass_has_exchange(job: StepJob) -> bool:
    return any(part.kind == "all_to_all" for part in pass_parts(job, "forward", electrical=True))


def test_an_even_exchange_by_hand() -> None:
    """Four servers of two ranks, experts visited evenly, 7 bytes a rank."""
    job = small_job(expert=8, data=4, tensor=2)
    moved = exchange(job, electrical=True)
    np.testing.assert_allclose(moved.loads, 1 - np.eye(8))
    assert [moved.inside_ns, moved.rail_ns] == pytest.approx([1, 1])
    assert moved.rail_bytes == pytest.approx(6)
    # Round the ring: 2 bytes to each neighbour, one each way to the server across.
    assert exchange(job, electrical=False).rail_ns == pytest.approx(4)


def test_two_servers_share_both_ways_round() -> None:
    moved = exchange(small_job(expert=2, data=2, tensor=1), electrical=False)
    assert moved.rail_ns == pytest.approx(moved.rail_bytes / 2)


def small_job(*, expert: int, data: int, tensor: int) -> StepJob:
    base = chosen("experts_h200").job
    return replace(
        base,
        model=replace(base.model, hidden=expert - 1, layers=1, experts=expert, experts_per_token=1),
        degrees=DegreeSettings(data, 1, tensor, expert=expert),
        device=DeviceSettings(1e-3, 1.0, "plain", 1e9, 1.0, 1.0),
        micro_batch_sequences=tensor,
        sequence_tokens=1,
        bytes_per_element=1,
        expert_counts=ExpertCounts("stage", "whole", 1.0, 1, 1.0),
    )


def computed_tokens(job: StepJob) -> float:
    """Tokens times experts that the ranks of a stage compute in a layer."""
    experts = {
        part.lasts_ns for part in pass_parts(job, "forward", electrical=True) if not part.lane
    }
    model, device = job.model, job.device
    assert job.expert_counts is not None
    weights = model.expert_weights * job.expert_counts.multiplied_share
    one_ns = device.compute_ns(2 * weights)
    return max(experts) / one_ns * job.degrees.tensor * job.degrees.data


@pytest.mark.parametrize(("name", "job"), jobs(*JOBS))
def test_the_generator_copies_tokens(name: str, job: StepJob) -> None:
    """As often as groups fit into the stage: once only where the group is the stage."""
    sent = 64 * 4096 * job.model.experts_per_token
    copies = job.degrees.tensor * job.degrees.data / job.degrees.expert
    assert computed_tokens(job) == pytest.approx(sent * copies)


@pytest.mark.parametrize(("name", "job"), jobs(CONSERVED))
def test_tokens_are_conserved(name: str, job: StepJob) -> None:
    assert computed_tokens(job) == pytest.approx(64 * 4096 * job.model.experts_per_token)


@pytest.mark.parametrize(("name", "job"), jobs(*JOBS, CONSERVED))
def test_bytes_of_a_step(name: str, job: StepJob) -> None:
    """Traffic of a rail, counted operation by operation from the settings."""
    degrees, model = job.degrees, job.model
    assert job.expert_counts is not None
    passes = job.micro_batches * model.layers // degrees.pipeline * degrees.pipeline
    ranks = degrees.data
    attention = 2 * model.attention_weights / degrees.tensor
    experts = 2 * model.experts / degrees.expert * model.expert_weights
    scatter = (ranks - 1) / ranks
    gather = (ranks - 1) if job.expert_counts.gathered == "whole" else scatter
    once = 2 * 4096 * 7168 * 8 / degrees.tensor
    sent = traffic(job)
    one_rank = attention * (gather + scatter) + experts * (scatter + gather)
    assert sent["DP"] == pytest.approx(ranks * passes * one_rank)
    hops = 2 * job.micro_batches * (degrees.pipeline - 1)
    assert sent["PP"] == pytest.approx(ranks * hops * once, rel=1e-6)
    rail = exchange(job, electrical=True).rail_bytes
    assert sent.get("EP", 0.0) == pytest.approx(ranks * passes * 4 * rail)


@pytest.mark.parametrize(
    ("name", "variant"),
    [("experts_h200", "expert_1"), ("experts_h200", "expert_64"),
     ("experts_h200_replicas", "expert_8"), ("experts_gb200", "expert_256")],
)  # fmt: skip
def test_a_step_is_its_slots(name: str, variant: str) -> None:
    """Stages in step: m + p - 1 slots each way, and p - 1 hops each way."""
    job = chosen(name).jobs()[variant]
    layers, slots = job.model.layers // job.degrees.pipeline, job.micro_batches
    slots += job.degrees.pipeline - 1
    slot_ns = sum(
        layers * part.lasts_ns
        for direction in ("forward", "backward")
        for part in pass_parts(job, direction, electrical=True)
    )
    hop_ns = 2 * 4096 * 7168 * 8 / job.degrees.tensor / job.device.scale_out_gb_s
    least = slots * slot_ns + 2 * (job.degrees.pipeline - 1) * hop_ns
    most = least + 2 * slots * hop_ns
    assert least <= electrical_ms(name, variant) * 1e6 * (1 + 1e-9) + 100
    assert electrical_ms(name, variant) * 1e6 <= most


def test_every_stage_receives_what_its_neighbour_sends() -> None:
    for _, job in jobs("experts_h200"):
        used = [template.used for template in expert_templates(job, electrical=True)]
        for before, after in pairwise(used):
            assert before["to_next"] == after["from_before"] == job.micro_batches
            assert before["from_next"] == after["to_before"] == job.micro_batches
