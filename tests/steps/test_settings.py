"""What jobs cannot be is refused in one line; those of conf/ are what they say. Time of
the host in steps: least times, the measured constant, and its fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scipy.optimize import minimize_scalar

from railx.performance.decoder import ModelSettings, parameter_count
from railx.performance.devices import device_named
from railx.performance.programs import constants_named
from railx.settings import SettingsError
from railx.steps.host import host_rows, step_seconds
from railx.steps.layers import layer_segments, stage_units
from railx.steps.settings import HostSettings, StepJob, StepSettings, SweepSettings, VariantSettings
from tests.builders import published
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


HOST = HostSettings("megatron_a100", 0.0)
HOSTS = ("perlmutter_llama_host", "perlmutter_deepseek_host", "perlmutter_pipeline_host")


def longest_pass_ns(job: StepJob) -> dict[str, float]:
    unit = stage_units(job)[0][0][0]
    return {
        way: sum(s.lasts_ns for s in layer_segments(job, unit, way, electrical=True))
        for way in ("forward", "backward")
    }


def test_no_pass_of_a_layer_is_shorter_than_the_host_and_longer_ones_stay() -> None:
    constants, job = constants_named("megatron_a100"), small(host=HOST)
    least = {
        "forward": 1e9 * constants.forward_host_s,
        "backward": 1e9 * constants.backward_host_s,
    }
    assert longest_pass_ns(job) == pytest.approx(least)
    slow = replace(job, device=replace(job.device, peak_tflops=1e-9))
    assert longest_pass_ns(slow) == longest_pass_ns(replace(slow, host=None))
    tensor = small(host=HOST, tensor=4)
    doublings = 2 * 2 * 1e9 * constants.collective_host_s
    assert longest_pass_ns(tensor)["forward"] == pytest.approx(least["forward"] + doublings)


def test_the_constant_comes_on_top_of_every_pass_and_of_the_one_again() -> None:
    job, slower = small(host=HOST), small(host=replace(HOST, pass_ms=3.0))
    for way, ns in longest_pass_ns(job).items():
        assert longest_pass_ns(slower)[way] - ns == pytest.approx(3e6)
    again = replace(slower, recomputed=True)
    both = longest_pass_ns(slower)
    assert longest_pass_ns(again)["backward"] == pytest.approx(sum(both.values()))


def test_a_pipeline_by_hand() -> None:
    """Two stages of two layers, two micro-batches: three slots of four passes each."""
    step_s = constants_named("megatron_a100").step_s
    job = small(pipeline=2, host=replace(HOST, pass_ms=1e4))
    assert step_seconds(job, 1) == pytest.approx(3 * 2 * 2 * 10 + step_s, rel=2e-3)


def fitted_pass_ms(runs: list[tuple[StepJob, float]], iterations: int) -> float:
    """The ``pass_ms`` of jobs with a host that fits measured steps best, in ms.

    ``runs``: each job and its measured step in s. The sum of the squares of the
    relative errors is least. No pass takes longer than a measured step.
    """

    def squares(pass_ms: float) -> float:
        host = replace(HOST, pass_ms=pass_ms)
        return sum(
            (step_seconds(replace(job, host=host), iterations) / measured_s - 1) ** 2
            for job, measured_s in runs
        )

    longest_ms = 1e3 * max(measured_s for _, measured_s in runs)
    best = minimize_scalar(squares, bounds=(0.0, longest_ms), method="bounded")
    return float(best.x)


@pytest.mark.parametrize("pass_ms", [2.0, 50.0])
def test_the_fit_finds_the_constant_of_a_run_back(pass_ms: float) -> None:
    job = small(pipeline=2, host=replace(HOST, pass_ms=pass_ms))
    run = (replace(job, host=HOST), step_seconds(job, 1))
    assert fitted_pass_ms([run], 1) == pytest.approx(pass_ms, rel=1e-3)


def test_constants_of_perlmutter_are_the_fits_of_runs_without_switching() -> None:
    rows = published("opus_perlmutter_iteration_latency.csv")
    jobs = {name: job for host in HOSTS for name, job in chosen(host).jobs().items()}
    for fitted_on in {job.host.fitted_on for job in jobs.values() if job.host}:
        assert {rows[row]["mode"] for row in fitted_on} == {"no_controller"}
        runs = [
            (jobs[rows[row]["case"]], float(rows[row]["mean_iteration_latency_s"]))
            for row in fitted_on
        ]
        fit = fitted_pass_ms(runs, 3)
        assert [job.host.pass_ms for job, _ in runs if job.host] == pytest.approx(
            [fit] * len(runs), abs=2e-3
        )


@pytest.mark.parametrize("name", ["perlmutter_llama", "perlmutter_deepseek", "perlmutter_pipeline"])
def test_perlmutter_has_the_a100_of_the_catalogue(name: str) -> None:
    catalogue = device_named("a100_40gb")
    for job in chosen(name).jobs().values():
        device = job.device
        assert (device.scale_up_gb_s, device.scale_out_gb_s, device.memory_gb_s) == (
            catalogue.fast_gb_s,
            catalogue.slow_gb_s,
            catalogue.memory_gb_s,
        )


def test_terms_of_a_step_add_up_and_name_their_rows() -> None:
    sweep = SweepSettings(("circuits",), (0.0,))
    host = replace(HOST, pass_ms=1.0, fitted_on=("one", "two"))
    variants = {"only": VariantSettings(2, 2, 1, 1, "at_end")}
    (row,) = host_rows("small", StepSettings(small(host=host), variants, sweep))
    assert row["fitted_on"] == "one, two"
    assert row["device_ms"] < row["launched_ms"] < row["step_ms"]
    without = StepSettings(small(), variants, sweep)
    assert not list(host_rows("small", without))
