"""Make a plan with any planner, and turn plans into tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModel, CostModelSettings, build_cost_model
from railx.planning.format.files import validate_plan
from railx.planning.format.plan import SCHEMA, Plan
from railx.planning.format.predictions import pipeline_tokens_per_device
from railx.planning.planner import PlannerBase, PlanningTask
from railx.planning.planners import planner_of
from railx.settings import SettingsError, to_dict
from railx.workload.batches import BatchSettings, SampledBatch, sample_batches

#: A longer time (ms) of a sequence, 30,000 years, is a mistake and overflows solvers.
_MOST_MS = 1e15


def make_plan(
    planner: PlannerBase,
    lengths: npt.ArrayLike,
    cluster: ClusterSettings,
    model: ModelSettings,
    cost_model: CostModelSettings,
    batch: BatchSettings,
    seed: int,
    plan: Callable[[Any, PlanningTask], tuple[Any, ...]] | None = None,
) -> Plan:
    """Draw batches from a corpus and plan each of them.

    ``lengths`` (int64 [n], tokens) are the corpus. The same arguments give the same
    plan. ``plan`` takes the place of the planner's function, e.g. to read records.
    One-line errors: SettingsError for a cost model or a cluster that does not suit the
    model, ValueError for a corpus too small for a batch, PlanError (a ValueError) for a
    sequence longer than the plan can hold.
    """
    filled = batch.filled(lengths)
    longest = filled.max_length_tokens
    cost = build_cost_model(cost_model, cluster, model, longest)
    drawn = sample_batches(lengths, filled, seed)
    _check_times(cost, longest)
    inputs = {"planner": planner, "cluster": cluster, "model": model, "cost_model": cost_model}
    inputs |= {"batch": batch, "seed": seed, "max_length_tokens": longest}
    chosen = planner_of(planner)
    task = PlanningTask(cost, longest, cluster, model, cost_model, tuple(drawn), seed)
    batches: Any = plan_batches(planner, task, plan)
    kind, tokens_per_device = chosen.kind_of(batches), cost.tokens_per_device
    if kind == "pipeline":
        tokens_per_device = pipeline_tokens_per_device(batches, task)
    assembled = Plan(
        SCHEMA, kind, chosen.name, chosen.ranks_of(planner, cluster.devices), to_dict(inputs),
        batches, tokens_per_device, chosen.predictions, chosen.whole_heads,
    )  # fmt: skip
    validate_plan(assembled)
    return assembled


def _check_times(cost: CostModel, longest: int) -> None:
    """Refuse constants that make times endless; SettingsError names their key."""
    tokens = min(longest, cost.longest_tokens)
    computed = float(cost.sequence_ms(tokens)) + cost.constant_ms
    exchanged = tokens * max(cost.all_to_all_ms.values())
    for key, time_ms in (("cluster.all_to_all_gb_s", exchanged), ("cost_model", computed)):
        if time_ms > _MOST_MS:
            got = f"got a time of {time_ms:.1e} ms for {tokens} tokens"
            raise SettingsError(key, f"{got}; allowed: at most {_MOST_MS:.0e} ms")


def plan_batches(
    planner: PlannerBase,
    task: PlanningTask,
    plan: Callable[[Any, PlanningTask], tuple[Any, ...]] | None = None,
) -> tuple[Any, ...]:
    """The batches of a plan, each with its planned sequences.

    ``plan`` takes the place of the planner's function.
    """
    chosen = planner_of(planner)
    planned: tuple[Any, ...] = (plan or chosen.plan)(planner, task)
    drawn = zip(planned, task.batches, strict=True)
    return tuple(_recorded(batch, sampled, chosen.name) for batch, sampled in drawn)


def _recorded(planned: Any, drawn: SampledBatch, planner: str) -> Any:
    """A batch with its planned sequences, lower bound, solver and effort."""
    account = dict(planned.solver)
    return replace(
        planned,
        sequences=tuple(drawn.sequences.tolist()),
        lengths=tuple(drawn.lengths.tolist()),
        lower_bound_ms=account.pop("lower_bound_ms", planned.lower_bound_ms),
        solved_by=account.pop("name", planned.solved_by or planner),
        effort=account.pop("effort", planned.effort),
        solver=account,
    )
