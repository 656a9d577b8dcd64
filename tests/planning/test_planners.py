"""The list of planners: what an entry of it needs, and what it brings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest

from railx.planning import planners
from railx.planning.format.files import read_plan, write_plan
from railx.planning.format.plan import Plan, SequenceParallelBatch
from railx.planning.format.tables import plan_rows, plan_summary
from railx.planning.groups import micro_batch
from railx.planning.make import make_plan
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.planners import PLANNERS, PlannerSettings, planner_of
from railx.settings import SettingsError, load
from railx.workload.batches import BatchSettings
from tests.builders import checked
from tests.commands import loaded


@dataclass(frozen=True)
class OneByOneSettings(PlannerBase):
    """Every sequence alone, on all devices."""

    planner: Literal["one_by_one"]
    """Which planner it is."""

    backwards: bool
    """Whether the last sequence of a batch comes first."""


def _one_by_one(
    settings: OneByOneSettings, task: PlanningTask
) -> tuple[SequenceParallelBatch, ...]:
    from railx.planning.groups import Assignment

    order = -1 if settings.backwards else 1
    return tuple(
        SequenceParallelBatch(
            index,
            tuple(
                micro_batch(
                    Assignment((task.devices,), ((position,),)),
                    batch.sequences,
                    batch.lengths,
                    task.cost,
                )
                for position in list(range(len(batch.lengths)))[::order]
            ),
        )
        for index, batch in enumerate(task.batches)
    )


ONE_BY_ONE = Planner("one_by_one", "sequence_parallel", OneByOneSettings, _one_by_one)


def test_an_entry_of_the_list_is_all_that_a_planner_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"planner": "one_by_one", "backwards": True}
    with pytest.raises(SettingsError, match=r"planner\.planner: got 'one_by_one'; allowed: "):
        load(PlannerSettings, plain, "planner")
    monkeypatch.setattr(planners, "PLANNERS", (*PLANNERS, ONE_BY_ONE))
    settings: Any = load(PlannerSettings, plain, "planner")
    assert settings == OneByOneSettings("one_by_one", True)
    lengths = np.array([300, 200, 100])
    plan = make_plan(
        settings,
        lengths,
        checked("cluster", "cpu_4"),
        checked("model", "tiny"),
        checked("cost_model", "analytic"),
        BatchSettings(3, 1, 1024, "truncate"),
        1,
    )
    assert (plan.kind, plan.planner, plan.devices) == ("sequence_parallel", "one_by_one", 4)
    rows = plan_rows(plan, "mine", "three")
    assert [row["degree"] for row in rows] == [4, 4, 4]
    drawn = [int(lengths[m.groups[0].sequences[0]]) for m in plan.batches[0].micro_batches]  # type: ignore[union-attr]
    assert [row["tokens"] for row in rows] == drawn
    assert sorted(drawn) == [100, 200, 300]


def test_settings_name_their_planner() -> None:
    for planner in PLANNERS:
        assert get_args(get_type_hints(planner.settings)["planner"]) == (planner.name,)


@pytest.mark.parametrize(
    ("name", "kind", "ranks"),
    [
        ("static", "sequence_parallel", 64),
        ("flexsp", "sequence_parallel", 64),
        ("pipeline_2x1", "pipeline", 2),
        ("pipeline_2x2", "pipeline", 4),
    ],
)
def test_a_planner_says_the_kind_and_the_ranks_of_its_plans(
    name: str, kind: str, ranks: int
) -> None:
    settings = checked("planner", name)
    assert planner_of(settings).kind == kind
    assert planner_of(settings).ranks_of(settings, 64) == ranks


def _planned(planner: str, lengths: Any) -> Plan:
    return make_plan(
        checked("planner", planner),
        lengths,
        checked("cluster", "a100_64"),
        checked("model", "gpt_7b"),
        checked("cost_model", "flexsp_7b"),
        checked("batch", "whole"),
        1,
    )


#: Tokens that a planner holds nowhere, where that is more than of others: some
#: recompute all layers over all devices.
TOO_LONG = {"megatron_pipeline": 8_000_000, "joint": 8_000_000}


@pytest.mark.parametrize("planner", [planner.name for planner in PLANNERS])
def test_every_planner_in_a_tight_place(planner: str, tmp_path: Path) -> None:
    """A batch of one; plans that are the same each time, also from a file; a sequence
    that nothing holds; lengths that are none.
    """
    if planner_of(checked("planner", planner)).kind == "sequence_parallel":
        assert plan_summary(_planned(planner, [9000]))["total_tokens"] == 9000
    lengths = [5000, 400, 3000, 9000, 30, 900, 2000, 700]
    plan = _planned(planner, lengths)
    assert plan == _planned(planner, lengths)
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    too_long = TOO_LONG.get(planner, 3_000_000)
    # Few devices of a pipeline do not even hold the table of so many positions.
    with pytest.raises(ValueError, match=rf"{too_long}|^cluster\.memory_gib") as refused:
        _planned(planner, [100, too_long, 200])
    assert "allowed: " in str(refused.value)
    assert "\n" not in str(refused.value)
    nan = float("nan")
    for wrong, said in (([5, 0], "0"), ([5, -3], "-3"), ([5, nan], "nan"), ([5, 1.5], "1.5")):
        with pytest.raises(ValueError, match=f"^sequence 1: got {said}(.0)? tokens; allowed: a wh"):
            _planned(planner, wrong)
    with pytest.raises(ValueError, match=r"^lengths: no sequences; allowed: at least one length"):
        _planned(planner, [])


@pytest.mark.parametrize(
    "planner", [planner.name for planner in PLANNERS if planner.kind == "sequence_parallel"]
)
def test_the_devices_may_be_any_number(planner: str) -> None:
    plan = make_plan(
        checked("planner", planner),
        [5000, 400, 3000, 9000, 30, 900, 2000, 700],
        checked("cluster", "a100_64", devices=48),
        checked("model", "gpt_7b"),
        checked("cost_model", "flexsp_7b_zero3"),
        checked("batch", "whole"),
        1,
    )
    assert plan.devices == 48
    ranks = [
        group.ranks[-1]
        for batch in plan.sequence_parallel_batches()
        for micro_batch in batch.micro_batches
        for group in micro_batch.groups
    ]
    assert max(ranks) < 48


def test_the_list_loads_no_solver() -> None:
    assert loaded("import railx.planning", {"pyscipopt", "scipy", "numba"}) == set()
