"""Predicted times of a plan worked out again from the cost model that it names.

A plan of ``railx.planning.make`` names its cluster, its model, its cost model and the
longest context that sized the model. From these follow how many tokens a rank holds and
every time in the plan, so that a file whose times are better than its sequences allow
is refused when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from railx.planning.plan import (
    Group,
    Pipeline,
    Plan,
    PlanError,
    agree,
)
from railx.settings import SettingsError, load
from railx.workload.cluster import ClusterSettings
from railx.workload.cost import CostModel, CostModelSettings, build_cost_model
from railx.workload.model import ModelSettings

__all__ = ["NAMED", "NamedCostModel", "check_predictions", "named_cost_model"]

#: What ``settings`` of a plan hold where its predictions are a cost model's.
NAMED = ("cluster", "model", "cost_model", "max_length_tokens")


@dataclass(frozen=True)
class NamedCostModel:
    """The cost model that a plan names, with what it was built from."""

    cluster: ClusterSettings
    model: ModelSettings
    cost: CostModel


def named_cost_model(plan: Plan) -> NamedCostModel:
    """The cost model of a plan's settings; PlanError where they name none."""
    missing = [key for key in NAMED if key not in plan.settings]
    if missing:
        raise PlanError(
            f"settings.{missing[0]}: is missing; allowed with predictions of a cost model:"
            f" {', '.join(NAMED)}"
        )
    given: dict[str, Any] = {key: plan.settings[key] for key in NAMED}
    longest = given["max_length_tokens"]
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
        raise PlanError(f"settings.max_length_tokens: got {longest!r}; allowed: at least 1")
    try:
        cluster: ClusterSettings = load(ClusterSettings, given["cluster"], "cluster")
        model: ModelSettings = load(ModelSettings, given["model"], "model")
        settings: CostModelSettings = load(CostModelSettings, given["cost_model"], "cost_model")
        return NamedCostModel(cluster, model, build_cost_model(settings, cluster, model, longest))
    except SettingsError as error:
        raise PlanError(f"settings.{error}") from None


def check_predictions(plan: Plan, named: NamedCostModel) -> None:
    """Refuse times, degrees, devices or memory that the named cost model does not give.

    PlanError names the group or the chunk, what the plan says and what it should.
    """
    cost = named.cost
    if plan.tokens_per_device != cost.tokens_per_device:
        raise PlanError(
            f"tokens_per_device: got {plan.tokens_per_device}; allowed: {cost.tokens_per_device},"
            " what the plan's cluster and cost model say"
        )
    longest = plan.settings["max_length_tokens"]
    for batch in plan.batches:
        for sequence, length in zip(batch.sequences, batch.lengths, strict=True):
            if length > longest:
                raise PlanError(
                    f"batch {batch.iteration}, sequence {sequence}: {length} tokens; allowed: at"
                    f" most {longest}, settings.max_length_tokens"
                )
    if plan.kind == "pipeline":
        if plan.devices > named.cluster.devices:
            raise PlanError(_devices(plan, f"at most {named.cluster.devices}"))
        for pipelined in plan.pipeline_batches():
            for index, pipeline in enumerate(pipelined.pipelines):
                place = f"batch {pipelined.iteration}, pipeline {index}"
                _check_degree(pipeline.degree, plan, named, place)
                _check_pipeline(pipeline, cost, place)
        return
    if plan.devices != named.cluster.devices:
        raise PlanError(_devices(plan, str(named.cluster.devices)))
    for one in plan.sequence_parallel_batches():
        for index, micro_batch in enumerate(one.micro_batches):
            for number, group in enumerate(micro_batch.groups):
                place = f"batch {one.iteration}, micro-batch {index}, group {number}"
                _check_degree(group.degree, plan, named, place)
                _check_group(group, cost, place)


def _devices(plan: Plan, allowed: str) -> str:
    return f"devices: got {plan.devices}; allowed: {allowed}, those of settings.cluster"


def _check_degree(degree: int, plan: Plan, named: NamedCostModel, place: str) -> None:
    if plan.whole_heads and degree not in named.cost.any_degrees:
        allowed = ", ".join(map(str, named.cost.any_degrees))
        raise PlanError(
            f"{place}: degree {degree}; allowed: {allowed}, those that divide the"
            f" {named.model.heads} heads and have a bandwidth"
        )


def _check_group(group: Group, cost: CostModel, place: str) -> None:
    time = cost.group_time_ms(group.lengths, group.degree)
    _check_ms(place, "predicted_compute_ms", group.predicted_compute_ms, time.compute_ms)
    _check_ms(place, "predicted_all_to_all_ms", group.predicted_all_to_all_ms, time.all_to_all_ms)
    for name, time_ms in group.predicted_other_ms.items():
        _check_ms(place, f"predicted_other_ms.{name}", time_ms, 0.0)


def _check_pipeline(pipeline: Pipeline, cost: CostModel, place: str) -> None:
    for number, chunk in enumerate(pipeline.chunks):
        slices = [(part.start, part.tokens) for part in chunk.slices]
        time = cost.chunk_time_ms(slices, pipeline.stages, pipeline.degree)
        inside = f"{place}, chunk {number}"
        _check_ms(inside, "predicted_forward_ms", chunk.predicted_forward_ms, time.forward_ms)
        _check_ms(inside, "predicted_backward_ms", chunk.predicted_backward_ms, time.backward_ms)
        _check_ms(
            inside, "predicted_all_to_all_ms", chunk.predicted_all_to_all_ms, time.all_to_all_ms
        )


def _check_ms(place: str, key: str, said: float, right: float) -> None:
    if not agree(said, right):
        raise PlanError(
            f"{place}: {key} {said}; allowed: {right}, what the plan's cost model gives"
        )
