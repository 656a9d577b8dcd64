"""A plan file cannot lie: numbers that someone changed are refused when it is read, be
it with the digest of before or with a new one. resources/schemas/plan.schema.json
describes the plans that the planners write, and refuses what they never write.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from railx.performance.sequence_cost import build_cost_model
from railx.planning.format.files import _digest, plan_file, read_plan, validate_plan, write_plan
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import Plan, SequenceParallelBatch
from railx.planning.groups import Assignment, micro_batch
from railx.planning.make import make_plan
from railx.settings import to_dict
from railx.workload.batches import BatchSettings
from tests.builders import ROOT, checked
from workflow.config import compose_experiment
from workflow.stages import corpus, plan

PLANNED = {"static": "cpu_4", "flexsp": "cpu_4", "pipeline_2x2": "cpu_4_pipeline"}
LENGTHS = [40, 700, 90, 300, 1000, 55, 60, 380, 20, 150]
Step = str | int


@cache
def _plan(planner: str) -> Plan:
    return make_plan(
        checked("planner", planner),
        LENGTHS,
        checked("cluster", PLANNED[planner]),
        checked("model", "tiny"),
        checked("cost_model", "analytic"),
        BatchSettings(5, 2, 1024, "truncate"),
        1,
    )


def _threes() -> Plan:
    """Groups of 3 and of 1 on four devices, six heads."""
    cluster, constants = checked("cluster", "cpu_4"), checked("cost_model", "analytic")
    model = checked("model", "tiny", hidden=120, heads=6, kv_heads=6)
    cost = build_cost_model(constants, cluster, model, 1024)
    plan = _plan("flexsp")
    one = plan.sequence_parallel_batches()[0]
    rows, lengths = np.array([3, 5, 7]), np.array([900, 40, 30])
    made = micro_batch(Assignment((3, 1), ((0,), (1, 2))), rows, lengths, cost)
    batch = SequenceParallelBatch(
        0, (made,), sequences=(3, 5, 7), lengths=(900, 40, 30), lower_bound_ms=1.0, effort=7
    )
    assert [group.ranks for group in made.groups] == [(0,), (1, 2, 3)]
    named = plan_file(plan)["settings"] | {"model": vars(model)}
    assert one.lower_bound_ms != batch.lower_bound_ms
    return replace(plan, planner="hand", settings=named, batches=(batch,))


MADE: dict[str, Callable[[], Plan]] = {
    **{name: lambda name=name: _plan(name) for name in PLANNED},  # type: ignore[misc]
    "threes": cache(_threes),
}


def _numbers(value: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _numbers(item, (*path, index))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def _unspoken(path: tuple[Step, ...]) -> bool:
    """What follows from nothing else in the file: the digest alone holds it."""
    return bool(
        {"settings", "solver", "iteration", "effort", "lower_bound_ms"} & set(path)
        or {"predicted_layer_forward_ms", "replica", "ranks"} & set(path)
    )


def _changed(data: Any, path: tuple[Step, ...], change: Callable[[float], float]) -> Any:
    changed = copy.deepcopy(data)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = change(place[path[-1]])
    return changed


CHANGES: list[Callable[[float], float]] = [
    lambda old: old + 1,
    lambda old: old - 1,
    lambda old: old * 2,
    lambda old: old * (1 + 1e-6),
    lambda old: 0,
    lambda old: -old,
    lambda old: old / 2,
]


@cache
def _file(name: str) -> tuple[Any, list[tuple[Step, ...]]]:
    data = json.loads(json.dumps(plan_file(MADE[name]())))
    return data, list(_numbers(data))


@pytest.mark.parametrize("name", MADE)
def test_a_file_reads_back_however_it_is_laid_out(name: str, tmp_path: Path) -> None:
    path, plan = tmp_path / "plan.json", MADE[name]()
    write_plan(path, plan)
    assert read_plan(path) == plan
    data = json.loads(path.read_text())
    # Other programs write 3.0 as 3, sort keys and leave out spaces.
    plain = json.dumps(data, sort_keys=True, separators=(",", ":")).replace(".0,", ",")
    path.write_text(plain)
    assert read_plan(path) == plan
    path.write_text(json.dumps({key: value for key, value in data.items() if key != "digest"}))
    unproven: Any = {"lower_bound_ms": None, "solved_by": None, "effort": None}
    batches: Any = tuple(replace(batch, **unproven) for batch in plan.batches)
    assert read_plan(path) == replace(plan, batches=batches)


@given(st.data())
@settings(max_examples=150)
def test_any_changed_number_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    written, paths = _file(data.draw(st.sampled_from(list(MADE))))
    path = data.draw(st.sampled_from(paths))
    changed = _changed(written, path, data.draw(st.sampled_from(CHANGES)))
    assume(changed != written)
    file = tmp_path_factory.getbasetemp() / "changed.json"
    file.write_text(json.dumps(changed))
    with pytest.raises(PlanError) as refused:
        read_plan(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert "\n" not in str(refused.value)
    # Who works out the digest anew is caught by the rest.
    if not _unspoken(path):
        changed["digest"] = _digest(changed)
        file.write_text(json.dumps(changed))
        with pytest.raises(PlanError) as again:
            read_plan(file)
        assert "digest" not in str(again.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("batches", 0, "predicted_ms"),
            1.0,
            r"batches\[0\]\.predicted_ms: got 1\.0; allowed: .*, its time in all",
        ),
        (("batches", 0, "predicted_ms"), None, r"batches\[0\]\.predicted_ms: got None; allowed"),
        (
            ("batches", 0, "micro_batches", 0, "predicted_ms"),
            1.0,
            "batch 0, micro-batch 0: predicted_ms 1.0; allowed: .* of its slowest group",
        ),
        (
            ("batches", 0, "micro_batches", 0, "groups", 0, "predicted_ms"),
            1.0,
            "micro-batch 0, group 0: predicted_ms 1.0; allowed: .*, compute, all-to-all and other",
        ),
        (
            ("batches", 0, "micro_batches", 0, "groups", 0, "degree"),
            9,
            r"batches\[0\], group 0: degree: got 9; allowed: 1, its ranks",
        ),
        (("tokens_per_device",), 385, "tokens_per_device: got 385; allowed: 384, what the plan's"),
        (("devices",), 8, "devices: got 8; allowed: 4, those of settings.cluster"),
        (
            ("batches", 0, "lower_bound_ms"),
            1e9,
            "batch 0: lower_bound_ms 1000000000.0; allowed: at most .*, the predicted time",
        ),
        (
            ("settings", "cluster", "devices"),
            0,
            r"settings\.cluster\.devices: got 0; allowed: at least 1",
        ),
        (
            ("settings", "max_length_tokens"),
            500,
            "batch 0, sequence 3: 900 tokens; allowed: at most 500, settings.max_length_tokens",
        ),
        (
            ("settings", "max_length_tokens"),
            True,
            "settings.max_length_tokens: got True; allowed: at least 1",
        ),
        (("settings", "model"), {}, r"settings\.model\.name: is missing"),
        (("settings",), {}, "settings.cluster: is missing; allowed with predictions of a cost"),
        (("predictions",), "mine", "predictions: got 'mine'; allowed: cost_model, own"),
    ],
)
def test_what_is_wrong_is_said(
    path: tuple[Step, ...], value: Any, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    changed = _changed(_file("threes")[0], path, lambda _: value)
    file.write_text(json.dumps(changed))
    with pytest.raises(PlanError, match=message):
        read_plan(file)


def test_a_name_that_is_half_a_character_does_not_hide_the_file(tmp_path: Path) -> None:
    plan = replace(_plan("flexsp"), planner="\ud800")
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan


def test_times_that_add_up_but_are_false_are_refused() -> None:
    plan = MADE["threes"]()
    (batch,) = plan.sequence_parallel_batches()
    (first, second) = batch.micro_batches[0].groups
    sooner = tuple(
        replace(
            group,
            predicted_ms=group.predicted_ms - 1,
            predicted_compute_ms=group.predicted_compute_ms - 1,
        )
        for group in (first, second)
    )
    slowest = max(group.predicted_ms for group in sooner)
    false = replace(
        batch, micro_batches=(replace(batch.micro_batches[0], groups=sooner, predicted_ms=slowest),)
    )
    with pytest.raises(
        PlanError, match=r"group 0: predicted_compute_ms .*; allowed: .* cost model"
    ):
        validate_plan(replace(plan, batches=(false,)))
    # A planner that says that its times are its own has only to add up.
    validate_plan(replace(plan, batches=(false,), predictions="own"))
    other = tuple(
        replace(group, predicted_ms=group.predicted_ms + 2, predicted_other_ms={"optimizer": 2.0})
        for group in (first, second)
    )
    slowest += 3
    dearer = replace(
        batch, micro_batches=(replace(batch.micro_batches[0], groups=other, predicted_ms=slowest),)
    )
    validate_plan(replace(plan, batches=(dearer,), predictions="own"))
    with pytest.raises(PlanError, match=r"group 0: predicted_other_ms\.optimizer 2\.0; allowed: 0"):
        validate_plan(replace(plan, batches=(dearer,)))


def test_degrees_divide_the_heads_unless_the_plan_says_otherwise() -> None:
    plan = MADE["threes"]()
    ten = {**plan.settings["model"], "heads": 10, "kv_heads": 10}
    changed = replace(plan, settings={**plan.settings, "model": ten})
    with pytest.raises(
        PlanError, match=r"group 1: degree 3; allowed: 1, 2, those that divide the 10 heads"
    ):
        validate_plan(changed)
    validate_plan(replace(changed, whole_heads=False))


def test_what_nothing_holds_is_not_read_from_a_file_without_a_digest(tmp_path: Path) -> None:
    """Half a bound would pass; the digest of a whole file holds it."""
    data, file = copy.deepcopy(plan_file(_plan("flexsp"))), tmp_path / "plan.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    assert read_plan(file).batches[0].lower_bound_ms == data["batches"][0]["lower_bound_ms"] > 0
    data["batches"][0]["lower_bound_ms"] /= 2
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(PlanError, match="digest: got"):
        read_plan(file)
    data["digest"] = None
    file.write_text(json.dumps(data), encoding="utf-8")
    for batch in read_plan(file).batches:
        assert (batch.lower_bound_ms, batch.solved_by, batch.effort) == (None, None, None)


SCHEMA = json.loads((ROOT / "resources" / "schemas" / "plan.schema.json").read_text())


@pytest.fixture(scope="module", params=["static_stdlib", "flexsp_stdlib", "pipeline_stdlib"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    experiment = compose_experiment(["experiment=quick"])
    folder = tmp_path_factory.mktemp("plan")
    sequences = folder / "sequences.parquet"
    corpus.STAGE.make(
        {"corpus": to_dict(experiment.corpora["stdlib"]), "seed": 1},
        item="stdlib",
        outputs={"sequences": sequences},
    )
    plan.STAGE.make(
        to_dict(experiment.plans[request.param]),
        item=request.param,
        inputs={"corpus": sequences},
        outputs={"plan": folder / "plan.json"},
    )
    return json.loads((folder / "plan.json").read_text())


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_plans_fit_the_schema(written: Any) -> None:
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(written)) == []


@pytest.mark.parametrize(
    "change",
    [{"schema": "railx.plan/1"}, {"devices": 0}, {"batches": []}, {"extra": 1}, {"kind": "tensor"}],
)
def test_what_is_no_plan_does_not_fit(written: Any, change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**written, **change}, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_batches_of_the_other_kind_do_not_fit(written: Any) -> None:
    other = "pipeline" if written["kind"] == "sequence_parallel" else "sequence_parallel"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**written, "kind": other}, SCHEMA, cls=jsonschema.Draft202012Validator)
