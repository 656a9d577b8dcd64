"""DynaPipe's micro-batches: sorted sequences, cut for the least time of the pipeline.

``railx.planning.rivals.fixed_chunks`` describes the method. Elastic pipelines try these
chunks too (``chunking: best``).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Chunk, Pipeline
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import pipeline_ms
from railx.planning.pipeline.chunk_rules import (
    FixedChunkSettings,
    chunk_of,
    fits,
    pipeline_of,
    recomputing,
    spread,
    uncut,
)
from railx.workload.batches import SampledBatch

__all__ = ["consecutive_cuts", "plan_dyna_pipe_batch"]

Floats = npt.NDArray[np.float64]


def consecutive_cuts(
    works_ms: Floats,
    tokens: npt.NDArray[np.int64],
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
            by_time = np.searchsorted(work, work[start] + limit_ms - constant_ms, side="right") - 1
            by_tokens = (
                np.searchsorted(token_sums, token_sums[start] + most_tokens, side="right") - 1
            )
            start = max(start + 1, min(int(by_time), int(by_tokens)))
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
    iteration: int, batch: SampledBatch, settings: FixedChunkSettings, cost: PipelineCost
) -> PipelineBatch | None:
    """Plan one batch; None where memory does not suffice."""
    layers = sum(map(cost.layers_of, range(cost.shape.stages)))
    given = settings.checkpointed_layers
    low, high = (0, layers) if given is None else (given, given)
    pipelines = _with_layers(batch, high, settings.replicas, cost)
    if pipelines is None:
        return None
    while low < high:
        middle = (low + high) // 2
        trial = _with_layers(batch, middle, settings.replicas, cost)
        if trial is None:
            low = middle + 1
        else:
            high, pipelines = middle, trial
    micro_batches = sum(len(pipeline.chunks) for pipeline in pipelines)
    account = {"checkpointed_layers": high, "micro_batches": micro_batches}
    return PipelineBatch(iteration, tuple(pipelines), account, predicted_other_ms=cost.batch_ms)


def _with_layers(
    batch: SampledBatch, layers: int, replicas: int, cost: PipelineCost
) -> list[Pipeline] | None:
    """Pipelines that recompute ``layers`` layers; None where they do not fit memory."""
    shape, recomputed = cost.shape, spread(layers, cost)
    ascending = np.lexsort((batch.sequences, batch.lengths))
    sequences, lengths = batch.sequences[ascending], batch.lengths[ascending]
    forward, backward, _ = cost.slice_times_ms(np.zeros(len(lengths)), lengths)
    room = min(
        cost.capacity_bytes(stage)
        / (
            float(cost.activation_bytes(1, False, stage, recomputed[stage]))
            * (shape.stages - stage)
        )
        for stage in range(shape.stages)
    )
    again = max(count / cost.layers_of(stage) for stage, count in enumerate(recomputed))
    empty = cost.chunk_time_ms([])
    ends = consecutive_cuts(
        (1 + again) * forward + backward,
        lengths,
        (1 + again) * empty.forward_ms + empty.backward_ms,
        int(room),
        shape.stages - 1,
        1 / replicas,
    )
    # Every replica needs a micro-batch.
    while len(ends) < replicas:
        widths = np.diff([0, *ends])
        widest = int(np.argmax(widths))
        ends.insert(widest, ends[widest] - int(widths[widest]) // 2)
    slices = [uncut(*pair) for pair in zip(sequences, lengths, strict=True)]
    chunks = [
        recomputing(chunk_of(slices[start:end], cost), recomputed)
        for start, end in pairwise([0, *ends])
    ]
    pipelines = []
    for replica, order in enumerate(_shared(chunks, replicas)):
        fitting = [
            pipeline
            for pipeline in (pipeline_of(order[::way], replica, shape) for way in (1, -1))
            if fits(pipeline, cost)
        ]
        if not fitting:
            return None
        pipelines.append(min(fitting, key=pipeline_ms))
    return pipelines


def _shared(chunks: list[Chunk], replicas: int) -> list[list[Chunk]]:
    """Chunks for each replica, in the order of falling time."""
    busy = np.zeros(replicas)
    shared: list[list[Chunk]] = [[] for _ in range(replicas)]
    for chunk in sorted(
        chunks, key=lambda chunk_: -(chunk_.predicted_forward_ms + chunk_.predicted_backward_ms)
    ):
        chosen = int(np.argmin(busy))
        shared[chosen].append(chunk)
        busy[chosen] += chunk.predicted_forward_ms + chunk.predicted_backward_ms
    return shared
