"""Programs against closed forms, and one rail against all of them; the closed form of a
step against the replay of the same plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.errors import UserError
from railx.fabric.settings import Mode
from railx.performance.closed import step_lower_bound_s, step_times
from railx.performance.layers import Layers
from railx.performance.plans import Plan, Plans
from railx.replay.programs import DOES, Programs
from railx.steps.layers import stage_units
from railx.steps.programs import job_ranks, programs, templates
from railx.steps.random_plans import draw
from railx.steps.referee import replayed_step_s
from railx.steps.settings import StepJob
from railx.steps.sweep import circuit_model
from tests.replay.programs import steps_of
from tests.replay.reference import replay
from tests.steps.jobs import EXPERTS, MODEL, small


def made(
    job: StepJob, *, electrical: bool = False, iterations: int = 1, whole: bool = False
) -> Programs:
    return programs(job, electrical=electrical, iterations=iterations, all_ranks=whole)


def step_ns(
    job: StepJob,
    mode: Mode = "electrical",
    latency_ns: int = 0,
    rule: str = "circuits",
    *,
    iterations: int = 1,
    whole: bool = False,
) -> int:
    """The last step of the slowest rank, by the plain engine."""
    own = made(job, electrical=mode == "electrical", iterations=iterations, whole=whole)
    model: Any = circuit_model(job, rule, all_ranks=whole)
    rows = replay(steps_of(own), model, mode, latency_ns)
    return max(row.duration_ns for row in rows if row.iteration == iterations - 1)


MODES: tuple[Mode, ...] = ("electrical", "on_demand", "provisioned")
#: A layer forward: two operations for each of 4 tokens and 30 weights.
LAYER = 2 * 4 * 30


def test_one_rank_computes_forward_and_twice_that_backward() -> None:
    assert step_ns(small()) == 2 * 4 * 3 * LAYER
    assert step_ns(small(recomputed=True)) == 2 * 4 * 4 * LAYER


def test_a_pipeline_has_its_bubble() -> None:
    """(m + p - 1) passes of a stage, and messages between."""
    hop = 4 * 2 * 2
    for stages in (2, 4):
        passes = (2 + stages - 1) * 4 // stages * 3 * LAYER
        found = step_ns(small(pipeline=stages))
        assert passes + 2 * (stages - 1) * hop <= found <= passes + 4 * stages * hop


def test_tensor_ranks_share_the_work_and_reduce_twice_each_way() -> None:
    job = small(tensor=2, micro_batches=1)
    reduced = 4 * 2 * 2  # bytes of a micro-batch; (n - 1) / n twice is once
    assert step_ns(job) == 4 * (3 * LAYER // 2 + 4 * reduced)
    split = small(tensor=2, micro_batches=1, sequence_parallel=True)
    assert step_ns(split) == 4 * (3 * LAYER // 2 + 10 * reduced // 2)


def test_gradients_at_the_end_come_after_computation_and_overlapped_ones_behind_it() -> None:
    weights = 4 * 30 * 2
    assert step_ns(small(data=2)) == 24 * LAYER + weights
    assert step_ns(small(data=2, gradients="in_line")) == 24 * LAYER + weights
    assert step_ns(small(data=2, gradients="overlapped")) == 24 * LAYER + weights // 4


def test_shards_are_gathered_before_every_pass_and_scattered_once() -> None:
    job = small(data=2, parameters="sharded", small_reductions=1)
    (template,) = templates(job, electrical=True)
    kinds = [move.kind for move in template.moves if move.does == "issue"]
    assert kinds.count("all_gather") == 2 * 2 * 4
    assert kinds.count("reduce_scatter") == 4
    assert kinds[-1] == "all_reduce"
    # The gather of a unit hides behind the unit before it.
    half = 30 * 2 // 2
    assert step_ns(job) == 24 * LAYER + 4 * half + half + 4


@pytest.mark.parametrize(
    ("gradients", "stages", "switches"),
    [
        ("at_end", 2, 2), ("at_end", 4, 4),
        ("overlapped", 2, 2), ("overlapped", 4, 6),
        ("in_line", 2, 4), ("in_line", 4, 10),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", ["circuits", "stage_bits"])
def test_switches_of_a_step_on_demand(
    gradients: Any, stages: int, switches: int, rule: str
) -> None:
    """Milliseconds of step for one of latency, far below what a layer computes."""
    deep = replace(MODEL, layers=16, dense_layers=16)
    job = small(
        model=deep,
        data=2,
        pipeline=stages,
        gradients=gradients,
        micro_batches=1,
        sequence_tokens=64,
    )
    added = step_ns(job, "on_demand", 20, rule) - step_ns(job, "on_demand", 10, rule)
    assert added == 10 * switches


@pytest.mark.parametrize("rule", ["circuits", "stage_bits"])
def test_fsdp_over_two_stages_switches_six_times(rule: str) -> None:
    job = small(data=2, pipeline=2, parameters="sharded", sequence_tokens=64)
    times = [step_ns(job, "on_demand", n, rule, iterations=3) for n in (10_000, 20_000)]
    assert times[1] - times[0] == 6 * 10_000


def test_a_pipeline_alone_never_waits_for_light_again() -> None:
    job = small(pipeline=4, tensor=2)
    for mode in MODES[1:]:
        assert step_ns(job, mode, 10**6, iterations=2) == step_ns(job)


JOBS = st.fixed_dictionaries(
    {
        "data": st.sampled_from([1, 2, 4]),
        "pipeline": st.sampled_from([1, 2]),
        "tensor": st.sampled_from([1, 2]),
        "context": st.sampled_from([1, 2]),
        "context_in_server": st.booleans(),
        "micro_batches": st.integers(1, 3),
        "parameters": st.sampled_from(["replicated", "sharded"]),
        "gradients": st.sampled_from(["at_end", "overlapped", "in_line"]),
        "small_reductions": st.integers(0, 1),
        "sequence_parallel": st.booleans(),
    }
)


@settings(max_examples=8)
@given(
    JOBS,
    st.sampled_from(["circuits", "stage_bits"]),
    st.sampled_from(["electrical", "on_demand", "provisioned"]),
)
def test_one_rail_stands_for_all(changes: dict[str, Any], rule: str, mode: Mode) -> None:
    job = small(**changes)
    assert step_ns(job, mode, 50, rule) == step_ns(job, mode, 50, rule, whole=True)


def test_one_rail_stands_for_all_with_experts_across_servers() -> None:
    job = small(model=EXPERTS, data=4, pipeline=2, tensor=2, expert=4)
    for mode in MODES:
        assert step_ns(job, mode, 50) == step_ns(job, mode, 50, whole=True)


@settings(max_examples=8)
@given(JOBS, st.sampled_from([False, True]))
def test_programs_are_conserved(changes: dict[str, Any], whole: bool) -> None:
    """Every operation is issued and waited for once on each of its members."""
    job = small(**changes)
    own = made(job, whole=whole, iterations=2)
    assert own.ranks == job_ranks(job, all_ranks=whole)
    columns = own.columns
    issued, waited = (columns["does"] == DOES.index(word) for word in ("issue", "wait"))
    members = np.array([len(one.members) for one in own.configurations] or [0])
    keys, counts = np.unique(
        np.stack([columns[name][issued] for name in ("channel", "sequence", "configuration")]),
        axis=1,
        return_counts=True,
    )
    assert (counts == members[keys[2]]).all()
    assert sorted(zip(columns["channel"][issued], columns["sequence"][issued], strict=True)) == (
        sorted(zip(columns["channel"][waited], columns["sequence"][waited], strict=True))
    )


def test_interleaved_stages_take_turns() -> None:
    job = small(pipeline=2, parts=2, schedule="interleaved", data=2)
    assert [[len(part) for part in stage] for stage in stage_units(job)] == [[1, 1], [1, 1]]
    plain = step_ns(small(pipeline=2, data=2))
    assert step_ns(job) < plain
    for mode in MODES[1:]:
        assert step_ns(job, mode, 10) > step_ns(job)


def test_exchanges_go_round_the_ring_of_their_servers() -> None:
    """(k - 1) / 2 of the payload for k servers, and (k - 1) / k by packet switches."""
    job = small(model=EXPERTS, data=4, expert=4, expert_over="data", micro_batches=1)
    payload = 4 * 2 * 2 * 2
    (rails,), (packets,) = (templates(job, electrical=own) for own in (False, True))
    for template, share in ((rails, 3 / 2), (packets, 3 / 4)):
        sent = [move.sent_bytes for move in template.moves if move.kind == "all_to_all"]
        assert sent == [payload * share] * (3 * 4)


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
    uneven stages (402, 1968), messages longer than the passes of virtual stages (256);
    gathers behind layers of another kind (1821, 5819); a scatter that ends with dense
    layers (5181), a late stage's first gathers (2819), windows in some parts (3301),
    scatters of the other virtual stages (4729).
    """
    for seed in (256, 402, 1016, 1821, 1968, 2819, 3263, 3301, 4729, 5181, 5819):
        assert abs(errors(range(seed, seed + 1))[0]) < 0.005 + 0.002 * (seed == 2819), seed


@pytest.mark.parametrize("rounds", [1, 3, 12])
def test_virtual_stages_of_unequal_layers_take_as_long_as_replayed(rounds: int) -> None:
    """Of twelve rounds of micro-batches the last ones are not run."""
    for seed in range(1, 40 // rounds, 3):
        setting, plan = draw(seed)
        parts = plan.pipeline * plan.virtual
        layers = setting.model.layers + 1 + seed % (parts - 1)
        setting = replace(setting, model=replace(setting.model, layers=layers))
        plan = replace(plan, micro_batches=rounds * plan.pipeline)
        total_s = step_times(setting, plans := Plans.of([plan])).total_s[0]
        assert step_lower_bound_s(setting, plans)[0] <= total_s
        assert replayed_step_s(setting, plan) == pytest.approx(total_s, rel=0.001), seed


def test_virtual_stages_of_dense_layers_and_experts_take_as_long_as_replayed() -> None:
    """Alone and in a table with a plan of more stages."""
    setting, plan = draw(16)
    experts = {"experts": 8, "experts_per_token": 2, "expert_feed_forward": 8192}
    model = replace(setting.model, layers=12, dense_layers=4, window_tokens=0, **experts)
    setting = replace(setting, model=model)
    plan = replace(plan, pipeline=3, virtual=2, micro_batches=6)
    more = replace(plan, pipeline=4, virtual=1, schedule="1f1b")
    total_s = step_times(setting, Plans.of([plan, more])).total_s
    assert total_s[0] == step_times(setting, Plans.of([plan])).total_s[0]
    assert replayed_step_s(setting, plan) == pytest.approx(total_s[0], rel=0.001)


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
