"""Plans by name, PLANNER_SETTING_CORPUS, made batch by batch to be recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from workflow.recorded_plans import planner_code, record_of
from workflow.stage import Config

if TYPE_CHECKING:
    from railx.planning.format.plan import Plan


def composed_plans(batches: Mapping[str, int]) -> Config:
    """An experiment with plans by name, PLANNER_SETTING_CORPUS, of so many batches."""
    from workflow.experiment import checked_experiment

    counts = [f"plans.{name}.batch.batches={count}" for name, count in batches.items()]
    return checked_experiment(["experiment=planners", f"plans=[{','.join(batches)}]", *counts])


def planned_by_name(name: str, experiment: Config, plan: Callable[..., tuple[Any, ...]]) -> Plan:
    """A plan of an experiment, its batches by ``plan(planner, task, path=, code=)``."""
    from railx.performance.cluster import ClusterSettings
    from railx.performance.decoder import ModelSettings
    from railx.performance.sequence_cost import CostModelSettings
    from railx.planning.make import make_plan
    from railx.planning.planner import PlannerBase
    from railx.planning.planners import PlannerSettings
    from railx.settings import load
    from railx.workload.batches import BatchSettings
    from railx.workload.corpus import CorpusSettings, build_corpus

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
