"""The computation of each rank in an iteration, by a measured profile of a layer.

A pass is the forward or backward pass of a micro-batch or chunk on a rank. A profile
has its time on a device without other users
(``railx.performance.layer_profile``). It covers passes alone, without optimizer,
reductions and copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.io import read_json
from railx.performance.layer_profile import ProfileFit
from railx.planning.format.files import read_plan
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from railx.planning.format.schedule import operations_1f1b, stage_layers
from railx.settings import SettingsError, load

__all__ = ["Passes", "passes_of_run", "profiled_passes"]

#: By rank and iteration the passes in their order: ``forward`` or ``backward``, and ms.
Passes = Mapping[tuple[int, int], Sequence[tuple[str, float]]]


def passes_of_run(plan: Path, profile: Path, trace: Iterable[Mapping[str, Any]]) -> Passes:
    """What the ranks of a traced run compute, by the files of its plan and of a fit.

    SettingsError where the profile is one of another model.
    """
    fit: ProfileFit = load(ProfileFit, read_json(profile), "profile")
    followed = read_plan(plan)
    model = followed.settings["model"]
    if fit.model != model["name"]:
        raise SettingsError(
            "replay.profile",
            f"got a profile of {fit.model}; allowed: of {model['name']}, the model of the run",
        )
    return profiled_passes(followed, fit, model["layers"], {row["iteration"] for row in trace})


def profiled_passes(plan: Plan, fit: ProfileFit, layers: int, iterations: Iterable[int]) -> Passes:
    """The passes of every rank of a plan for a model of so many ``layers``.

    Iteration i runs batch i of the plan, which begins anew after its last. Embedding,
    head and loss count on the last stage of a pipeline; a recomputed layer takes its
    forward pass once more in the backward pass.
    """
    passes: dict[tuple[int, int], Sequence[tuple[str, float]]] = {}
    for iteration in iterations:
        number = iteration % len(plan.batches)
        for rank in range(plan.devices):
            if plan.kind == "sequence_parallel":
                passes[rank, iteration] = list(_in_groups(plan, number, rank, fit, layers))
            else:
                passes[rank, iteration] = list(_in_pipelines(plan, number, rank, fit, layers))
    return passes


def _in_groups(
    plan: Plan, number: int, rank: int, fit: ProfileFit, layers: int
) -> Iterator[tuple[str, float]]:
    for micro_batch in plan.sequence_parallel_batches()[number].micro_batches:
        for group in micro_batch.groups:
            if rank in group.ranks:
                slices = [(0, length) for length in group.lengths]
                layer_ms = fit.layer_ms(slices, group.degree)
                pass_ms = layers * layer_ms + fit.ends_ms(group.tokens, group.degree)
                yield "forward", fit.forward_share * pass_ms
                yield "backward", (1 - fit.forward_share) * pass_ms


def _in_pipelines(
    plan: Plan, number: int, rank: int, fit: ProfileFit, layers: int
) -> Iterator[tuple[str, float]]:
    for pipeline in plan.pipeline_batches()[number].pipelines:
        if rank in pipeline.ranks:
            stage = pipeline.ranks.index(rank) // pipeline.degree
            for op in operations_1f1b(pipeline, stage):
                forward_ms, backward_ms = _chunk_ms(pipeline, op.chunk, stage, fit, layers)
                yield op.kind, forward_ms if op.kind == "forward" else backward_ms


def _chunk_ms(
    pipeline: Pipeline, number: int, stage: int, fit: ProfileFit, layers: int
) -> tuple[float, float]:
    chunk, stage_layer_count = (
        pipeline.chunks[number],
        len(stage_layers(layers, pipeline.stages)[stage]),
    )
    layer_ms = fit.layer_ms([(part.start, part.tokens) for part in chunk.slices], pipeline.degree)
    pass_ms = stage_layer_count * layer_ms
    if stage == pipeline.stages - 1:
        pass_ms += fit.ends_ms(chunk.tokens, pipeline.degree)
    recomputed = chunk.checkpoint_layers[stage] if chunk.checkpoint_layers else 0
    forward_ms = fit.forward_share * pass_ms
    return forward_ms, pass_ms - forward_ms + recomputed * fit.forward_share * layer_ms
