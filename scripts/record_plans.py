"""Plan the batches of slow planners and record them: resources/recorded/plans.

    python scripts/record_plans.py flexsp_milp_7b_192k_wikipedia [NAME...] [--batches 3]

A name is PLANNER_SETTING_CORPUS, as in an experiment. A recorded batch whose inputs are
today's is not planned again; each batch is written as soon as it is planned, so that a
killed run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModelSettings
from railx.planning.format.plan import Plan
from railx.planning.make import make_plan, plan_batches
from railx.planning.planner import PlannerBase, PlanningTask
from railx.planning.planners import PlannerSettings
from railx.planning.recorded import (
    BatchRecord,
    digests,
    groups_of,
    read_records,
    recorded,
    write_records,
)
from railx.provenance.jobs import collect_provenance
from railx.settings import load
from railx.workload.batches import BatchSettings
from railx.workload.corpus import CorpusSettings, build_corpus
from workflow.experiment import checked_experiment
from workflow.recorded_plans import planner_code, record_of
from workflow.stage import Config


def main() -> None:
    parser = argparse.ArgumentParser(description="Record plans of slow planners.")
    parser.add_argument("plans", nargs="+", metavar="NAME", help="PLANNER_SETTING_CORPUS")
    parser.add_argument("--batches", type=int, default=3, help="batches of each plan (3)")
    options = parser.parse_args()
    experiment = composed_plans(dict.fromkeys(options.plans, options.batches))
    for name in options.plans:
        planned_by_name(name, experiment, _plan)


def composed_plans(batches: Mapping[str, int]) -> Config:
    """An experiment with plans by name, PLANNER_SETTING_CORPUS, of so many batches."""
    counts = [f"plans.{name}.batch.batches={count}" for name, count in batches.items()]
    return checked_experiment(["experiment=planners", f"plans=[{','.join(batches)}]", *counts])


def planned_by_name(name: str, experiment: Config, plan: Callable[..., tuple[Any, ...]]) -> Plan:
    """A plan of an experiment, its batches by ``plan(planner, task, path=, code=)``."""
    settings = experiment["plans"][name]
    corpus: CorpusSettings = load(CorpusSettings, experiment["corpora"][settings["corpus"]])
    planner: PlannerBase = load(PlannerSettings, settings["planner"])
    return make_plan(
        planner,
        build_corpus(corpus, experiment["seed"]).lengths,
        load(ClusterSettings, settings["cluster"]),
        load(ModelSettings, settings["model"]),
        load(CostModelSettings, settings["cost_model"]),
        load(BatchSettings, settings["batch"]),
        settings["seed"],
        plan=partial(plan, path=record_of(name), code=planner_code(type(planner))),
    )


def _plan(planner: PlannerBase, task: PlanningTask, path: Path, code: str) -> tuple[Any, ...]:
    """The batches of a task, those planned that are not recorded or not of today."""
    records = read_records(path) if path.exists() else {}
    about = collect_provenance(packages=("pyscipopt", "scipy", "numpy"))
    provenance = {key: about[key] for key in ("created_utc", "commit", "dirty", "cpu", "packages")}
    for number, batch in enumerate(task.batches):
        today = digests(planner, task, batch, code)
        if number in records and records[number].inputs == today:
            continue
        began = time.process_time()
        (planned,) = plan_batches(planner, replace(task, batches=(batch,)))
        seconds = round(time.process_time() - began, 2)
        solver = dict(planned.solver) | {"name": planned.solved_by, "effort": planned.effort}
        total = round(sum(part.predicted_ms for part in planned.micro_batches), 6)
        records[number] = BatchRecord(
            number, today, groups_of(planned, batch), solver, total, seconds, provenance
        )
        write_records(path, records)
        print(f"{path.stem} {number}: {total:.1f} ms in {seconds} s", flush=True)
    return recorded(planner, task, path, code)


if __name__ == "__main__":
    main()
