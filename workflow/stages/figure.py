"""Stage figure: tables -> one figure."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from railx.places import in_repository
from railx.settings import SettingsError, check_names, to_dict
from workflow.cache_keys import remembered
from workflow.outputs import File, Json, Table
from workflow.plan_kinds import plan_kinds
from workflow.stage import Config, Experiment, FromStage, Inputs, Item, Job, Stage, Summary, Tracked
from workflow.stages import inputs_of, stage_of

_PUBLISHED = in_repository("resources/published")


def run(job: Job) -> Summary:
    """Draw the figure of the settings; write its words and data beside it."""
    from railx.figures import FigureSettings, draw_figure

    figure: FigureSettings = job.load(FigureSettings)
    draw_figure(figure, job.inputs, job.outputs["svg"])
    return {"figure": job.item}


def check_columns(experiment: Config) -> None:
    """SettingsError for a figure that reads a column its table does not declare."""
    for figure, settings in experiment["figures"].items():
        for source in _declared(settings["figure"]).inputs:
            name = source.table or str(_PUBLISHED / source.published)
            if source.published:
                columns = _header(_PUBLISHED / source.published)
            else:
                stage = stage_of(source.table)
                output = stage.outputs[source.table.removeprefix(f"{stage.name}.")]
                if not isinstance(output, Table):
                    continue
                columns = (*output.declared(), *output.optional)
            missing = [column for column in source.columns.split() if column not in columns]
            if missing:
                got = f"{name} has no column {', '.join(missing)}"
                raise SettingsError(f"figures.{figure}", f"{got}; allowed: {', '.join(columns)}")


def _header(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as lines:
        return tuple(next(csv.reader(lines), ()))


def _declared(figure: str) -> SimpleNamespace:
    declared = _figures()[figure]
    inputs = [SimpleNamespace(**source) for source in declared["inputs"]]
    return SimpleNamespace(module=declared["module"], inputs=inputs)


@remembered
def _figures() -> dict[str, Any]:
    from railx.figures import FIGURES, figure_module, figure_of

    return {
        name: {
            "module": figure_module(name),
            "inputs": [asdict(source) for source in figure_of(name).inputs],
        }
        for name in FIGURES
    }


def _inputs(experiment: Config, figure: str) -> Inputs:
    """The tables a figure is drawn from.

    Those of ``only``, else of the plans that the settings name, or of all items that
    fit; published ones as they are. What a figure can do without comes whole.
    """
    settings = experiment["figures"][figure]
    only = tuple(settings.get("only", ()))
    files: dict[str, FromStage | Path] = {}
    for source in _declared(settings["figure"]).inputs:
        if source.published:
            files[source.key] = _PUBLISHED / source.published
            continue
        stage = stage_of(source.table)
        chosen = only if source.required else ()
        names = chosen or stage.items(experiment)
        if stage.name == "plan" and not chosen:
            names = _named_plans(settings, names)
        if source.plan_kind is not None and not chosen:
            plans = experiment["plans"]
            kinds = {name: plan_kinds()[plans[name]["planner"]["planner"]] for name in names}
            names = tuple(name for name in names if kinds[name] == source.plan_kind)
        files[source.key] = FromStage(source.table, names if stage.item else ("",))
    return files


def _named_plans(settings: Config, plans: Sequence[str]) -> tuple[str, ...]:
    """The plans that ``plans`` or ``panels`` of a figure name; all if it names none."""
    named = {*settings.get("plans", ())}.union(*settings.get("panels", {}).values())
    return tuple(plan for plan in plans if plan in named) or tuple(plans)


def check(experiment: Experiment) -> None:
    """Refuse figures without a row of the experiment."""
    plain = to_dict(experiment)
    networks = tuple(plain["economics"]["networks"])
    for name, settings in plain["figures"].items():
        only = tuple(settings.get("only", ()))
        read = _declared(settings["figure"]).inputs
        for source in (source for source in read if source.table):
            stage = stage_of(source.table)
            items = (
                stage.items(plain)
                if stage.item
                else {"economics": networks, "metrics": tuple(plain["topologies"])}.get(stage.name)
            )
            if items is not None and source.required:
                check_names(f"figures.{name}.only", only, items)
            needed = stage.item is not None and source.required
            if needed and not inputs_of(STAGE, plain, name)[source.key]:
                got = f"nothing to show, as the experiment has no {stage.name} of its kind"
                allowed = f"at least one (or leave the figure out: ~figures.{name})"
                raise SettingsError(f"figures.{name}", f"{got}; allowed: {allowed}")
        _check_shown(experiment, name, settings)
        of_economics = any(source.table.startswith("economics.") for source in read if source.table)
        if of_economics and "reference" in settings:
            check_names(f"figures.{name}.reference", (settings["reference"],), networks)


def _check_shown(experiment: Experiment, name: str, settings: Mapping[str, Any]) -> None:
    choices = {
        ("all_to_all_bandwidth", "traffic"): (experiment.traffic.pattern,),
        ("ring_all_reduce", "scope"): ("row", "column", "pillar", "nodes", "chips"),
        ("price_sensitivity", "all_to_all"): ("ideal", "published_routing"),
        ("utilisation", "policy"): experiment.tenancy.stream.policies,
        ("cost_scale", "price_set"): experiment.economics.scale.price_sets,
    }
    for (figure, field), allowed in choices.items():
        if settings["figure"] == figure and settings[field] is not None:
            check_names(f"figures.{name}.{field}", (settings[field],), allowed)
    if "iteration" in settings:
        batches = max((plan.batch.batches for plan in experiment.plans.values()), default=0)
        if settings["iteration"] >= batches:
            raise SettingsError(
                f"figures.{name}.iteration",
                f"got {settings['iteration']}; allowed: 0 to {batches - 1}, the batches of plans",
            )


STAGE = Stage(
    name="figure",
    help="one figure from the tables behind it",
    message="Figure {item}",
    item=Item("figure", lambda experiment: experiment["figures"]),
    settings=lambda experiment, figure: experiment["figures"][figure],
    inputs=_inputs,
    modules=lambda experiment, figure: (_declared(experiment["figures"][figure]["figure"]).module,),
    outputs={
        "svg": File("{figure}.svg"),
        "dark": File("{figure}.dark.svg"),
        "narrow": File("{figure}.narrow.svg"),
        "png": File("{figure}.png"),
        "pdf": File("{figure}.pdf"),
        "data": File("{figure}.csv"),
        "caption": File("{figure}.rst"),
        "words": Json(path="{figure}.json", claims=False),
    },
    run=run,
    tracked=Tracked("", ("png", "data")),
    check=check,
)
