"""Stage underlay: plans on a network, as made and made anew; no paper compares them."""

from __future__ import annotations

from pathlib import Path

from workflow.outputs import Json, Table, columns
from workflow.stage import Config, Experiment, FromStage, Inputs, Item, Job, Stage, Summary, Tracked
from workflow.stages import named_files
from workflow.stages.economics import check_price_set


def run(job: Job) -> Summary:
    """Price and replan every plan on the network at every rate; the summary."""
    from railx.mapping.underlay import UnderlaySettings
    from railx.mapping.underlay_tables import bandwidth_table, mean_times, mix_table

    settings: UnderlaySettings = job.load(UnderlaySettings, "underlay")
    drawn_from: dict[str, str] = job.settings["corpora"]
    corpora = dict(zip(dict.fromkeys(drawn_from.values()), job.inputs["corpora"], strict=True))
    mix = mix_table(
        settings,
        job.item,
        dict(zip(settings.plans, job.inputs["plans"], strict=True)),
        {plan: corpora[corpus] for plan, corpus in drawn_from.items()},
    )
    job.write_table("mix", mix)
    job.write_table("bandwidths", bandwidth_table(settings, job.item))
    label = settings.networks[job.item].label
    return {"network": job.item, "label": label, **mean_times(mix), "fidelity": "analytic"}


def _settings(experiment: Config, network: str) -> Config:
    underlay = experiment["underlay"]
    selected = {network, underlay["reference"]}
    networks = {
        name: settings for name, settings in underlay["networks"].items() if name in selected
    }
    corpora = {plan: experiment["plans"][plan]["corpus"] for plan in underlay["plans"]}
    return {"underlay": {**underlay, "networks": networks}, "corpora": corpora}


def _inputs(experiment: Config, network: str) -> Inputs:
    underlay = _settings(experiment, network)["underlay"]
    plans = tuple(underlay["plans"])
    corpora = tuple(dict.fromkeys(experiment["plans"][plan]["corpus"] for plan in plans))
    return {
        "plans": FromStage("plan.plan", plans),
        "corpora": FromStage("corpus.sequences", corpora),
        "catalogue": Path(underlay["catalogue"]),
        "networks": named_files(underlay["networks"]),
    }


_UNDER = columns("text network label basis, real outside_gb_s")
_MIX = columns(
    "text network label plan planner basis, real outside_gb_s, text made_for, integer iteration,"
    " real iteration_ms, integer micro_batches degree groups sequences tokens,"
    " real device_ms all_to_all_device_ms share, text fidelity"
)
_BANDWIDTHS = _UNDER | columns(
    "real inside_gb_s usd_per_device, integer group_size, real gb_s, text fidelity"
)


def check(experiment: Experiment) -> None:
    """Refuse networks whose ranks are not the plans' devices."""
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
    outputs={"mix": Table(_MIX), "bandwidths": Table(_BANDWIDTHS), "summary": Json()},
    run=run,
    tracked=Tracked("summary", ("mix", "bandwidths")),
    check_settings={"underlay": check_price_set},
    check=check,
)
