"""DynaPipe: pipelines of consecutive micro-batches of sorted sequences.

DynaPipe (arXiv 2311.10418) sorts sequences by length and cuts them into consecutive
micro-batches such that

    (stages - 1) · max t + (1 / replicas) Σ t

is least, with t the time of a micro-batch on a stage. Micro-batches go to replicas
longest first, each to the one with the least time so far, and run in the better of both
orders of length by simulation. No sequence is cut. How many layers are recomputed is
chosen batch by batch. The public code pads the samples of a micro-batch to the longest,
here they are packed, so that t is a sum over sequences and a constant, and the
programme over cuts has a closed form: for a limit on t, filling micro-batches in turn
gives the fewest of them. The limit is searched exactly, not on a grid; with times of
packed samples that code's cuts are as good (``tests/planning/golden``). Memory allows
a micro-batch what leaves room for as many as a stage holds at once; the code lets a
stage hold fewer where they are large, and clusters micro-batches to try more orders. As
many layers are recomputed as it takes, where the code chooses among none, selective and
full.

Elastic pipelines try these micro-batches too (``chunking: best``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Pipeline, Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.predictions import fits
from railx.planning.format.schedule import pipeline_ms
from railx.planning.packing import Floats, Integers, fewest, least_loaded
from railx.planning.pipeline.chunks import chunk_of, pipeline_of
from railx.planning.pipeline.fixed_chunks import FixedChunkSettings, layers_to_try, spread
from railx.planning.planner import Planner, PlanningTask
from railx.workload.batches import SampledBatch


@dataclass(frozen=True)
class DynaPipeSettings(FixedChunkSettings):
    """Pipelines of consecutive micro-batches of sorted sequences (DynaPipe)."""

    planner: Literal["dyna_pipe"]
    """Which planner it is."""


def consecutive_cuts(
    works_ms: Floats,
    tokens: Integers,
    constant_ms: float,
    most_tokens: int,
    fill_weight: float,
    share: float = 1.0,
) -> list[int]:
    """Ascending ends of the consecutive micro-batches of least time.

    Micro-batch t is the sum of its sequences' ``works_ms`` [n] and ``constant_ms``, of
    up to ``most_tokens`` of ``tokens`` [n] or one sequence. The time is ``fill_weight``
    times the longest t plus ``share`` times their sum.
    """
    work = np.concatenate(([0.0], np.cumsum(works_ms)))
    token_sums = np.concatenate(([0], np.cumsum(tokens)))

    def within(limit_ms: float) -> list[int]:
        """The fewest micro-batches of up to this time."""
        ends, start, count = [], 0, len(works_ms)
        while start < count:
            by_time = np.searchsorted(work, work[start] + limit_ms - constant_ms, side="right")
            by_tokens = np.searchsorted(token_sums, token_sums[start] + most_tokens, side="right")
            start = max(start + 1, min(int(by_time), int(by_tokens)) - 1)
            ends.append(start)
        return ends

    def longest_ms(ends: list[int]) -> float:
        return float(np.diff(work[[0, *ends]]).max()) + constant_ms

    def time_ms(ends: list[int]) -> float:
        total_ms = float(work[-1]) + len(ends) * constant_ms
        return fill_weight * longest_ms(ends) + share * total_ms

    # A hair above: without the constant both may round below their works.
    low = (float(works_ms.max()) + constant_ms) * (1 + 1e-12)
    high = (float(work[-1]) + constant_ms) * (1 + 1e-12)
    best = min((within(low), within(high)), key=time_ms)
    # Fewer micro-batches than between two limits there are not, nor a shorter longest.
    intervals = [(low, high, len(within(low)), len(within(high)))]
    while intervals:
        low, high, many, few = intervals.pop()
        bound = fill_weight * low + share * (work[-1] + few * constant_ms)
        if many == few or high - low <= 1e-12 * high or bound >= time_ms(best):
            continue
        middle = (low + high) / 2
        ends = within(middle)
        best = min(best, ends, key=time_ms)
        intervals += [(middle, high, len(ends), few), (low, middle, many, len(ends))]
    return best


def plan_dyna_pipe_batch(
    iteration: int, batch: SampledBatch, layers: int | None, cost: PipelineCost
) -> PipelineBatch | None:
    """Plan one batch, recomputing ``layers`` (None: the fewest); None if unfit."""
    with_layers = cache(lambda count: _with_layers(batch, count, cost))
    needed = fewest(layers_to_try(layers, cost), lambda count: with_layers(count) is not None)
    if needed is None or (pipelines := with_layers(needed)) is None:
        return None
    micro_batches = sum(len(pipeline.chunks) for pipeline in pipelines)
    account = {"checkpointed_layers": needed, "micro_batches": micro_batches}
    return PipelineBatch(iteration, tuple(pipelines), account, predicted_other_ms=cost.batch_ms)


def _with_layers(batch: SampledBatch, layers: int, cost: PipelineCost) -> list[Pipeline] | None:
    """Pipelines that recompute ``layers`` layers; None where they do not fit memory."""
    shape, recomputed = cost.shape, spread(layers, cost)
    ascending = np.lexsort((batch.sequences, batch.lengths))
    sequences, lengths = batch.sequences[ascending], batch.lengths[ascending]
    forward, backward, _ = cost.slice_times_ms(np.zeros(len(lengths)), lengths)
    room = min(
        cost.capacity_bytes(stage)
        / (float(cost.activation_bytes(1, False, stage, count)) * (shape.stages - stage))
        for stage, count in enumerate(recomputed)
    )
    # A recomputed layer is a share of the forward pass without its gather.
    again = max(recomputed) * cost.recompute_over_forward / max(cost.layer_counts)
    empty = cost.chunk_time_ms([])
    ends = consecutive_cuts(
        (1 + again) * forward + backward,
        lengths,
        (1 + again) * empty.forward_ms - again * cost.gather_ms + empty.backward_ms,
        int(room),
        shape.stages - 1,
        1 / shape.replicas,
    )
    # Every replica needs a micro-batch.
    while len(ends) < shape.replicas:
        widths = np.diff([0, *ends])
        widest = int(np.argmax(widths))
        ends.insert(widest, ends[widest] - int(widths[widest]) // 2)
    drawn = zip(sequences.tolist(), lengths.tolist(), strict=True)
    slices = [Slice(sequence, 0, length, length) for sequence, length in drawn]
    edges = pairwise([0, *ends])
    chunks = [chunk_of(slices[start:end], cost, recomputed) for start, end in edges]
    times_ms = np.array([chunk.predicted_ms for chunk in chunks])
    longest_first = np.argsort(-times_ms, kind="stable").tolist()
    pipelines = []
    for replica, shared in enumerate(least_loaded(longest_first, times_ms, shape.replicas)):
        order = [chunks[index] for index in shared]
        both = (pipeline_of(order[::way], replica, shape) for way in (1, -1))
        fitting = [pipeline for pipeline in both if fits(pipeline, cost)]
        if not fitting:
            return None
        pipelines.append(min(fitting, key=pipeline_ms))
    return pipelines


def _plan(settings: DynaPipeSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    cost = task.pipelines(settings.shape)
    settings.check(task)
    layers = settings.checkpointed_layers
    alone = replace(cost, shape=replace(cost.shape, replicas=1))

    def planned(index: int, batch: SampledBatch) -> PipelineBatch:
        fitting = plan_dyna_pipe_batch(index, batch, layers, cost)
        if fitting is not None:
            return fitting
        raise settings.refusal(
            replace(task, batches=(batch,)),
            lambda single: plan_dyna_pipe_batch(0, single, layers, alone) is not None,
        )

    return task.planned(planned)


DYNA_PIPE = Planner("dyna_pipe", "pipeline", DynaPipeSettings, _plan)
