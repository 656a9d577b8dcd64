"""Time of the host in steps: least times, the measured constant, and its fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from railx.performance.programs import constants_named
from railx.steps.host import fitted_pass_ms, host_rows, step_seconds
from railx.steps.layers import layer_segments, stage_units
from railx.steps.settings import HostSettings, StepJob, StepSettings, SweepSettings, VariantSettings
from tests.builders import published
from tests.steps.jobs import chosen, small

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


@pytest.mark.parametrize("pass_ms", [2.0, 50.0])
def test_the_fit_finds_the_constant_of_a_run_back(pass_ms: float) -> None:
    job = small(pipeline=2, host=replace(HOST, pass_ms=pass_ms))
    run = (replace(job, host=HOST), step_seconds(job, 1))
    assert fitted_pass_ms([run], 1) == pytest.approx(pass_ms, rel=1e-3)
    with pytest.raises(ValueError, match="without a host"):
        fitted_pass_ms([(small(), 1.0)], 1)


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


def test_terms_of_a_step_add_up_and_name_their_rows() -> None:
    sweep = SweepSettings(("circuits",), (0.0,))
    host = replace(HOST, pass_ms=1.0, fitted_on=("one", "two"))
    variants = {"only": VariantSettings(2, 2, 1, 1, "at_end")}
    (row,) = host_rows("small", StepSettings(small(host=host), variants, sweep))
    assert row["fitted_on"] == "one, two"
    assert row["device_ms"] < row["launched_ms"] < row["step_ms"]
    without = StepSettings(small(), variants, sweep)
    assert not list(host_rows("small", without))
