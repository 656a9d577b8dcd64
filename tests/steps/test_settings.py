"""What jobs cannot be is refused in one line; those of conf/ are what they say."""

from __future__ import annotations

from typing import Any

import pytest

from railx.performance.decoder import ModelSettings, parameter_count
from railx.settings import SettingsError
from railx.steps.settings import StepJob
from tests.steps.jobs import EXPERTS, MODEL, chosen, degrees, small


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": 2}, r"^parts: got 2 with 1f1b; allowed: 1 unless interleaved"),
        ({"pipeline": 5}, r"^degrees\.pipeline: got 5 stages of 1; allowed: at most 4 in all"),
        ({"context": 3}, r"^sequence_tokens: got 4; allowed: a multiple of 3"),
        ({"tensor": 2, "expert": 2}, r"^degrees\.expert: got 2; allowed: 1 for a model without"),
        (
            {"model": EXPERTS, "data": 3, "expert": 2},
            r"^expert: got 2 over tensor; allowed: 1 times a divisor of the 3 replicas",
        ),
    ],
)
def test_jobs_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        small(**changes)


def test_servers_and_ranks() -> None:
    own = degrees(data=8, tensor=4, expert=32, context=2, pipeline=8)
    assert (own.ranks, own.server, own.expert_servers) == (512, 4, 8)
    assert degrees(context=2, tensor=4, context_in_server=True).server == 8
    assert degrees(data=8, tensor=4, expert=8, expert_over="data").expert_servers == 8


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("h200_128", {128}), ("gb200_512", {512}), ("smoke", {8}), ("deepseek_236b", {256}),
        ("scaling_h200", {64, 128, 256, 512}), ("scaling_gb200", {256, 512, 1024, 2048}),
        ("frontier", {2048, 4096, 8192, 16384}), ("whole_2048", {256, 512, 1024, 2048}),
        ("perlmutter_llama", {16, 64}), ("perlmutter_deepseek", {16}),
        ("perlmutter_pipeline", {16}), ("experts_h200", {256}), ("experts_gb200", {512}),
        ("experts_h200_replicas", {256}), ("experts_gb200_replicas", {512}),
        ("experts_conserved", {256}),
    ],
)  # fmt: skip
def test_published_settings(name: str, gpus: set[int]) -> None:
    jobs = chosen(name).jobs()
    assert {job.degrees.ranks for job in jobs.values()} == gpus
    if name.startswith(("h200", "gb200", "scaling", "whole")):
        assert {_batch(job) for job in jobs.values()} == {256}
    if name == "frontier":
        assert {_batch(job) for job in jobs.values()} == {15360}


def _batch(job: StepJob) -> int:
    return job.degrees.data * job.micro_batches * job.micro_batch_sequences


def test_llama_has_its_weights() -> None:
    (job, _) = chosen("perlmutter_llama").jobs().values()
    model = job.model
    whole = model.layers * (model.attention_weights + model.dense_weights + model.norm_weights)
    shape = ModelSettings("llama", 32, 4096, 32, 8, 14336, 128256)
    # The last norm of 4,096 is nobody's layer.
    assert whole + model.input_weights + model.output_weights == parameter_count(shape, 1) - 4096


def test_the_graph_of_the_simulations_has_its_weights() -> None:
    for job in chosen("h200_128").jobs().values():
        model = job.model
        assert model.attention_weights + model.dense_weights == 11 * model.hidden**2
        assert model.input_weights == 128_000 * model.hidden
    assert MODEL.layers == 4
