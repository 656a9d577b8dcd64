"""Elastic pipelines of split, hybrid and batched chunks (InfiniPipe).

There is no recomputation. For every number of slices K up to a limit the sequence
processor (``chunks``) makes chunks of about equal time. They form one 1F1B pipeline,
longest sequences first, or several one after another where memory cannot hold the
window of the longest (the paper's grouping programme, eq. 14, over classes of equal
chunk count). The K with the least simulated time wins.

Deviations: nothing is recomputed (the paper's integer programme for checkpoints is left
out, so memory decides between pipelines alone). Several data-parallel replicas may
share a batch, each planned by itself. Memory counts activations and the gradients of
split keys and values (eq. 5) but no logits, for which no constant is published.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.planning.chunks import PipelineShape, SequenceChunks, build_chunks, mesh
from railx.planning.groups import Lengths, check_lengths_fit
from railx.planning.plan import Chunk, Pipeline, PipelineBatch, PlanError
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.planning.schedule import one_f_one_b, pipeline_ms
from railx.settings import AtLeast, PowerOfTwo
from railx.workload.batches import SampledBatch
from railx.workload.cost import CostModel

__all__ = [
    "PIPELINE",
    "PipelineSettings",
    "peak_tokens",
    "plan_pipeline_batch",
    "share_among_replicas",
]


@dataclass(frozen=True)
class PipelineSettings(PlannerBase):
    """Pipelines of split, packed and mixed chunks (InfiniPipe).

    The number of slices of the longest sequence with the least simulated time is taken.
    """

    planner: Literal["pipeline"]
    """Which planner it is."""

    stages: Annotated[int, AtLeast(1)]
    """Stages of a replica."""

    replicas: Annotated[int, AtLeast(1)]
    """Replicas that share a batch."""

    sequence_parallel_degree: Annotated[int, PowerOfTwo()]
    """Ranks of each stage, which share the tokens of a chunk."""

    most_slices: Annotated[int, AtLeast(1)]
    """Most slices of equal time into which the longest sequence is cut."""

    alignment_tokens: Annotated[int, AtLeast(1)]
    """Tokens of which every cut is a multiple."""


def plan_pipeline_batch(
    iteration: int, batch: SampledBatch, settings: PipelineSettings, devices: int, cost: CostModel
) -> PipelineBatch:
    """Plan one batch for ``settings.replicas`` pipelines side by side.

    PlanError where the cluster is too small or a sequence fits no pipeline; it names
    the sequence.
    """
    shape = _shape(settings, devices, cost)
    if len(batch.lengths) < settings.replicas:
        raise PlanError(
            f"planner.replicas: got {settings.replicas}; allowed: at most {len(batch.lengths)}, the"
            " sequences of a batch"
        )
    memory = cost.tokens_per_device * shape.devices
    where = f"a pipeline of {shape.stages} stages of {shape.degree} ranks"
    check_lengths_fit(batch.sequences, batch.lengths, memory, where)
    pipelines: list[Pipeline] = []
    slices: list[int] = []
    for replica, positions in enumerate(
        share_among_replicas(batch.lengths, settings.replicas, cost)
    ):
        best = _best_replica(
            batch.sequences[positions], batch.lengths[positions], replica, settings, shape, cost
        )
        if best is None:
            longest = positions[int(np.argmax(batch.lengths[positions]))]
            fitting = _longest_fitting(int(batch.lengths[longest]), settings, shape, cost)
            raise PlanError(
                f"sequence {batch.sequences[longest]}: {batch.lengths[longest]} tokens; allowed: at"
                f" most {fitting}, the longest that {where} holds in up to {settings.most_slices}"
                " slices"
            )
        slices.append(best[0])
        pipelines += best[1]
    return PipelineBatch(iteration, tuple(pipelines), {"slices_of_the_longest": slices})


def share_among_replicas(lengths: Lengths, replicas: int, cost: CostModel) -> list[Lengths]:
    """Positions [.] for each replica, longest sequence first.

    Each goes to the replica with the least compute time so far.
    """
    work, busy = cost.sequence_ms(lengths), np.zeros(replicas)
    shared: list[list[int]] = [[] for _ in range(replicas)]
    for position in np.argsort(-lengths, kind="stable").tolist():
        chosen = int(np.argmin(busy))
        shared[chosen].append(position)
        busy[chosen] += work[position]
    return [np.array(positions, dtype=np.int64) for positions in shared]


def peak_tokens(pipeline: Pipeline, cost: CostModel) -> float:
    """The most tokens whose activations the first stage holds at once.

    A split token weighs more (InfiniPipe eqs. 5-8). The first stage has the widest
    window, so that no other holds more.
    """
    live = peak = 0.0
    weight = [
        chunk.tokens * (cost.split_memory if chunk.kind == "split" else 1.0)
        for chunk in pipeline.chunks
    ]
    for op in one_f_one_b(pipeline, 0):
        live += weight[op.chunk] if op.kind == "forward" else -weight[op.chunk]
        peak = max(peak, live)
    return peak


def _shape(settings: PipelineSettings, devices: int, cost: CostModel) -> PipelineShape:
    degree = settings.sequence_parallel_degree
    if degree not in cost.degrees:
        raise PlanError(
            f"planner.sequence_parallel_degree: got {degree}; allowed: {cost.degrees_in_words}"
        )
    needed = settings.stages * settings.replicas * degree
    if needed > devices:
        raise PlanError(
            f"planner.stages: {settings.stages} stages x {settings.replicas} replicas x degree"
            f" {degree} need {needed} devices; allowed: at most {devices}"
        )
    return PipelineShape(settings.stages, degree)


def _best_replica(
    sequences: Lengths,
    lengths: Lengths,
    replica: int,
    settings: PipelineSettings,
    shape: PipelineShape,
    cost: CostModel,
) -> tuple[int, list[Pipeline]] | None:
    """Slices of the longest sequence and the pipelines with the least simulated time.

    None where nothing fits memory.
    """
    best: tuple[float, int, list[Pipeline]] | None = None
    tried: set[tuple[int, ...]] = set()
    memory = cost.tokens_per_device * shape.devices
    for slices in range(1, settings.most_slices + 1):
        cuts = mesh(int(lengths.max()), slices, shape, cost, settings.alignment_tokens)
        if tuple(cuts) in tried:
            continue
        tried.add(tuple(cuts))
        # Where memory cannot hold short sequences beside the tails of the longest, its
        # pipeline goes without them.
        for beside_tails in (True, False):
            groups = build_chunks(
                sequences, lengths, cuts, memory // shape.stages, shape, cost, beside_tails
            )
            pipelines = _grouped(groups, replica, shape, cost) if groups is not None else None
            if pipelines is not None:
                break
        if pipelines is not None:
            total = sum(map(pipeline_ms, pipelines))
            if best is None or total < best[0]:
                best = total, len(cuts) + 1, pipelines
    return (best[1], best[2]) if best is not None else None


def _longest_fitting(
    too_long: int, settings: PipelineSettings, shape: PipelineShape, cost: CostModel
) -> int:
    """The longest sequence that a pipeline holds alone, by bisection.

    It is below one that does not fit.
    """
    fits, fails = 0, too_long
    while fails - fits > 1:
        middle = (fits + fails) // 2
        alone = _best_replica(np.array([0]), np.array([middle]), 0, settings, shape, cost)
        fits, fails = (middle, fails) if alone is not None else (fits, middle)
    return fits


def _grouped(
    groups: list[SequenceChunks], replica: int, shape: PipelineShape, cost: CostModel
) -> list[Pipeline] | None:
    """One pipeline where memory holds it, else the cheapest division (eq. 14).

    The division is into pipelines of neighbouring chunk counts. Where two sequences of
    one count do not fit together, cut sequences are divided one by one.
    """
    whole = _pipeline(groups, replica, shape)
    if _fits(whole, cost, shape):
        return [whole]
    by_count = [
        list(members) for _, members in itertools.groupby(groups, key=lambda group: group.count)
    ]
    divided = _divided(by_count, replica, shape, cost)
    if divided is None:
        one_by_one = [[group] for group in groups if group.count > 1]
        batched = [group for group in groups if group.count == 1]
        divided = _divided([*one_by_one, batched] if batched else one_by_one, replica, shape, cost)
    return divided


def _divided(
    units: list[list[SequenceChunks]], replica: int, shape: PipelineShape, cost: CostModel
) -> list[Pipeline] | None:
    """Neighbouring units joined to pipelines that fit memory.

    With the least time to fill and drain; None where a unit does not fit.
    """
    best: list[tuple[float, list[Pipeline]]] = [(0.0, [])]
    for end in range(1, len(units) + 1):
        choice: tuple[float, list[Pipeline]] = (math.inf, [])
        for start in range(end - 1, -1, -1):
            pipeline = _pipeline(
                [group for unit in units[start:end] for group in unit], replica, shape
            )
            if not _fits(pipeline, cost, shape):
                break  # more units in front only hold more at once
            total = best[start][0] + _fill_and_drain_ms(pipeline)
            if total < choice[0]:
                choice = total, [*best[start][1], pipeline]
        if choice[0] == math.inf:
            return None
        best.append(choice)
    return best[-1][1]


def _pipeline(groups: list[SequenceChunks], replica: int, shape: PipelineShape) -> Pipeline:
    return Pipeline(
        shape.stages,
        replica,
        tuple(chunk for group in groups for chunk in group.chunks),
        shape.degree,
    )


def _fits(pipeline: Pipeline, cost: CostModel, shape: PipelineShape) -> bool:
    return peak_tokens(pipeline, cost) <= cost.tokens_per_device * shape.devices


def _fill_and_drain_ms(pipeline: Pipeline) -> float:
    """What a further pipeline costs (eqs. 12-13).

    (stages - 1) times the mean chunk time.
    """
    return (pipeline.stages - 1) * sum(map(_chunk_ms, pipeline.chunks)) / len(pipeline.chunks)


def _chunk_ms(chunk: Chunk) -> float:
    return chunk.predicted_forward_ms + chunk.predicted_backward_ms


def _plan(settings: PipelineSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    return tuple(
        plan_pipeline_batch(index, batch, settings, task.devices, task.cost)
        for index, batch in enumerate(task.batches)
    )


def _ranks(settings: PipelineSettings) -> int:
    """Every rank of every stage."""
    return settings.stages * settings.replicas * settings.sequence_parallel_degree


#: The entry of the list of planners.
PIPELINE = Planner("pipeline", "pipeline", PipelineSettings, _plan, _ranks)
