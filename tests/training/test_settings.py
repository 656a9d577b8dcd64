"""Settings of a run: the files in conf/, the sweep over fabrics, and what
is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from railx.performance.decoder import ModelSettings
from railx.planning.format.parts import Pipeline, PlanError
from railx.planning.format.plan import Plan
from railx.settings import SettingsError
from tests.builders import checked, choice
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from training.settings import (
    TrainingSettings,
    check_plan,
    check_positions,
    check_sharding,
    fabric_rounds,
    fabric_sweep,
    load_run_settings,
    pipeline_shape,
)
from workflow.config import choices

MODEL = ModelSettings(
    "test", layers=2, hidden=48, heads=6, kv_heads=2, feed_forward=48, vocabulary=50
)


def config(**changes: Any) -> dict[str, Any]:
    files = {"model": "tiny", "fabric": "rails", "training": "cpu_4"}
    groups = {group: choice(group, name) for group, name in files.items()}
    return {
        "name": "run",
        "seed": 1,
        "plan_name": "static",
        "plan": "plan.json",
        "corpus": "corpus.parquet",
        **groups,
        **changes,
    }


@pytest.mark.parametrize("name", choices("training"))
def test_files_are_complete_and_allowed(name: str) -> None:
    names = {field.name for field in fields(TrainingSettings)}
    assert set(choice("training", name)) == names
    assert isinstance(checked("training", name), TrainingSettings)


def test_electrical_comes_first_and_each_mode_has_its_latencies() -> None:
    settings = load_run_settings(config())
    sweep = [(fabric.mode, fabric.reconfiguration_latency_ms) for fabric in fabric_sweep(settings)]
    on_demand = [
        ("on_demand", latency_ms) for latency_ms in settings.training.on_demand_latencies_ms
    ]
    provisioned = [
        ("provisioned", latency_ms) for latency_ms in settings.training.provisioned_latencies_ms
    ]
    assert sweep == [("electrical", 0.0), *on_demand, *provisioned]


def test_each_repeat_goes_round_the_sweep_in_an_order_of_the_seeds() -> None:
    training = choice("training", "cpu_4_sweep")
    settings, same, other = (
        load_run_settings(config(training=training, seed=seed)) for seed in (1, 1, 2)
    )
    sweep, rounds = fabric_sweep(settings), fabric_rounds(settings)
    assert len(rounds) == settings.training.repeats == 3
    assert all(sorted(order, key=sweep.index) == sweep for order in rounds)
    assert [fabric.mode for fabric in rounds[0]].index("electrical") == 0
    assert len({tuple(order) for order in rounds}) == 3
    assert fabric_rounds(same) == rounds != fabric_rounds(other)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("training", "itrations"),
            3,
            "training.itrations: unknown key; allowed: iterations, ",
        ),
        (("training", "device"), "gpu", "training.device: got 'gpu'; allowed: auto, cpu, cuda"),
        (("training", "iterations"), 0, "training.iterations: got 0; allowed: at least 1"),
        (
            ("training", "optimizer", "learning_rate"),
            0.0,
            "training.optimizer.learning_rate: got 0.0; allowed: greater than 0",
        ),
        (
            ("model", "positions"),
            "learned",
            "model.max_positions: got 0; allowed for training with learned positions",
        ),
        (("seed",), -1, "seed: got -1; allowed: from 0 to 2147483647"),
    ],
)
def test_what_cannot_be_used_is_named(path: tuple[str, ...], value: Any, message: str) -> None:
    changed = config()
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(SettingsError) as refused:
        load_run_settings(changed)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("name", choices("model"))
def test_every_model_of_the_configuration_can_be_trained(name: str) -> None:
    assert load_run_settings(config(model=choice("model", name))).model.name == name


def test_sequences_beyond_the_learned_positions_are_refused() -> None:
    learned = replace(MODEL, positions="learned", max_positions=9)
    check_positions(learned, 9)
    check_positions(MODEL, 10)
    with pytest.raises(SettingsError) as refused:
        check_positions(learned, 10)
    assert str(refused.value) == (
        "model.max_positions: got 9; allowed: at least 10, the tokens of the plan's longest"
        " sequence"
    )


def sequence_parallel(degree: int) -> Plan:
    return sequence_parallel_plan(4, [micro_batch((range(degree), {0: 9}))])


def pipelined(
    devices: int, *stages: int, degrees: Sequence[int] = (1, 1), recomputed: tuple[int, ...] = ()
) -> Plan:
    chunks = (chunk((0, 0, 9, 9), checkpoint_layers=recomputed),)
    return pipeline_plan(
        devices,
        *(
            [Pipeline(count, 0, chunks, degree)]
            for count, degree in zip(stages, degrees, strict=False)
        ),
    )


def test_plans_that_fit_are_accepted() -> None:
    check_plan(sequence_parallel(2), MODEL, 4)
    check_plan(pipelined(4, 2, 2), MODEL, 4)
    check_plan(pipelined(4, 2, degrees=(2,), recomputed=(1, 1)), MODEL, 4)
    # Four ranks share two key-value heads.
    check_plan(pipelined(8, 2, degrees=(4,)), replace(MODEL, heads=4, kv_heads=2), 8)
    assert pipeline_shape(pipelined(4, 2, 2)) == (2, 1)
    assert pipeline_shape(pipelined(8, 2, degrees=(4,))) == (2, 4)


@pytest.mark.parametrize(
    ("plan", "ranks", "error", "message"),
    [
        (
            sequence_parallel(4),
            4,
            SettingsError,
            "model.heads: got 6; allowed: a multiple of 4, a degree of the plan",
        ),
        (
            sequence_parallel(2),
            2,
            PlanError,
            "ranks: got 2; allowed: 4, the number of devices that the plan was made for",
        ),
        (
            pipelined(4, 4),
            4,
            SettingsError,
            "model.layers: got 2; allowed: at least 4, the pipeline stages of the plan",
        ),
        (
            pipelined(3, 2),
            3,
            SettingsError,
            "plan: 3 devices for 2 pipeline stages; allowed: a multiple of 2",
        ),
        (
            pipelined(2, 2, 1),
            2,
            SettingsError,
            "plan: pipelines with [1, 2] stages; allowed: the same number in every batch",
        ),
        (
            pipelined(4, 2, 2, degrees=(1, 2)),
            4,
            SettingsError,
            "plan: pipelines with [1, 2] ranks a stage; allowed: the same number in every batch",
        ),
        (
            pipelined(8, 2, degrees=(4,)),
            8,
            SettingsError,
            "model.heads: got 6; allowed: a multiple of 4, a degree of the plan",
        ),
        (
            pipelined(6, 2, degrees=(2,)),
            6,
            SettingsError,
            "plan: 6 devices for 2 pipeline stages of 2 ranks; allowed: a multiple of 4",
        ),
        (
            pipelined(2, 2, recomputed=(2, 0)),
            2,
            SettingsError,
            (
                "plan: batch 0, pipeline 0, chunk 0: checkpoint_layers 2 on stage 0; allowed: at"
                " most 1, the layers of the stage"
            ),
        ),
    ],
)
def test_plans_that_do_not_fit_are_refused(
    plan: Plan, ranks: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        check_plan(plan, MODEL, ranks)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("plan", "changes", "message"),
    [
        (
            pipelined(4, 2, 2),
            {"parallelism": "ring"},
            "training.parallelism: got ring for a pipeline plan; allowed there: ulysses",
        ),
        (
            sequence_parallel(2),
            {"parallelism": "ring", "device": "cuda"},
            "training.parallelism: got ring on cuda; allowed there: ulysses, tensor",
        ),
        (
            sequence_parallel(4),
            {"parallelism": "tensor"},
            (
                "model.heads: got 6; allowed with tensor parallelism: a multiple of 4, the ranks of"
                " a group"
            ),
        ),
        (
            sequence_parallel(2),
            {"parallelism": "tensor", "sharding": "zero3"},
            "training.sharding: got zero3; allowed with tensor parallelism: none",
        ),
        (
            sequence_parallel_plan(4, [micro_batch(((1, 2), {0: 4}))]),
            {"parallelism": "tensor"},
            (
                "training.parallelism: got tensor and a plan with the group [1, 2]; allowed: groups"
                " of equally many consecutive ranks in every micro-batch"
            ),
        ),
    ],
)
def test_context_and_tensor_parallelism_refuse_what_they_cannot_run(
    plan: Plan, changes: dict[str, Any], message: str
) -> None:
    training = replace(TrainingSettings(), **changes)
    with pytest.raises(SettingsError) as refused:
        check_plan(plan, MODEL, 4, training)
    assert str(refused.value) == message
    # Heads that no group divides are no matter to a ring.
    check_plan(sequence_parallel(4), MODEL, 4, TrainingSettings(parallelism="ring"))


@pytest.mark.parametrize(
    ("sharding", "zero_stage", "devices", "said"),
    [
        ("zero3", 3, 4, ""),
        ("none", 3, 1, ""),
        ("zero3", 1, 1, ""),
        ("none", 3, 4, "got none, but the plan was priced with ZeRO stage 3"),
        ("zero3", 2, 4, "got zero3, but the plan was priced with ZeRO stage 2"),
    ],
)
def test_another_sharding_than_the_plans_is_refused_or_said(
    sharding: str, zero_stage: int, devices: int, said: str
) -> None:
    settings = checked("training", "gpu", sharding=sharding)
    if said:
        with pytest.raises(SettingsError, match=rf"^training.sharding: {said}; allowed: "):
            check_sharding(settings, zero_stage, devices)
    else:
        assert check_sharding(settings, zero_stage, devices) == ""
    assert check_sharding(replace(settings, allow_sharding_mismatch=True), zero_stage, devices) == (
        said
    )
