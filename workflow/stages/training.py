"""Stage training: a plan, a corpus -> iterations by fabric (``training.run``)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from railx.errors import UserError
from railx.settings import SettingsError, load, to_dict
from training.nodes import check_cuda, nodes_here, ranks_command, reachable
from workflow.outputs import File, Json, Table, columns
from workflow.stage import (
    ByHand,
    Config,
    Experiment,
    FromStage,
    History,
    Inputs,
    Item,
    Job,
    Needs,
    Stage,
    Summary,
    Tracked,
)
from workflow.watch import run_program


def run(job: Job) -> Summary:
    """Write the resolved run as config.json and train as it says; return the summary.

    The model is the one that the plan was made for. ValueError when the run could not
    start or broke off; its output is above.
    """
    from railx.io import read_json
    from railx.planning.format.files import read_plan

    folder = job.outputs["result"].parent
    job.write_json("config", to_dict(_resolved(job)))
    # A killed run goes on where it was; what other settings left there is of no use.
    options = ["--config", str(job.outputs["config"]), "--out", str(folder), "--replace"]
    # All nodes reach this folder.
    with tempfile.TemporaryDirectory(prefix=".agents-", dir=folder) as logs:
        devices = read_plan(job.file("plan")).devices
        command = ranks_command("training.run", options, devices, logs)
        if nodes_here() > 1:
            words = command[command.index("srun") :] if "srun" in command else command
            print(f"ranks on {nodes_here()} nodes: {' '.join(words)}", file=sys.stderr, flush=True)
        run_program(command, f"training run {job.item}")
    result: dict[str, Any] = read_json(job.outputs["result"])
    rows = [_row(job.item, result, setting) for setting in result["settings"]]
    job.write_table("settings", rows)
    listed = ("schema", "settings", "blocks")
    summary = {key: value for key, value in result.items() if key not in listed}
    summary |= {f"{row['mode']}_{row['reconfiguration_latency_ms']:g}ms": row for row in rows}
    return summary


def _resolved(job: Job) -> Any:
    from railx.planning.format.files import read_plan
    from training.settings import RunSettings

    path = job.file("plan")
    plan = read_plan(path)
    if "model" not in plan.settings:
        raise UserError(f"{path}: settings.model: is missing; allowed: a plan made for a model")
    fabric = job.settings["fabric"]
    return load(
        RunSettings,
        {
            "name": job.item,
            "seed": job.settings["seed"],
            "plan_name": job.settings["plan"],
            "plan": str(path),
            "corpus": str(job.file("corpus")),
            "model": plan.settings["model"],
            # Every node reaches the controller.
            "fabric": fabric | {"host": reachable(fabric["host"], nodes_here())},
            "training": job.settings["training"],
        },
        "run",
    )


def _by_hand(chosen: Config) -> dict[str, Any]:
    """Settings by hand; SettingsError for ids the model lacks and a missing device."""
    check_cuda(chosen["training"]["device"], "training.device")
    tokens, vocabulary = chosen["corpus"].get("vocabulary"), chosen["model"]["vocabulary"]
    if tokens is not None and vocabulary < tokens:
        allowed = f"at least {tokens}, the token ids of corpus {chosen['corpus']['name']}"
        raise SettingsError("model.vocabulary", f"got {vocabulary}; allowed: {allowed}")
    return {
        "plan": chosen["planner"]["planner"],
        **{key: chosen[key] for key in ("seed", "fabric", "training")},
    }


def _row(name: str, result: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """One fabric setting of a run: medians over its undisturbed repeats."""
    plain = {key: value for key, value in setting.items() if not isinstance(value, list)}
    run = {"run": name, **{key: result[key] for key in ("plan", "parallelism", "device")}}
    tail = {"last_loss": setting["losses"][-1], "fidelity": plain.pop("fidelity")}
    return run | plain | tail


def _inputs(experiment: Config, run: str) -> Inputs:
    plan = experiment["runs"][run]["plan"]
    return {
        "plan": FromStage("plan.plan", plan),
        "corpus": FromStage("corpus.sequences", experiment["plans"][plan]["corpus"]),
    }


def _needs(experiment: Config, run: str) -> Needs:
    training = experiment["runs"][run]["training"]
    devices = experiment["plans"][experiment["runs"][run]["plan"]]["cluster"]["devices"]
    return Needs(devices, training["threads_per_rank"], training["device"])


_RUN = columns("text run plan parallelism device mode, real reconfiguration_latency_ms")
_ITERATIONS = _RUN | columns(
    "integer iteration repeat rank, real iteration_ms stall_ms wait_ms,"
    " integer requests held reconfigurations, real loss gradient_norm,"
    " integer tokens peak_memory_bytes, real planning_ms planning_wait_ms load_share,"
    " flag disturbed, text fidelity"
)
#: Columns of an event of a rank.
EVENT = columns(
    "int32 iteration rank, text kind group, integer bytes start_ns end_ns busy_ns,"
    " text phase channel,"
    " integer sequence issued_ns waited_ns resumed_ns issued_busy_ns waited_busy_ns"
    " resumed_busy_ns"
)
_TRACE = EVENT | columns("text mode, real reconfiguration_latency_ms, text fidelity")
_PASSES = columns(
    "text run plan device, integer iteration rank replica stage place position pipeline,"
    " text kind, integer chunk, real start_ms end_ms,"
    " integer live_chunks predicted_live_chunks held_bytes peak_bytes predicted_held_bytes,"
    " text fidelity"
)
_SETTINGS = _RUN | columns(
    "real iteration_ms tokens_per_s stall_ms wait_ms requests held reconfigurations"
    " iteration_over_electrical, integer repeats set_aside process_groups,"
    " real group_creation_ms planning_ms planning_wait_ms planning_hidden_share model_tflop mfu,"
    " integer peak_memory_bytes, real last_loss, text fidelity"
)


def check(experiment: Experiment) -> None:
    """Refuse runs of plans that cannot be trained."""
    from railx.planning.format.schedule import TRAINABLE_SCHEDULES
    from training.settings import check_model, check_planner, check_sharding

    for name, run in experiment.runs.items():
        plan = experiment.plans[run.plan]
        try:
            check_planner(plan.planner.planner, "planner")
            check_model(plan.model)
        except SettingsError as error:
            key = f"plans.{run.plan}.{error.key}"
            raise SettingsError(key, f"{error.message} (run {name})") from None
        try:
            check_sharding(run.training, plan.cost_model.zero_stage, plan.cluster.devices)
        except SettingsError as error:
            raise SettingsError(f"runs.{name}.{error.key}", error.message) from None
        # What "best" takes is known when the plan is.
        schedule = getattr(plan.planner, "schedule", "best")
        if schedule not in (*TRAINABLE_SCHEDULES, "best", "best_trained"):
            got = f"got {schedule}, which is simulated only"
            allowed = f"{', '.join(TRAINABLE_SCHEDULES)}, best_trained (run {name})"
            raise SettingsError(f"plans.{run.plan}.planner.schedule", f"{got}; allowed: {allowed}")
        # Corpora that are lengths alone have no tokens.
        tokens = getattr(experiment.corpora[plan.corpus], "vocabulary", None)
        if tokens is not None and plan.model.vocabulary < tokens:
            got = f"got {plan.model.vocabulary}"
            allowed = f"at least {tokens}, the token ids of corpora.{plan.corpus} (run {name})"
            raise SettingsError(f"plans.{run.plan}.model.vocabulary", f"{got}; allowed: {allowed}")


STAGE = Stage(
    name="training",
    help="train a plan under emulated optical switching",
    message="Training run {item} under emulated optical switching",
    item=Item("run", lambda experiment: experiment["runs"]),
    settings=lambda experiment, run: experiment["runs"][run],
    inputs=_inputs,
    outputs={
        "iterations": Table(_ITERATIONS),
        "passes": Table(_PASSES),
        "trace": Table(_TRACE, claims=False),
        "chrome_trace": File("{run}/trace.json"),
        "result": Json(),
        "settings": Table(_SETTINGS, printed="Training run {item}"),
        "summary": Json(),
        "config": File("{run}/config.json"),
    },
    run=run,
    # The digest reads imports; the run itself is a process of its own.
    modules=lambda *_: ("training.run",),
    needs=_needs,
    by_hand=ByHand(
        groups=(
            *("seed", "corpus", "batch", "cluster", "model", "cost_model", "planner"),
            *("fabric", "training"),
        ),
        example="railx training planner=flexsp training.iterations=3 --out run",
        out="the folder to write: corpus, plan, iterations, traces, result",
        writes=None,
        settings=_by_hand,
        item=lambda _: "run",
        before={"plan": "plan.plan", "corpus": "corpus.sequences"},
    ),
    tracked=Tracked(
        "summary",
        ("summary", "settings"),
        history=(
            History(
                "iterations",
                step="iteration",
                curve="{mode}_{reconfiguration_latency_ms:g}ms",
                values={"iteration_ms": "max", "stall_ms": "max", "wait_ms": "max", "loss": "mean"},
                repeat="repeat",
                aside="disturbed",
            ),
        ),
    ),
    check=check,
)
