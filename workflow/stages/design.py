"""Stage design: networks and plans searched together for one job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.effort import LimitSettings
from railx.settings import SettingsError
from workflow.outputs import Table, columns
from workflow.stage import Job, Stage, Summary, Tracked
from workflow.stages import MODELS, STEP_MODEL, named_files

if TYPE_CHECKING:
    from railx.design.rates import RateStore


def rate_store(files: Iterable[Path] = ()) -> RateStore:
    """The cache of networks' rates; ``files``: those that networks are read from."""
    from railx import places
    from railx.design.rates import RateStore
    from workflow.cache_keys import cache_key
    from workflow.digest import code_digest, module_digest

    # Of the code that computes rates alone: prices and plans change none.
    modules = ("railx.design.rates", "railx.performance.topologies")
    code = code_digest("railx.network.group_bandwidth") + "".join(map(module_digest, modules))
    if files := list(map(places.in_repository, files)):
        code += cache_key([], files)
    return RateStore(places.cache("rates"), code)


def run(job: Job) -> Summary:
    """Search networks and plans; return the best network with its plan and costs."""
    from railx.design.front import design
    from railx.design.settings import DesignSettings
    from railx.design.simulate import simulate

    settings: DesignSettings = job.load(DesignSettings)
    store = rate_store(named_files(job.settings))
    answer = design(settings, store)
    heads = {"gpus_asked": settings.gpus, "model": settings.model, "objective": settings.objective}
    rows = [
        {**heads, **point.row(), "rank": rank, "on_front": point in answer.front}
        for rank, point in enumerate(answer.points, 1)
    ]
    job.write_table("points", [{column: row[column] for column in _POINTS} for row in rows])
    job.write_table("simulated", simulate(answer, store))
    job.write_table("dropped", [drop._asdict() for drop in answer.dropped])
    changes = [
        {key: getattr(row, key) for key in ("component", "usd", "crossing_usd")}
        | {"change": row.crossing_usd / row.usd - 1, "network": row.network, "fidelity": "analytic"}
        for row in answer.crossings
    ]
    job.write_table("changes", changes)
    best = answer.front[0]
    return {
        "first": best.name,
        "step_s": best.step_s,
        "usd_chip": best.cost.usd,
        "front": len(answer.front),
        "network_first_loss": answer.loss,
    }


_PLAN = (
    "integer plan_data plan_tensor plan_context plan_pipeline plan_expert plan_virtual"
    " plan_micro_batch plan_micro_batches,"
    " text plan_sharding plan_recompute plan_schedule plan_order"
)
_POINTS = columns(
    "text model objective network family, integer gpus_asked chips gpus rank,"
    f" flag on_front, text setting plan, {_PLAN},"
    " real step_s step_low_s step_high_s expected_error tokens_per_s compute_s recompute_s"
    " tensor_s context_s expert_s pipeline_s bubble_s data_s optimizer_s fixed_s"
    " memory_share usd_chip usd_chip_low usd_chip_high usd watts_chip watts_chip_low"
    " watts_chip_high watts joules all_to_all_gb_s injection_gb_s usable_share,"
    " text usable_basis binds notes fidelity"
)


def check_design(settings: Any, key: str, _limits: LimitSettings) -> None:
    """Refuse unknown names."""
    try:
        settings.check_names()
    except SettingsError as error:
        raise error.under(key) from None


STAGE = Stage(
    name="design",
    help="networks and plans searched together: which network for a job at what price",
    message="Networks and plans for a job",
    settings=lambda experiment, _: experiment["design"],
    inputs=lambda experiment, _: {
        "catalogue": Path(experiment["design"]["catalogue"]),
        "performance": (*STEP_MODEL, MODELS),
        "networks": named_files(experiment["design"]),
    },
    outputs={
        "points": Table(
            _POINTS, printed="Networks and plans for a job, the first by the objective first"
        ),
        "simulated": Table(
            "text network, real closed_s replayed_s difference, text term fidelity,"
            " real all_to_all_gb_s packets_gb_s packets_difference, text packets_term",
            printed="The first places: closed forms beside replay, and an all-to-all in packets",
        ),
        "dropped": Table(
            "text network reason", printed="Networks that are not on the front, and why"
        ),
        "changes": Table(
            "text component, real usd crossing_usd change, text network fidelity",
            printed="Prices at which another network takes the first place",
        ),
    },
    check_settings={"design": check_design},
    run=run,
    tracked=Tracked("points", ("points", "simulated", "dropped", "changes"), name="design"),
)
