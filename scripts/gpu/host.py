"""Bytes that ranks on one GPU exchange through the host, which set the time of a step.

Four ranks of gloo on two cores gather 0.2 GB/s each and reduce 0.1 to 0.2 (measured);
with a core or more for each rank and its copies to and from the GPU, twice as much is
assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from railx.performance.decoder import ModelSettings
    from railx.planning.format.plan import PipelineBatch, Plan, SequenceParallelBatch

#: What a run with switching may take; a step of the list may take longer by a factor.
SWITCHED_S = 80
#: Rate of a rank (assumed, see above).
HOST_GB_S = 0.4
#: Bytes of an element: activations in bfloat16, gradients in single precision.
_COMPUTE, _MASTER = 2, 4


def exchanged_bytes(
    model: ModelSettings, batch: SequenceParallelBatch | PipelineBatch, ranks: int
) -> float:
    """Bytes that the busiest rank receives in a step, with sharded parameters.

    Sequence parallelism gathers the layers twice and the rest once for each
    micro-batch, and sums all gradients; a stage does so once for a batch, between
    stages go hidden states and their gradients.
    """
    from railx.performance.decoder import (
        all_to_all_bytes_per_token,
        parameter_count,
        stage_parameters,
    )
    from railx.planning.format.plan import PipelineBatch

    if isinstance(batch, PipelineBatch):
        stages = batch.pipelines[0].stages
        replicas = ranks // (stages * batch.pipelines[0].degree)
        parameters = max(stage_parameters(model, 0, stage, stages) for stage in range(stages))
        messages = 2 * _COMPUTE * model.hidden * batch.tokens / replicas
        return parameters * (_COMPUTE + _MASTER) * (1 - 1 / replicas) + messages
    whole = parameter_count(model, 0)
    layers = whole - parameter_count(replace(model, layers=0), 0)
    sharded = (whole + layers) * _COMPUTE + whole * _MASTER
    # A rank keeps its own part of what its group exchanges.
    heads = sum(
        max(group.tokens * (group.degree - 1) / group.degree**2 for group in micro_batch.groups)
        for micro_batch in batch.micro_batches
    )
    exchanged = heads * all_to_all_bytes_per_token(model, _COMPUTE)
    return len(batch.micro_batches) * sharded * (1 - 1 / ranks) + exchanged


def run_seconds(model: ModelSettings, plan: Plan, training: Mapping[str, Any]) -> float:
    """Time of a run's exchanges, warm-up included, at :data:`HOST_GB_S`."""
    steps = training["warmup_iterations"] + training["iterations"]
    settings = (
        1 + len(training["on_demand_latencies_ms"]) + len(training["provisioned_latencies_ms"])
    )
    batches = [plan.batches[step % len(plan.batches)] for step in range(steps)]
    exchanged = sum(exchanged_bytes(model, batch, plan.devices) for batch in batches)
    return settings * training["repeats"] * exchanged / (HOST_GB_S * 1e9)


def layers_that_fit(
    model: ModelSettings, plan: Plan, training: Mapping[str, Any], seconds: float
) -> int:
    """Most layers for a run of this time: 2 to a third of the model's."""
    most = max(model.layers // 3, 2)
    fitting = (
        layers
        for layers in range(most, 2, -1)
        if run_seconds(replace(model, layers=layers), plan, training) <= seconds
    )
    return next(fitting, 2)
