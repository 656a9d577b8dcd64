"""Stage plan: a corpus and settings -> a plan, its table, its schedule and its memory.

Only pipelines have a schedule, and memory of stages over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from railx.settings import SettingsError
from workflow.outputs import File, Json, Table, columns
from workflow.recorded_plans import planner_code, record_of
from workflow.stage import (
    ByHand,
    Config,
    Experiment,
    FromStage,
    Inputs,
    Item,
    Job,
    Stage,
    Summary,
    Tracked,
)
from workflow.stages import STEP_MODEL

_PARTS = ("seed", "batch", "cluster", "model", "cost_model", "planner")


def run(job: Job) -> Summary:
    """Plan batches of the corpus; only pipelines have rows of schedule and memory."""
    from railx.io import read_json, read_rows
    from railx.performance.cluster import ClusterSettings, all_to_all_gb_s, with_topology
    from railx.performance.decoder import ModelSettings
    from railx.performance.sequence_cost import (
        CostModelSettings,
        ProfiledCostSettings,
        StepCostSettings,
        bandwidth_unit,
        with_profile,
    )
    from railx.planning.format.files import write_plan
    from railx.planning.format.predictions import cost_of
    from railx.planning.format.tables import memory_rows, plan_rows, plan_summary, schedule_rows
    from railx.planning.make import make_plan
    from railx.planning.planner import PlannerBase
    from railx.planning.planners import PlannerSettings
    from railx.planning.recorded import read_records, recorded
    from railx.workload.batches import BatchSettings
    from railx.workload.corpus import read_corpus_lengths

    settings = job.settings
    corpus, lengths = read_corpus_lengths(job.file("corpus"))
    cluster: ClusterSettings = job.load(ClusterSettings, "cluster")
    cost_model: CostModelSettings = job.load(CostModelSettings, "cost_model")
    if cluster.topology is not None:
        if "bandwidth" not in job.inputs:
            raise SettingsError(
                "cluster.topology",
                f"got {cluster.topology!r}; allowed by hand: null (an experiment makes its table)",
            )
        table = read_rows(job.file("bandwidth"))
        cluster = with_topology(cluster, table, bandwidth_unit(cost_model))
    if isinstance(cost_model, ProfiledCostSettings) and "profile" in job.inputs:
        cost_model = with_profile(cost_model, read_json(job.file("profile")))
    model: ModelSettings = job.load(ModelSettings, "model")
    if isinstance(cost_model, StepCostSettings):
        from railx.performance.step_costs import with_step_model

        cost_model = with_step_model(cost_model, model)
    planner: PlannerBase = job.load(PlannerSettings, "planner")
    records = None
    if settings.get("recorded"):
        records = partial(recorded, path=job.file("recorded"), code=planner_code(type(planner)))
    plan = make_plan(
        planner,
        lengths,
        cluster,
        model,
        cost_model,
        job.load(BatchSettings, "batch"),
        settings["seed"],
        records,
    )
    unused = [d for d in all_to_all_gb_s(cluster) if model.heads % d]
    summary = {
        "plan": job.item,
        "corpus": corpus,
        **plan_summary(plan),
        # Which degrees a planner cannot have used is not to be guessed from its groups.
        "degrees_that_do_not_divide_the_heads": ", ".join(map(str, unused)) or None,
        "fidelity": "analytic",
    }
    if records:
        batches = read_records(job.file("recorded"))
        summary["planning_cpu_s"] = [batches[batch.iteration].cpu_s for batch in plan.batches]
    job.write("plan", write_plan, plan)
    job.write_table("groups", plan_rows(plan, job.item, corpus))
    pipelines = plan.kind == "pipeline"
    job.write_table("schedule", schedule_rows(plan, job.item) if pipelines else [])
    job.write_table("memory", memory_rows(plan, job.item, cost_of(plan)) if pipelines else [])
    return summary


def _inputs(experiment: Config, plan: str) -> Inputs:
    """The corpus; the bandwidths of a topology, the fit of a profile, the catalogues of
    the step model and records where the plan has them.
    """
    settings = experiment["plans"][plan]
    topology = settings["cluster"].get("topology")
    bandwidth = {} if topology is None else {"bandwidth": FromStage("bandwidth.groups", topology)}
    profile = settings["cost_model"].get("profile")
    fit = {} if profile is None else {"profile": FromStage("profile.fit", profile)}
    records = {"recorded": record_of(plan)} if settings.get("recorded") else {}
    step = {"performance": STEP_MODEL} if settings["cost_model"]["kind"] == "step" else {}
    corpus = {"corpus": FromStage("corpus.sequences", settings["corpus"])}
    return {**corpus, **bandwidth, **fit, **records, **step}


def _exported(plan: Path, form: str) -> Any:
    from railx.exchange.plans import exported_plan
    from railx.planning.format.files import read_plan

    return exported_plan(read_plan(plan), form)


_GROUPS = columns(
    "text plan planner corpus, integer devices, text kind,"
    " integer iteration micro_batch group first_rank degree sequences tokens longest_tokens,"
    " real predicted_ms predicted_compute_ms predicted_all_to_all_ms predicted_other_ms,"
    " text chunk_kind fidelity"
)
_SCHEDULE = columns(
    "text plan, integer iteration pipeline replica, text schedule, integer stage part chunk,"
    " text kind, real start_ms end_ms, text fidelity"
)
_MEMORY = columns(
    "text plan, integer iteration pipeline replica, text schedule, integer stage, real time_ms,"
    " integer live_chunks live_tokens, real activation_bytes capacity_bytes, text fidelity"
)


def check(experiment: Experiment) -> None:
    """Refuse plans whose planner, cluster, model, costs and batches do not fit."""
    from railx.places import WORK
    from railx.planning.planners import check_cost_model, check_plan
    from railx.workload.corpus_check import check_drawn_batch

    for name, plan in experiment.plans.items():
        check_plan(plan.planner, plan.cluster, plan.model, f"plans.{name}")
        check_cost_model(plan.cost_model, plan.model, f"plans.{name}.")
        corpus = experiment.corpora[plan.corpus]
        check_drawn_batch(corpus, plan.batch, experiment.seed, f"plans.{name}", WORK)


def check_choices(chosen: Mapping[str, Any]) -> None:
    """Check the chosen groups."""
    from railx.planning.planners import check_cost_model, check_plan

    if {"planner", "cluster", "model"} <= chosen.keys():
        check_plan(chosen["planner"], chosen["cluster"], chosen["model"])
        if "cost_model" in chosen:
            check_cost_model(chosen["cost_model"], chosen["model"])


STAGE = Stage(
    name="plan",
    help="distribute the sequences of a corpus over devices",
    message="Plan {item}",
    item=Item("plan", lambda experiment: experiment["plans"]),
    settings=lambda experiment, plan: experiment["plans"][plan],
    inputs=_inputs,
    outputs={
        "plan": File("{plan}/plan.json"),
        "groups": Table(_GROUPS),
        "schedule": Table(_SCHEDULE),
        "memory": Table(_MEMORY),
        "summary": Json(),
    },
    run=run,
    by_hand=ByHand(
        groups=("corpus", *_PARTS),
        example="railx plan planner=flexsp corpus=file corpus.path=lengths.json cluster.devices=64"
        " --out plan.json",
        out="the plan to write (.json); with --format what that program reads",
        writes={".json": "plan"},
        settings=lambda chosen: {key: chosen[key] for key in _PARTS},
        item=lambda chosen: chosen["planner"]["planner"],
        before={"corpus": "corpus.sequences"},
        primary="stage_plan",
        formats=("megatron", "deepspeed", "groups"),
        export=_exported,
    ),
    tracked=Tracked("summary", ("plan", "summary")),
    check=check,
    check_choices=check_choices,
)
