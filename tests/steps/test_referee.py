"""The closed form of a step against the replay of the same plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from railx.errors import UserError
from railx.performance.closed import step_times
from railx.performance.layers import Layers
from railx.performance.plans import Plan, Plans
from railx.steps.random_plans import draw
from railx.steps.referee import replayed_step_s


def errors(seeds: range) -> np.ndarray:
    """Relative errors of the closed form on drawn plans."""
    result = []
    for seed in seeds:
        setting, plan = draw(seed)
        closed = step_times(setting, Plans.of([plan])).total_s[0]
        result.append(closed / replayed_step_s(setting, plan) - 1)
    return np.array(result)


def test_the_closed_form_agrees_with_the_replay_on_a_hundred_plans() -> None:
    assert np.abs(errors(range(100))).max() < 0.02


def test_the_closed_form_agrees_where_stages_and_messages_are_uneven() -> None:
    """Stages in the middle that are the slowest (1016, 3263), few micro-batches in
    uneven stages (402, 1968), messages longer than the passes of virtual stages (256).
    """
    for seed in (256, 402, 1016, 1968, 3263):
        assert abs(errors(range(seed, seed + 1))[0]) < 0.005, seed


@pytest.mark.slow
def test_the_closed_form_agrees_with_the_replay_on_a_thousand_plans() -> None:
    assert np.abs(errors(range(1000))).max() < 0.02


def test_a_plan_without_a_pipeline_takes_the_same_time() -> None:
    setting, _ = draw(0)
    plan = Plan(tensor=4, data=2, micro_batches=5, sequence_tokens=2048, sequence_parallel=True)
    closed = step_times(setting, Plans.of([plan])).total_s[0]
    assert replayed_step_s(setting, plan) == pytest.approx(closed, rel=1e-4)


def test_even_stages_without_messages_have_the_bubble_of_the_paper() -> None:
    """(p - 1) / (v m) of the stages' work (Narayanan 2021, section 2.2)."""
    setting, _ = draw(0)
    network = replace(
        setting.network,
        fast_gb_s=1e12, slow_gb_s=1e12, fast_latency_s=0.0, slow_latency_s=0.0, table=None,
    )  # fmt: skip
    model = replace(setting.model, layers=24, window_tokens=0, window_layers=0, vocabulary=2)
    setting = replace(setting, network=network, model=model)
    for schedule, virtual in (("1f1b", 1), ("gpipe", 1), ("interleaved", 3)):
        plan = Plan(
            pipeline=4, micro_batches=8, virtual=virtual, schedule=schedule, sequence_tokens=2048
        )
        times = step_times(setting, Plans.of([plan]))
        work = times.parts["compute"][0]
        assert times.parts["bubble"][0] == pytest.approx(work * 3 / 8 / virtual, rel=1e-3)
        assert replayed_step_s(setting, plan) == pytest.approx(times.total_s[0], rel=1e-3)


def test_stages_that_wait_for_their_messages_are_busy_with_them() -> None:
    setting, _ = draw(1)
    plan = Plan(pipeline=4, micro_batches=32, sequence_tokens=4096)
    times = [
        step_times(replace(setting, program=program), Plans.of([plan])).total_s[0]
        for program in (replace(setting.program, waits_for_sends=waits) for waits in (False, True))
    ]
    hop = Layers(setting, Plans.of([plan])).hop()[0]
    assert times[1] - times[0] > 30 * hop
    waiting = replace(setting, program=replace(setting.program, waits_for_sends=True))
    assert replayed_step_s(waiting, plan) == pytest.approx(times[1], rel=1e-3)


def test_a_plan_of_too_many_ranks_ends_in_one_line() -> None:
    setting, _ = draw(0)
    with pytest.raises(UserError, match="plan: got 2048 devices; allowed: at most 1024"):
        replayed_step_s(setting, Plan(data=2048))
