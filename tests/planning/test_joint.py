"""The joint planner: never slower than groups or pipelines of any shape."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.pipeline_cost import PipelineShape, build_pipeline_cost
from railx.planning.format.files import read_plan, write_plan
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import PipelineBatch, SequenceParallelBatch
from railx.planning.format.tables import plan_rows, schedule_rows
from railx.planning.joint import JOINT, JointSettings, pipeline_bound_ms, shapes_of
from railx.planning.make import make_plan
from railx.planning.pipeline.infinipipe import PIPELINE
from railx.planning.planner import PlanningTask
from railx.planning.sequence.flexsp import FLEXSP
from railx.workload.batches import BatchSettings
from tests.builders import ROOT, checked
from tests.planning.pipeline_rules import batch_of, cost_of, task_of


def _settings(most_stages: int = 4) -> JointSettings:
    """With balanced chunks alone, which are planned in a tenth of the time."""
    chosen: JointSettings = checked("planner", "joint", most_stages=most_stages)
    return replace(
        chosen,
        pipeline=replace(chosen.pipeline, most_slices=4, alignment_tokens=16, chunking="balanced"),
    )


def _total_ms(batches: Any) -> float:
    return float(sum(batch.predicted_ms for batch in batches))


def _alternatives(chosen: JointSettings, task: PlanningTask) -> dict[str, float]:
    """Groups and every shape that memory allows, each planned on its own."""
    found: dict[str, Any] = {"groups": lambda: FLEXSP.plan(chosen.sequence_parallel, task)}
    for shape in shapes_of(task, chosen.most_stages):
        own = replace(
            chosen.pipeline,
            stages=shape.stages,
            replicas=shape.replicas,
            sequence_parallel_degree=shape.degree,
        )
        name = f"{shape.stages}x{shape.degree}x{shape.replicas}"
        found[name] = lambda own=own: PIPELINE.plan(own, task)
    times = {}
    for name, plan in found.items():
        try:
            times[name] = _total_ms(plan())
        except ValueError:
            continue
    return times


def test_the_bound_by_hand() -> None:
    """Two replicas of two stages share (0.3 + 3e-3 s) s + 0.05 s; one has the longest.

    A chunk takes 9 ms whatever it holds.
    """
    cost = cost_of(stages=2, replicas=2, constant_ms=3.0)
    works = [0.35 * length + 3e-3 * length**2 for length in (100, 90, 40)]
    assert pipeline_bound_ms(batch_of([100, 90, 40]), cost) == pytest.approx(sum(works) / 2 + 9)
    assert pipeline_bound_ms(batch_of([100, 10]), cost) == pytest.approx(works[0] + 9)


@settings(deadline=None, max_examples=5)
@given(
    st.lists(st.lists(st.integers(1, 1200), min_size=4, max_size=8), min_size=1, max_size=2),
    st.sampled_from([320, 500]),
)
def test_never_slower_than_either(batches: list[list[int]], tokens: int) -> None:
    task, chosen = task_of(*batches, tokens=tokens), _settings()
    made: Any = JOINT.plan(chosen, task)
    alone = _alternatives(chosen, task)
    assert _total_ms(made) == pytest.approx(min(alone.values()), rel=1e-12)
    assert alone[str(made[0].solver["chosen"])] == pytest.approx(_total_ms(made), rel=1e-12)
    for index, batch in enumerate(made):
        tried: Any = batch.solver["tried_ms"]
        assert batch.solver["lower_bound_ms"] <= batch.predicted_ms * (1 + 1e-12)
        assert set(tried) <= set(alone)
        for shape in shapes_of(task, 4):
            cost = build_pipeline_cost(
                task.constants, task.cluster, task.model, task.max_length_tokens, shape
            )
            name = f"{shape.stages}x{shape.degree}x{shape.replicas}"
            bound = pipeline_bound_ms(task.batches[index], cost)
            assert bound <= tried.get(name, float("inf")) * (1 + 1e-12)
    assert len(made[0].solver["tried_ms"]) + made[0].solver["not_planned"] == 1 + len(
        shapes_of(task, 4)
    )


@pytest.mark.parametrize(
    ("lengths", "tokens"), [([1000, 700, 650, 300, 90, 40], 330), ([900] * 3 + [200] * 6, 500)]
)
def test_never_slower_than_any_shape_searched_in_full(lengths: list[int], tokens: int) -> None:
    """The joint planner searches at full effort at a few shapes alone."""
    chosen = _settings()
    chosen = replace(chosen, pipeline=replace(chosen.pipeline, chunking="searched"))
    task = task_of(lengths, tokens=tokens)
    alone = _alternatives(chosen, task)
    assert len(alone) > 2
    assert _total_ms(JOINT.plan(chosen, task)) <= min(alone.values()) * (1 + 1e-9)


def test_each_wins_somewhere() -> None:
    """Short sequences stay in groups of one; long ones that no two ranks hold go
    through a pipeline, because all-to-alls over all ranks are slow.
    """
    short = JOINT.plan(_settings(), task_of([100] * 20, tokens=400))
    long = JOINT.plan(_settings(), task_of([1000] * 6, tokens=330))
    assert isinstance(short[0], SequenceParallelBatch)
    assert isinstance(long[0], PipelineBatch)
    assert long[0].solver["chosen"] == "4x1x1"


def test_shapes_fill_the_devices() -> None:
    found = shapes_of(task_of([10], devices=8), 8)
    # Four layers: no more stages; eight ranks of a stage leave no second one.
    assert found == [
        PipelineShape(2, 1, 4), PipelineShape(2, 2, 2), PipelineShape(2, 4, 1),
        PipelineShape(4, 1, 2), PipelineShape(4, 2, 1),
    ]  # fmt: skip
    assert shapes_of(task_of([10], devices=8), 1) == []
    assert shapes_of(task_of([10], devices=1), 4) == []
    six = [(2, 1, 3), (3, 1, 2), (3, 2, 1)]
    assert shapes_of(task_of([10], devices=6), 4) == [PipelineShape(*one) for one in six]


def test_a_shape_that_a_bound_rules_out_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def counted(own: Any, task: PlanningTask) -> Any:
        planned.append((own.stages, own.sequence_parallel_degree, own.replicas))
        return PIPELINE.plan(own, task)

    monkeypatch.setattr("railx.planning.joint.PIPELINE", replace(PIPELINE, plan=counted))
    made: Any = JOINT.plan(_settings(), task_of([1000] * 6, tokens=330))
    assert made[0].solver["not_planned"] == 1
    assert planned == [(4, 1, 1), (2, 1, 2)]


def _planned(lengths: list[int], **cluster: Any) -> Any:
    return make_plan(
        _settings(),
        lengths,
        checked("cluster", "cpu_4", **cluster),
        checked("model", "tiny"),
        checked("cost_model", "analytic"),
        BatchSettings(None, 1, None, "truncate"),
        1,
    )


def test_a_plan_is_of_the_kind_that_won(tmp_path: Path) -> None:
    for lengths, kind in (([100] * 20, "sequence_parallel"), ([1000] * 6, "pipeline")):
        plan = _planned(lengths)
        assert (plan.kind, plan.planner, plan.devices) == (kind, "joint", 4)
        assert plan.batches[0].solved_by == "joint"
        assert plan.batches[0].lower_bound_ms <= plan.batches[0].predicted_ms
        write_plan(tmp_path / "plan.json", plan)
        assert read_plan(tmp_path / "plan.json") == plan
        assert {row["kind"] for row in plan_rows(plan, "mine", "some")} == {kind}
    assert schedule_rows(plan, "mine")


def test_the_stored_table_is_never_slower_than_either() -> None:
    """benchmarks/joint.csv, at full scale."""
    with (ROOT / "benchmarks" / "joint.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["joint_ms"]]
    assert rows
    for row in rows:
        both = {"groups": row["groups_ms"], row["best_pipeline"]: row["pipelines_ms"]}
        times = {name: float(ms) for name, ms in both.items() if ms}
        assert float(row["joint_ms"]) == times[row["chosen"]] == min(times.values())


def test_what_nothing_holds_is_named() -> None:
    with pytest.raises(PlanError, match=r"^sequence 11: 90000 tokens; allowed: .* of \d shapes$"):
        JOINT.plan(_settings(), task_of([5, 90_000], tokens=10))
    # Groups alone hold what they hold.
    with pytest.raises(PlanError, match=r"any of 0 shapes$"):
        JOINT.plan(_settings(most_stages=1), task_of([5, 90_000], tokens=10))
