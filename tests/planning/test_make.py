"""Plans end to end: from a corpus of lengths to files and tables, with every config in
conf/. Recorded plans: what comes back is what was planned; stale and missing is
refused.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from railx.io import read_rows
from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModelSettings
from railx.planning.format.files import read_plan, write_plan
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import Plan, SequenceParallelBatch
from railx.planning.format.predictions import named_cost_model
from railx.planning.format.tables import plan_rows, plan_summary, schedule_rows
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
from railx.settings import SettingsError, load, to_dict
from railx.workload.batches import BatchSettings, FilledBatchSettings, sample_batches
from railx.workload.corpus import CorpusSettings, build_corpus
from scripts.record_plans import composed_plans, planned_by_name
from tests.builders import CONF, checked, write_stage_table
from tests.loops import for_every
from workflow.choices import about
from workflow.config import choices, read_choice
from workflow.recorded_plans import PLANS, planner_code

GROUPS = {
    "corpus": CorpusSettings,
    "model": ModelSettings,
    "cost_model": CostModelSettings,
    "cluster": ClusterSettings,
    "planner": PlannerSettings,
}
PLANNED = [
    ("static", "cpu_4"),
    ("static_per_batch", "cpu_4"),
    ("flexsp", "cpu_4"),
    ("static_published", "cpu_4"),
    ("megatron", "cpu_4"),
    ("megatron_ring", "cpu_4"),
    ("dynamic_cp", "cpu_4"),
    ("byte_scale", "cpu_4"),
    ("wlb", "cpu_4"),
    ("any_degree", "cpu_4"),
    ("pipeline", "cpu_4_pipeline"),
    ("pipeline_2x1", "cpu_4_pipeline"),
    ("pipeline_2x2", "cpu_4_pipeline"),
]


def _lengths() -> Any:
    return np.minimum(np.random.default_rng(4).lognormal(5.9, 1.0, 200).astype(np.int64) + 1, 5000)


def _tiny(planner: str, cluster: str, seed: int = 1) -> Plan:
    return _planned(planner, _lengths(), BatchSettings(16, 2, 1024, "truncate"), seed, cluster)


def _planned(
    planner: str,
    lengths: npt.ArrayLike,
    batch: BatchSettings,
    seed: int = 1,
    cluster: str = "cpu_4",
    model: str = "tiny",
    cost_model: str = "analytic",
    **changes: Any,
) -> Plan:
    return make_plan(
        checked("planner", planner, **changes),
        lengths,
        checked("cluster", cluster),
        checked("model", model),
        checked("cost_model", cost_model),
        batch,
        seed,
    )


@pytest.mark.parametrize(("planner", "cluster"), PLANNED)
def test_plans_carry_the_batches_that_were_drawn(planner: str, cluster: str) -> None:
    drawn = sample_batches(_lengths(), FilledBatchSettings(16, 2, 1024, "truncate"), 1)
    plan = _tiny(planner, cluster)
    assert [
        (batch.sequences, batch.lengths) for batch in plan.batches
    ] == [(tuple(one.sequences), tuple(one.lengths)) for one in drawn]  # fmt: skip
    assert plan.tokens_per_device == checked("cluster", cluster).tokens_per_device


def test_stages_of_several_ranks_are_planned() -> None:
    plan = _tiny("pipeline_2x2", "cpu_4_pipeline")
    pipelines = [pipeline for batch in plan.pipeline_batches() for pipeline in batch.pipelines]
    assert plan.devices == 4
    assert {(pipeline.stages, pipeline.degree) for pipeline in pipelines} == {(2, 2)}
    assert {pipeline.ranks for pipeline in pipelines} == {(0, 1, 2, 3)}
    assert {row["degree"] for row in plan_rows(plan, "plan", "corpus")} == {4}


@for_every("choice", [(group, name) for group in GROUPS for name in choices(group)])
def test_choices_are_complete_and_valid(choice: tuple[str, str]) -> None:
    group, name = choice
    # No file of conf/ says where your own files are.
    path = {"path": "texts"} if name in ("file", "folder") else {}
    plain = path | read_choice(group, name)
    loaded: Any = load(GROUPS[group], plain, group)
    assert set(plain) == {field.name for field in dataclasses.fields(loaded)}
    assert load(GROUPS[group], to_dict(loaded)) == loaded
    assert about(CONF, group, name)


@pytest.mark.parametrize(("planner", "cluster"), PLANNED)
def test_plans_travel_through_files(tmp_path: Path, planner: str, cluster: str) -> None:
    plan = _tiny(planner, cluster)
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    rows = plan_rows(plan, "mine", "random")
    assert read_rows(write_stage_table(tmp_path / "plan.parquet", "plan.groups", rows)) == rows
    summary = plan_summary(plan)
    assert summary["sequences"] == 32
    assert summary["total_tokens"] == sum(row["tokens"] for row in rows)
    assert all(
        row["predicted_ms"]
        == pytest.approx(
            row["predicted_compute_ms"] + row["predicted_all_to_all_ms"] + row["predicted_other_ms"]
        )
        for row in rows
    )
    assert {row["fidelity"] for row in rows} == {"analytic"}


@pytest.mark.parametrize(("planner", "cluster"), PLANNED)
def test_plans_depend_on_the_seed_alone(planner: str, cluster: str) -> None:
    assert _tiny(planner, cluster) == _tiny(planner, cluster)
    assert _tiny(planner, cluster) != _tiny(planner, cluster, seed=2)


def test_training_plans_use_degrees_1_2_and_4() -> None:
    lengths = build_corpus(checked("corpus", "stdlib"), 1).lengths
    plan = _planned("flexsp", lengths, BatchSettings(16, 2, 1024, "truncate"))
    assert {row["degree"] for row in plan_rows(plan, "p", "stdlib")} == {1, 2, 4}


def test_pipeline_plans_mix_chunk_kinds() -> None:
    plan = _tiny("pipeline_infinipipe", "cpu_4_pipeline")
    assert {row["chunk_kind"] for row in plan_rows(plan, "p", "c")} == {
        "batched",
        "split",
        "hybrid",
    }


def test_schedule_rows_cover_every_operation() -> None:
    plan = _tiny("pipeline", "cpu_4_pipeline")
    rows = schedule_rows(plan, "mine")
    chunks = sum(
        len(pipeline.chunks) for batch in plan.pipeline_batches() for pipeline in batch.pipelines
    )
    assert len(rows) == chunks * 2 * 2
    ends = [
        max(row["end_ms"] for row in rows if row["iteration"] == batch.iteration)
        for batch in plan.batches
    ]
    assert plan_summary(plan)["predicted_batch_ms"] == pytest.approx(sum(ends) / 2)
    for row in rows:
        assert row["end_ms"] > row["start_ms"] >= 0
        assert row["plan"] == "mine"


def test_rows_place_every_group_on_its_ranks() -> None:
    plan = _tiny("flexsp", "cpu_4")
    groups = [
        group
        for batch in plan.sequence_parallel_batches()
        for micro_batch in batch.micro_batches
        for group in micro_batch.groups
    ]
    rows = plan_rows(plan, "p", "c")
    assert [tuple(range(r["first_rank"], r["first_rank"] + r["degree"])) for r in rows] == [
        group.ranks for group in groups
    ]
    # A device belongs to one group of each size: groups stand at multiples of it.
    assert all(group.ranks[0] % len(group.ranks) == 0 for group in groups)
    for batch in plan.sequence_parallel_batches():
        for index, micro_batch in enumerate(batch.micro_batches):
            times = [
                row["predicted_ms"]
                for row in rows
                if (row["iteration"], row["micro_batch"]) == (batch.iteration, index)
            ]
            assert max(times) == micro_batch.predicted_ms
    planner = checked("planner", "pipeline")
    pipelined = plan_rows(_tiny("pipeline", "cpu_4_pipeline"), "p", "c")
    assert {row["first_rank"] for row in pipelined} == {
        replica * planner.stages for replica in range(planner.replicas)
    }


@pytest.mark.parametrize("size", ["7b", "13b", "30b"])
def test_flexsp_is_predicted_faster_than_static_at_full_scale(size: str) -> None:
    lengths = build_corpus(checked("corpus", "github_like", sequences=4000), 1).lengths
    times = {}
    for planner in ("static", "static_per_batch", "flexsp"):
        changes: dict[str, Any] = {}
        plan = _planned(
            planner,
            lengths,
            BatchSettings(512, 1, 192_000, "drop"),
            cluster="a100_64",
            model=f"gpt_{size}",
            cost_model=f"flexsp_{size}",
            **changes,
        )
        times[planner] = plan_summary(plan)["predicted_batch_ms"]
    assert times["flexsp"] < times["static_per_batch"] <= times["static"]


def test_lines_for_what_cannot_be_planned() -> None:
    with pytest.raises(ValueError, match=r"^batch\.batch_size: got 16; allowed: at most 3"):
        _planned("static", [1, 2, 3], BatchSettings(16, 1, 64, "drop"), 0)
    with pytest.raises(SettingsError, match=r"^cost_model\.model"):
        _planned("static", [1, 2, 3], BatchSettings(2, 1, 64, "drop"), 0, cost_model="flexsp_7b")
    with pytest.raises(
        ValueError,
        match=(
            r"^sequence 1: 2000 tokens; allowed: at most 1536, the longest that a group of degree 4"
            r" holds"
        ),
    ):
        _planned("flexsp", [5, 2000], BatchSettings(2, 1, 9999, "drop"), 0)


@pytest.mark.parametrize("planner", ["flexsp", "flexsp_milp", "static_per_batch"])
def test_times_without_end_are_refused(planner: str) -> None:
    def planned(cluster: Any, **constants: Any) -> Plan:
        return make_plan(
            checked("planner", planner),
            [40, 700, 90],
            checked("cluster", "cpu_4", **cluster),
            checked("model", "tiny"),
            checked("cost_model", "analytic", **constants),
            BatchSettings(None, 1, None, "drop"),
            1,
        )

    slow = {"all_to_all_gb_s": {"2": 0.1, "4": 1e-17}}
    with pytest.raises(
        SettingsError, match=r"^cluster\.all_to_all_gb_s: got a time of .* ms for 7"
    ):
        planned(slow)
    with pytest.raises(SettingsError, match=r"^cost_model: got a time of 1\.0e\+18 ms for 700 tok"):
        planned({}, constant_ms=1e18)
    assert planned({}, constant_ms=1e12).batches


def test_traffic_of_sharding_is_counted_for_every_micro_batch() -> None:
    traffic = {
        "gb_s": 0.5, "parameter_bytes": 2, "gradient_bytes": 2, "exposed_share": 0.5,
    }  # fmt: skip
    plan = make_plan(
        checked("planner", "static"),
        [300] * 10,
        checked("cluster", "cpu_4"),
        checked("model", "tiny"),
        checked("cost_model", "analytic", sharding=traffic),
        BatchSettings(5, 2, None, "drop"),
        1,
    )
    counts = [len(batch.micro_batches) for batch in plan.sequence_parallel_batches()]
    assert counts == [2, 2]
    each_ms = named_cost_model(plan).cost.sharding_ms
    assert each_ms > 0
    assert plan_summary(plan)["predicted_sharding_ms"] == pytest.approx(sum(counts) / 2 * each_ms)


LENGTHS = np.minimum(np.random.default_rng(4).lognormal(5.9, 1.0, 200).astype(np.int64) + 1, 1024)


def _flexsp_plan(plan: Any = None, batches: int = 2, seed: int = 1, **changes: Any) -> Plan:
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

    return _flexsp_plan(plan)


def _read(path: Path, code: str = "today") -> Any:
    return lambda planner, task: recorded(planner, task, path, code)


def test_a_recorded_plan_is_the_plan(tmp_path: Path) -> None:
    planned = _write(tmp_path / "plan.jsonl")
    again = _flexsp_plan(_read(tmp_path / "plan.jsonl"))
    batches = again.sequence_parallel_batches()
    for batch, other in zip(batches, planned.sequence_parallel_batches(), strict=True):
        assert batch.micro_batches == other.micro_batches
        assert (batch.sequences, batch.lengths) == (other.sequences, other.lengths)


def test_fewer_batches_than_recorded_are_the_first(tmp_path: Path) -> None:
    planned = _write(tmp_path / "plan.jsonl")
    fewer = _flexsp_plan(_read(tmp_path / "plan.jsonl"), batches=1)
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
        _flexsp_plan(_read(tmp_path / "plan.jsonl", code), **changes)
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
