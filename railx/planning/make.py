"""Make a plan with any planner, and turn plans into tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy.typing as npt

from railx.planning.occupancy import batch_starts, held_over_time
from railx.planning.plan import (
    SCHEMA,
    PipelineBatch,
    Plan,
    SequenceParallelBatch,
    validate_plan,
)
from railx.planning.planner import PlannerBase, PlanningTask
from railx.planning.planners import planner_of
from railx.planning.predictions import named_cost_model, pipeline_tokens_per_device
from railx.planning.schedule import schedule_name, simulate_pipeline
from railx.settings import SettingsError, to_dict
from railx.workload.batches import BatchSettings, SampledBatch, sample_batches
from railx.workload.cluster import ClusterSettings
from railx.workload.cost import CostModel, CostModelSettings, build_cost_model
from railx.workload.model import ModelSettings
from railx.workload.pipeline_cost import PipelineCost

__all__ = [
    "make_plan",
    "memory_rows",
    "plan_batches",
    "plan_rows",
    "plan_summary",
    "schedule_rows",
]

#: A longer time (ms) of one sequence, 30,000 years, is a mistake, and no solver counts
#: so far.
_MOST_MS = 1e15


def make_plan(
    planner: PlannerBase,
    lengths: npt.ArrayLike,
    cluster: ClusterSettings,
    model: ModelSettings,
    cost_model: CostModelSettings,
    batch: BatchSettings,
    seed: int,
) -> Plan:
    """Draw batches from a corpus and plan each of them.

    ``lengths`` (int64 [n], tokens) are the corpus. The same arguments give the same
    plan. One-line errors: SettingsError for a cost model or a cluster that does not
    suit the model, ValueError for a corpus too small for a batch, PlanError (a
    ValueError) for a sequence longer than the plan can hold.
    """
    filled = batch.filled(lengths)
    cost = build_cost_model(cost_model, cluster, model, filled.max_length_tokens)
    drawn = sample_batches(lengths, filled, seed)
    _check_times(cost, filled.max_length_tokens)
    settings: dict[str, Any] = {
        "planner": to_dict(planner),
        "cluster": to_dict(cluster),
        "model": to_dict(model),
        "cost_model": to_dict(cost_model),
        "batch": to_dict(batch),
        "seed": seed,
        "max_length_tokens": filled.max_length_tokens,
    }
    chosen = planner_of(planner)
    task = PlanningTask(
        tuple(drawn), cost, filled.max_length_tokens, cluster, model, cost_model, seed
    )
    batches: Any = plan_batches(planner, task)
    kind, held = chosen.kind_of(batches), cost.tokens_per_device
    if kind == "pipeline":
        held = pipeline_tokens_per_device(
            batches, cost_model, cluster, model, filled.max_length_tokens, cost
        )
    plan = Plan(
        SCHEMA,
        kind,
        chosen.name,
        chosen.ranks_of(planner, cluster.devices),
        settings,
        batches,
        held,
        chosen.predictions,
        chosen.whole_heads,
    )
    validate_plan(plan)
    return plan


def _check_times(cost: CostModel, longest: int) -> None:
    """Refuse constants with which nothing ends; SettingsError names their place."""
    tokens = min(longest, cost.longest_tokens)
    computed = float(cost.sequence_ms(tokens)) + cost.constant_ms
    exchanged = tokens * max(cost.all_to_all_ms.values())
    for key, time_ms in (("cluster.all_to_all_gb_s", exchanged), ("cost_model", computed)):
        if time_ms > _MOST_MS:
            raise SettingsError(
                key,
                f"got a time of {time_ms:.1e} ms for {tokens} tokens; allowed: at most"
                f" {_MOST_MS:.0e} ms",
            )


def plan_batches(planner: PlannerBase, task: PlanningTask) -> tuple[Any, ...]:
    """The batches of a plan, each with what it was planned for."""
    chosen = planner_of(planner)
    planned: tuple[Any, ...] = chosen.plan(planner, task)
    return tuple(
        _recorded(made, one, chosen.name) for made, one in zip(planned, task.batches, strict=True)
    )


def plan_rows(plan: Plan, name: str, corpus: str) -> list[dict[str, Any]]:
    """One row for each group or chunk of a plan.

    Groups are those of a sequence-parallel plan, chunks those of a pipeline plan (times
    on one stage). Columns: plan, planner, corpus, devices, kind, iteration, micro_batch
    (pipeline), group (chunk), first_rank (ranks are consecutive), degree (ranks),
    sequences, tokens, longest_tokens, predicted_ms, predicted_compute_ms,
    predicted_all_to_all_ms, predicted_other_ms (what a planner prices beyond the two),
    chunk_kind (null in a sequence-parallel plan), fidelity.
    """
    head = {
        "plan": name,
        "planner": plan.planner,
        "corpus": corpus,
        "devices": plan.devices,
        "kind": plan.kind,
    }
    if plan.kind == "sequence_parallel":
        return [
            head | row for batch in plan.sequence_parallel_batches() for row in _group_rows(batch)
        ]
    return [head | row for batch in plan.pipeline_batches() for row in _chunk_rows(batch)]


def schedule_rows(plan: Plan, name: str) -> list[dict[str, Any]]:
    """One row for each simulated operation of a pipeline plan, as in a Gantt chart.

    The clock restarts with each batch. Columns: plan, iteration, pipeline, replica,
    schedule (its name, or ``explicit``), stage, part (virtual stage), chunk, kind
    (forward, backward or weight), start_ms, end_ms, fidelity.
    """
    rows: list[dict[str, Any]] = []
    for batch in plan.pipeline_batches():
        for index, (pipeline, start_ms) in enumerate(
            zip(batch.pipelines, batch_starts(batch), strict=True)
        ):
            rows += [
                {
                    "plan": name,
                    "iteration": batch.iteration,
                    "pipeline": index,
                    "replica": pipeline.replica,
                    "schedule": schedule_name(pipeline),
                    "stage": op.stage,
                    "part": op.part,
                    "chunk": op.chunk,
                    "kind": op.kind,
                    "start_ms": op.start_ms,
                    "end_ms": op.end_ms,
                    "fidelity": "analytic",
                }
                for op in simulate_pipeline(pipeline, start_ms)
            ]
    return rows


def memory_rows(plan: Plan, name: str, cost: PipelineCost | None) -> list[dict[str, Any]]:
    """One row for each change of what a stage of a pipeline plan holds.

    It holds that until the next row of the stage. Columns: plan, iteration, pipeline,
    replica, schedule, stage, time_ms, live_chunks, live_tokens, activation_bytes (of
    one rank) and capacity_bytes (null without a cost model), fidelity.
    """
    rows: list[dict[str, Any]] = []
    for batch in plan.pipeline_batches():
        for index, (pipeline, start_ms) in enumerate(
            zip(batch.pipelines, batch_starts(batch), strict=True)
        ):
            simulated = simulate_pipeline(pipeline, start_ms)
            rows += [
                {
                    "plan": name,
                    "iteration": batch.iteration,
                    "pipeline": index,
                    "replica": pipeline.replica,
                    "schedule": schedule_name(pipeline),
                    "stage": held.stage,
                    "time_ms": held.time_ms,
                    "live_chunks": held.chunks,
                    "live_tokens": held.tokens,
                    "activation_bytes": held.activation_bytes,
                    "capacity_bytes": None if cost is None else cost.capacity_bytes(held.stage),
                    "fidelity": "analytic",
                }
                for own in held_over_time(pipeline, cost, simulated)
                for held in own
            ]
    return rows


def plan_summary(plan: Plan) -> dict[str, Any]:
    """Totals of a plan.

    Batches, sequences and tokens, the mean predicted time of a batch in ms and what of
    it is exposed traffic of ZeRO-3 by the cost model.
    """
    if plan.kind == "sequence_parallel":
        steps = plan.sequence_parallel_batches()
        times = [batch.predicted_ms for batch in steps]
        sequences = sum(
            len(g.sequences) for batch in steps for m in batch.micro_batches for g in m.groups
        )
        tokens = sum(batch.tokens for batch in steps)
        priced = plan.predictions == "cost_model"
        each_ms = named_cost_model(plan).cost.sharding_ms if priced else 0.0
        sharding_ms = sum(len(batch.micro_batches) for batch in steps) * each_ms
    else:
        pipelined = plan.pipeline_batches()
        times = [batch.predicted_ms for batch in pipelined]
        sharding_ms = sum(batch.predicted_other_ms for batch in pipelined)
        chunks = [
            chunk
            for batch in pipelined
            for pipeline in batch.pipelines
            for chunk in pipeline.chunks
        ]
        sequences = sum(part.start == 0 for chunk in chunks for part in chunk.slices)
        tokens = sum(chunk.tokens for chunk in chunks)
    return {
        "planner": plan.planner,
        "kind": plan.kind,
        "devices": plan.devices,
        "batches": len(plan.batches),
        "sequences": sequences,
        "total_tokens": tokens,
        "predicted_batch_ms": sum(times) / len(times),
        "predicted_sharding_ms": sharding_ms / len(times),
        "predicted_tokens_per_second": tokens / sum(times) * 1000,
    }


def _recorded(made: Any, drawn: SampledBatch, planner: str) -> Any:
    """A planned batch with what it was planned for.

    Bound, name of the solver and effort get fields of their own.
    """
    account = dict(made.solver)
    lifted = {
        "lower_bound_ms": account.pop("lower_bound_ms", made.lower_bound_ms),
        "solved_by": account.pop("name", made.solved_by or planner),
        "effort": account.pop("effort", made.effort),
    }
    return replace(
        made,
        sequences=tuple(drawn.sequences.tolist()),
        lengths=tuple(drawn.lengths.tolist()),
        solver=account,
        **lifted,
    )


def _group_rows(batch: SequenceParallelBatch) -> list[dict[str, Any]]:
    return [
        {
            "iteration": batch.iteration,
            "micro_batch": index,
            "group": number,
            "first_rank": group.ranks[0],
            "degree": group.degree,
            "sequences": len(group.sequences),
            "tokens": group.tokens,
            "longest_tokens": max(group.lengths),
            "predicted_ms": group.predicted_ms,
            "predicted_compute_ms": group.predicted_compute_ms,
            "predicted_all_to_all_ms": group.predicted_all_to_all_ms,
            "predicted_other_ms": sum(group.predicted_other_ms.values(), 0.0),
            "chunk_kind": None,
            "fidelity": "analytic",
        }
        for index, micro_batch in enumerate(batch.micro_batches)
        for number, group in enumerate(micro_batch.groups)
    ]


def _chunk_rows(batch: PipelineBatch) -> list[dict[str, Any]]:
    rows = []
    for index, pipeline in enumerate(batch.pipelines):
        for number, chunk in enumerate(pipeline.chunks):
            time_ms = chunk.predicted_forward_ms + chunk.predicted_backward_ms
            rows.append(
                {
                    "iteration": batch.iteration,
                    "micro_batch": index,
                    "group": number,
                    "first_rank": pipeline.ranks[0],
                    "degree": pipeline.stages * pipeline.degree,
                    "sequences": len(chunk.slices),
                    "tokens": chunk.tokens,
                    "longest_tokens": max(part.length for part in chunk.slices),
                    "predicted_ms": time_ms,
                    "predicted_compute_ms": time_ms - chunk.predicted_all_to_all_ms,
                    "predicted_all_to_all_ms": chunk.predicted_all_to_all_ms,
                    "predicted_other_ms": 0.0,
                    "chunk_kind": chunk.kind,
                    "fidelity": "analytic",
                }
            )
    return rows
