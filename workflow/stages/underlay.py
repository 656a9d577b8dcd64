"""Stage underlay: plans on a network -> their times and degrees, as made and made anew.

No paper has this comparison: it is ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workflow.outputs import Json, Table, integer, real, text
from workflow.stage import (
    Experiment,
    FromStage,
    Inputs,
    Item,
    Job,
    Settings,
    Stage,
    Summary,
    Tracked,
)
from workflow.stages.economics import check_price_set

__all__ = ["STAGE", "run"]


def run(job: Job) -> Summary:
    """Price and make anew every plan on the network at every rate; return the summary.

    SettingsError where the plans are for another number of devices than the network is
    made for.
    """
    from railx.mapping.underlay import UnderlaySettings, underlays
    from railx.planning.format.files import read_plan
    from railx.planning.underlay import mix_rows, remade
    from railx.progress import counted
    from railx.settings import SettingsError, load
    from railx.workload.corpus import read_corpus_lengths

    settings: UnderlaySettings = load(UnderlaySettings, job.settings["underlay"], "underlay")
    network = settings.networks[job.item]
    variants = underlays(settings, job.item)
    drawn_from: dict[str, str] = job.settings["corpora"]
    names = dict.fromkeys(drawn_from.values())
    corpora = {
        name: read_corpus_lengths(path)[1]
        for name, path in zip(names, job.inputs["corpora"], strict=True)
    }
    named: dict[str, Any] = {"network": job.item, "label": network.label}
    mix: list[dict[str, Any]] = []
    for name, path in counted(zip(settings.plans, job.inputs["plans"], strict=True), "plans"):
        plan = read_plan(path)
        if plan.devices != settings.ranks:
            raise SettingsError(
                "underlay.ranks", f"got {settings.ranks}; allowed: {plan.devices}, as of {name}"
            )
        head = named | {"plan": name, "planner": plan.planner}
        if not variants:
            base = {"basis": "own", "outside_gb_s": None, "made_for": "cluster"}
            batches = plan.sequence_parallel_batches()
            mix += [head | base | row for row in mix_rows(batches, plan.devices)]
        priced: dict[tuple[float, ...], Any] = {}
        for under in variants:
            # Links inside may bind at several rates: same bandwidths, same plan.
            table = tuple(under.all_to_all_gb_s.values())
            both = priced[table] = priced.get(table) or remade(
                plan, corpora[drawn_from[name]], under.all_to_all_gb_s, network.switch_ms
            )
            for planned_for, batches in zip(("cluster", "network"), both, strict=True):
                at = {
                    "basis": under.basis,
                    "outside_gb_s": under.outside_gb_s,
                    "made_for": planned_for,
                }
                mix += [head | at | row for row in mix_rows(batches, plan.devices)]
    fidelity = {"fidelity": "analytic"}
    job.write_table("mix", [row | fidelity for row in mix])
    rates = [
        named
        | {
            "basis": under.basis,
            "outside_gb_s": under.outside_gb_s,
            "inside_gb_s": under.inside_gb_s,
            "usd_per_device": under.usd_per_device,
            "group_size": size,
            "gb_s": gb_s,
        }
        | fidelity
        for under in variants
        for size, gb_s in under.all_to_all_gb_s.items()
    ]
    job.write_table("bandwidths", rates)
    return {**named, **_means(mix), **fidelity}


def _means(mix: list[dict[str, Any]]) -> Summary:
    """The mean iteration of each plan at each rate."""
    times: dict[str, dict[int, float]] = {}
    for row in mix:
        rate = "" if row["outside_gb_s"] is None else f".{row['outside_gb_s']:.4g}_gb_s"
        key = f"{row['basis']}{rate}.{row['plan']}.made_for_{row['made_for']}.iteration_ms"
        times.setdefault(key, {})[row["iteration"]] = row["iteration_ms"]
    return {key: sum(iterations.values()) / len(iterations) for key, iterations in times.items()}


def _settings(experiment: Settings, network: str) -> Settings:
    """What this network and the one that costs are compared with say, and the plans."""
    underlay = experiment["underlay"]
    selected = {network, underlay["reference"]}
    networks = {
        name: settings for name, settings in underlay["networks"].items() if name in selected
    }
    corpora = {plan: experiment["plans"][plan]["corpus"] for plan in underlay["plans"]}
    return {"underlay": {**underlay, "networks": networks}, "corpora": corpora}


def _inputs(experiment: Settings, _network: str) -> Inputs:
    """The plans, and the corpora that they were drawn from."""
    underlay = experiment["underlay"]
    plans = tuple(underlay["plans"])
    corpora = tuple(dict.fromkeys(experiment["plans"][plan]["corpus"] for plan in plans))
    return {
        "plans": FromStage("plan.plan", plans),
        "corpora": FromStage("corpus.sequences", corpora),
        "catalogue": Path(underlay["catalogue"]),
    }


_UNDER = text("network", "label", "basis") | real("outside_gb_s")
_MIX = (
    text("network", "label", "plan", "planner", "basis")
    | real("outside_gb_s")
    | text("made_for")
    | integer("iteration")
    | real("iteration_ms")
    | integer("micro_batches", "degree", "groups", "sequences", "tokens")
    | real("device_ms", "all_to_all_device_ms", "share")
    | text("fidelity")
)
_BANDWIDTHS = (
    _UNDER
    | real("inside_gb_s", "usd_per_device")
    | integer("group_size")
    | real("gb_s")
    | text("fidelity")
)


def check(experiment: Experiment) -> None:
    """Refuse other ranks than the plans have devices."""
    from railx.settings import SettingsError

    for name in experiment.underlay.plans:
        devices = experiment.plans[name].cluster.devices
        if experiment.underlay.ranks != devices:
            raise SettingsError(
                "underlay.ranks",
                f"got {experiment.underlay.ranks}; allowed: {devices}, the devices of plans.{name}",
            )


STAGE = Stage(
    name="underlay",
    help="plans of sequence parallelism on a network: as made, and made anew for it",
    message="Plans on the network {item}",
    # Results that were made before there was this stage have none.
    item=Item("network", lambda experiment: experiment.get("underlay", {}).get("networks", ())),
    settings=_settings,
    inputs=_inputs,
    outputs={
        "mix": Table("{network}/mix.parquet", _MIX, claims=True),
        "bandwidths": Table("{network}/bandwidths.parquet", _BANDWIDTHS, claims=True),
        "summary": Json("{network}/summary.json", claims=True),
    },
    run=run,
    tracked=Tracked("summary", ("mix", "bandwidths")),
    check_settings={"underlay": check_price_set},
    check=check,
)
