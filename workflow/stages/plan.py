"""Stage plan: a corpus and settings -> a plan, its table and, for pipelines, its
schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from railx.io import write_json, write_table
from railx.planning.make import make_plan, plan_rows, plan_summary, schedule_rows
from railx.planning.plan import write_plan
from railx.planning.planners import PlannerSettings
from railx.settings import load
from railx.workload.batches import BatchSettings
from railx.workload.cluster import ClusterSettings
from railx.workload.corpus import read_corpus_lengths
from railx.workload.cost import CostModelSettings
from railx.workload.model import ModelSettings

__all__ = ["run"]

_SCHEDULE = pa.schema(
    [
        ("plan", pa.string()),
        ("iteration", pa.int64()),
        ("pipeline", pa.int64()),
        ("replica", pa.int64()),
        ("stage", pa.int64()),
        ("chunk", pa.int64()),
        ("kind", pa.string()),
        ("start_ms", pa.float64()),
        ("end_ms", pa.float64()),
        ("fidelity", pa.string()),
    ]
)


def run(
    settings: Mapping[str, Any],
    *,
    name: str,
    corpus_path: str | Path,
    plan_path: str | Path | None = None,
    table_path: str | Path | None = None,
    schedule_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Plan batches of the corpus; write the plan and its tables where paths are given;
    return the summary.

    ``settings``: planner, cluster, model, cost_model, batch and seed. The schedule of a
    sequence-parallel plan has no rows.
    """
    corpus, lengths = read_corpus_lengths(corpus_path)
    plan = make_plan(
        load(PlannerSettings, settings["planner"], "planner"),
        lengths,
        load(ClusterSettings, settings["cluster"], "cluster"),
        load(ModelSettings, settings["model"], "model"),
        load(CostModelSettings, settings["cost_model"], "cost_model"),
        load(BatchSettings, settings["batch"], "batch"),
        settings["seed"],
    )
    summary = {"plan": name, "corpus": corpus, **plan_summary(plan), "fidelity": "analytic"}
    if plan_path is not None:
        write_plan(plan_path, plan)
    if table_path is not None:
        write_table(table_path, plan_rows(plan, name, corpus))
    if schedule_path is not None:
        rows = schedule_rows(plan, name) if plan.kind == "pipeline" else []
        write_table(schedule_path, pa.Table.from_pylist(rows, schema=_SCHEDULE))
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary
