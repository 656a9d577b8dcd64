"""Recorded plans: what comes back is what was planned; stale and missing is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModelSettings
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import Plan, SequenceParallelBatch
from railx.planning.make import make_plan
from railx.planning.planner import PlannerBase, PlanningTask
from railx.planning.planners import PlannerSettings, planner_of
from railx.planning.recorded import (
    BatchRecord,
    digests,
    groups_of,
    read_records,
    recorded,
    write_records,
)
from railx.settings import load
from railx.workload.batches import BatchSettings
from scripts.record_plans import composed_plans, planned_by_name
from workflow.config import read_choice
from workflow.recorded_plans import PLANS, planner_code

LENGTHS = np.minimum(np.random.default_rng(4).lognormal(5.9, 1.0, 200).astype(np.int64) + 1, 1024)


def _planned(plan: Any = None, batches: int = 2, seed: int = 1, **changes: Any) -> Plan:
    return make_plan(
        load(PlannerSettings, read_choice("planner", "flexsp")),
        LENGTHS,
        load(ClusterSettings, read_choice("cluster", "cpu_4") | changes.get("cluster", {})),
        load(ModelSettings, read_choice("model", "tiny")),
        load(CostModelSettings, read_choice("cost_model", "analytic")),
        BatchSettings(16, batches, 1024, "truncate"),
        seed,
        plan=plan,
    )


def _total_ms(batch: SequenceParallelBatch) -> float:
    return sum(part.predicted_ms for part in batch.micro_batches)


def _write(path: Path, code: str = "today") -> Plan:
    def plan(planner: PlannerBase, task: PlanningTask) -> tuple[Any, ...]:
        made: tuple[Any, ...] = planner_of(planner).plan(planner, task)
        records = {
            batch: BatchRecord(
                batch,
                digests(planner, task, drawn, code),
                groups_of(planned, drawn),
                dict(planned.solver),
                0.0,
                0.0,
                {},
            )
            for batch, (planned, drawn) in enumerate(zip(made, task.batches, strict=True))
        }
        write_records(path, records)
        return made

    return _planned(plan)


def _read(path: Path, code: str = "today") -> Any:
    return lambda planner, task: recorded(planner, task, path, code)


def test_a_recorded_plan_is_the_plan(tmp_path: Path) -> None:
    planned = _write(tmp_path / "plan.jsonl")
    again = _planned(_read(tmp_path / "plan.jsonl"))
    batches = again.sequence_parallel_batches()
    for batch, other in zip(batches, planned.sequence_parallel_batches(), strict=True):
        assert batch.micro_batches == other.micro_batches
        assert (batch.sequences, batch.lengths) == (other.sequences, other.lengths)


def test_fewer_batches_than_recorded_are_the_first(tmp_path: Path) -> None:
    planned = _write(tmp_path / "plan.jsonl")
    fewer = _planned(_read(tmp_path / "plan.jsonl"), batches=1)
    (batch,), (first, _) = fewer.sequence_parallel_batches(), planned.sequence_parallel_batches()
    assert batch.micro_batches == first.micro_batches


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({}, "tomorrow", "the planner's code changed"),
        ({"seed": 2}, "today", "cost model, devices or seed and the batch drawn"),
        ({"cluster": {"tokens_per_device": 400}}, "today", "cost model, devices or seed changed"),
        ({"batches": 3}, "today", "has 2 batches, not batch 2"),
    ],
)
def test_other_inputs_are_refused(
    tmp_path: Path, changes: dict[str, Any], code: str, words: str
) -> None:
    _write(tmp_path / "plan.jsonl")
    with pytest.raises(PlanError, match=words) as error:
        _planned(_read(tmp_path / "plan.jsonl", code), **changes)
    assert "\n" not in str(error.value)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    _write(path)
    path.write_text(path.read_text(encoding="utf-8") + '{"batch": 2}\n', encoding="utf-8")
    with pytest.raises(PlanError, match=r"plan\.jsonl: line 3"):
        read_records(path)


def test_plans_in_git_are_of_today_and_cost_what_they_did() -> None:
    """Refused here means: planner, constants or corpus changed; record them again."""
    records = {path.stem: read_records(path) for path in sorted(PLANS.glob("*.jsonl"))}
    experiment = composed_plans({name: len(batches) for name, batches in records.items()})
    assert records
    for name, batches in records.items():
        assert sorted(batches) == list(range(len(batches))), name
        plan = planned_by_name(name, experiment, recorded)
        totals = [_total_ms(batch) for batch in plan.sequence_parallel_batches()]
        assert totals == pytest.approx([batches[n].predicted_ms for n in sorted(batches)])
        # The published planner keeps the best of its trials.
        for number, record in batches.items():
            trials = [t["predicted_ms"] for t in record.solver["trials"] if t["predicted_ms"]]
            assert totals[number] == pytest.approx(min(trials)), name


def test_a_planner_is_another_once_its_code_is() -> None:
    one = planner_code(type(load(PlannerSettings, read_choice("planner", "flexsp_milp"))))
    other = planner_code(type(load(PlannerSettings, read_choice("planner", "flexsp"))))
    assert one != other
