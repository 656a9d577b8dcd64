"""Sequence-parallel plans on another network: repriced, or planned again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import (
    CostModel,
    CostModelSettings,
    ProfiledCostSettings,
    bandwidth_unit,
    build_cost_model,
)
from railx.planning.format.parts import Group
from railx.planning.format.plan import Plan, SequenceParallelBatch
from railx.planning.make import make_plan
from railx.planning.planners import PlannerSettings
from railx.settings import SettingsError, load
from railx.workload.batches import BatchSettings


def repriced(plan: Plan, cost: CostModel) -> tuple[SequenceParallelBatch, ...]:
    """The batches of a plan with the times of another cost model; assignments stay."""

    def times_of(group: Group) -> dict[str, float]:
        time = cost.group_time_ms(group.lengths, group.degree)
        return {
            "predicted_ms": time.total_ms,
            "predicted_compute_ms": time.compute_ms,
            "predicted_all_to_all_ms": time.all_to_all_ms,
        }

    return tuple(
        replace(batch, micro_batches=tuple(part.timed(times_of) for part in batch.micro_batches))
        for batch in plan.sequence_parallel_batches()
    )


def on_network(
    plan: Plan, all_to_all_gb_s: Mapping[int, float], switch_ms: float = 0.0
) -> dict[str, Any]:
    """The settings of a plan with the bandwidths (10^9 byte/s, by degree) of a network.

    ``switch_ms`` is added to every micro-batch. A fitted cost model gets the bandwidths
    in its own unit.
    """
    hints: dict[str, Any] = {"cluster": ClusterSettings, "cost_model": CostModelSettings}
    hints |= {"planner": PlannerSettings, "model": ModelSettings, "batch": BatchSettings}
    settings = {key: load(hint, plan.settings[key], key) for key, hint in hints.items()}
    cluster, cost_model = settings["cluster"], settings["cost_model"]
    unit = bandwidth_unit(cost_model)
    table = {
        str(degree): gb_s / unit
        for degree, gb_s in all_to_all_gb_s.items()
        if degree <= cluster.devices
    }
    if switch_ms:
        if isinstance(cost_model, ProfiledCostSettings):
            allowed = "fitted or analytic, or 0"
            raise SettingsError("switch_ms", f"got a plan by a profile; allowed: {allowed}")
        cost_model = replace(cost_model, constant_ms=cost_model.constant_ms + switch_ms)
    changed = {"cluster": replace(cluster, all_to_all_gb_s=table), "cost_model": cost_model}
    return settings | changed | {"seed": plan.settings["seed"]}


def remade(
    plan: Plan, lengths: Any, all_to_all_gb_s: Mapping[int, float], switch_ms: float = 0.0
) -> tuple[tuple[SequenceParallelBatch, ...], tuple[SequenceParallelBatch, ...]]:
    """A plan on a network: repriced, and planned again for it by the same planner.

    ``lengths`` (int64 [n], tokens) are its corpus.
    """
    there = on_network(plan, all_to_all_gb_s, switch_ms)
    filled = there["batch"].filled(lengths)
    cost_model, cluster, model = (there[key] for key in ("cost_model", "cluster", "model"))
    cost = build_cost_model(cost_model, cluster, model, filled.max_length_tokens)
    anew = make_plan(lengths=lengths, **there)
    return repriced(plan, cost), anew.sequence_parallel_batches()


def mix_rows(batches: Iterable[SequenceParallelBatch], devices: int) -> list[dict[str, Any]]:
    """Device time by degree: a row for each batch and degree, degree 0 is waiting.

    Columns: iteration, iteration_ms, micro_batches, degree, groups, sequences, tokens,
    device_ms (of all devices in groups of that degree), all_to_all_device_ms (part of
    it), share (of all devices over the iteration).
    """
    rows = []
    for batch in batches:
        total_ms = devices * batch.predicted_ms
        groups = [group for micro_batch in batch.micro_batches for group in micro_batch.groups]
        busy_ms = 0.0
        for degree in [*sorted({group.degree for group in groups}), 0]:
            members = [group for group in groups if group.degree == degree]
            device_ms = degree * sum(group.predicted_ms for group in members)
            if not degree:
                device_ms = max(total_ms - busy_ms, 0.0)
            busy_ms += device_ms
            exchange_ms = sum((group.predicted_all_to_all_ms for group in members), 0.0)
            row = {
                "iteration": batch.iteration,
                "iteration_ms": batch.predicted_ms,
                "micro_batches": len(batch.micro_batches),
                "degree": degree,
                "groups": len(members),
                "sequences": sum(len(group.sequences) for group in members),
                "tokens": sum(group.tokens for group in members),
                "device_ms": device_ms,
                "all_to_all_device_ms": degree * exchange_ms,
                "share": device_ms / total_ms,
            }
            rows.append(row)
    return rows
