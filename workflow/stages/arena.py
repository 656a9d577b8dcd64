"""Stage arena: one network at every size -> bounds, packets, jobs, prices, faults."""

from __future__ import annotations

import tempfile
from pathlib import Path

from workflow.outputs import Table
from workflow.stage import Config, Experiment, Item, Job, Stage, Summary, Tracked
from workflow.stages import MODELS, STEP_MODEL, named_files


def run(job: Job) -> Summary:
    """Write every value of the network; return its step times."""
    from railx.design.arena import arena_rows
    from railx.design.rates import RateStore
    from railx.design.settings import ArenaSettings

    settings: ArenaSettings = job.load(ArenaSettings, "arena")
    with tempfile.TemporaryDirectory() as folder:
        store = RateStore(Path(folder))
        rows = list(arena_rows(job.item, settings, job.settings["seed"], store))
    job.write_table("comparison", rows)
    summary: Summary = {
        f"{row['subject']}.{row['asked_chips']}.step_s": row["value"]
        for row in rows
        if row["measure"] == "step"
    }
    return summary


def check(experiment: Experiment) -> None:
    """Refuse names that the catalogues lack."""
    experiment.arena.check_names("arena")


def arena_files(arena: Config) -> list[Path]:
    """Prices, faults, networks and matrices of an arena, and the model of a step."""
    faults = [arena["trace"]["file"]] if arena["trace"] else []
    files = map(Path, (arena["point"]["catalogue"], *faults))
    return [*files, *STEP_MODEL, MODELS, *named_files(arena)]


def _arena(experiment: Config, candidate: str) -> Config:
    arena: Config = experiment["arena"]
    return {**arena, "networks": {candidate: arena["networks"][candidate]}}


STAGE = Stage(
    name="arena",
    help="every network at the same sizes: bounds, packets, jobs, prices and faults",
    message="The arena: {item}",
    item=Item("candidate", lambda experiment: experiment["arena"]["networks"]),
    settings=lambda experiment, candidate: {
        "arena": _arena(experiment, candidate),
        "seed": experiment["seed"],
    },
    inputs=lambda experiment, candidate: {"files": arena_files(_arena(experiment, candidate))},
    outputs={
        "comparison": Table(
            "text network family, integer asked_chips chips, text subject measure, real value,"
            " text unit fidelity note"
        )
    },
    run=run,
    tracked=Tracked("comparison", ("comparison",), fidelity="analytic"),
    check=check,
)
