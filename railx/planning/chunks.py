"""InfiniPipe's sequence processor (Algorithm 1).

It cuts long sequences by one mesh of equal time and packs short ones beside the tails.
The paper prints the algorithm without the mesh's formula. Here the cuts x_i of the
longest sequence solve w(x_i) = (i/K) w(L) for the work w(x) = a1 x² + g x of a prefix,
with g the linear cost of a token including its all-to-all. The cost of a prefix depends
on positions alone, so that the same cuts are of equal time in every sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from railx.planning.groups import Lengths
from railx.planning.plan import Chunk, Slice
from railx.workload.cost import CostModel
from railx.workload.pipeline_cost import PipelineShape

__all__ = ["PipelineShape", "SequenceChunks", "build_chunks", "mesh"]


@dataclass(frozen=True)
class SequenceChunks:
    """Chunks that must stay neighbours.

    Those of one cut sequence, left to right, or a single batched chunk.
    """

    chunks: tuple[Chunk, ...]

    @property
    def count(self) -> int:
        return len(self.chunks)


@dataclass
class _Bucket:
    """A chunk being filled: slices with their total time and tokens."""

    slices: list[Slice]
    time_ms: float
    tokens: int


def mesh(
    length: int, slices: int, shape: PipelineShape, cost: CostModel, alignment_tokens: int
) -> list[int]:
    """Cut positions in tokens, ascending, for slices of equal time.

    They divide a sequence of ``length`` tokens into up to ``slices`` slices. Positions
    are rounded to the alignment; those that coincide or reach the end are left out.
    """
    quadratic, linear = (
        cost.quadratic_ms,
        cost.linear_ms + shape.degree * cost.all_to_all_ms[shape.degree],
    )
    work = quadratic * length**2 + linear * length
    cuts = []
    for index in range(1, slices):
        target = work * index / slices
        # The positive root of a1 x² + g x = target, in the form that holds for a1 = 0
        # too.
        position = 2 * target / (linear + math.sqrt(linear**2 + 4 * quadratic * target))
        cuts.append(round(position / alignment_tokens) * alignment_tokens)
    return sorted({cut for cut in cuts if 0 < cut < length})


def build_chunks(
    sequences: Lengths,
    lengths: Lengths,
    cuts: list[int],
    capacity_tokens: int,
    shape: PipelineShape,
    cost: CostModel,
    beside_tails: bool = True,
) -> list[SequenceChunks] | None:
    """Split, hybrid and batched chunks of ``sequences``, longest first.

    ``sequences`` are corpus rows [n] with ``lengths`` [n]; ``cuts`` come from
    :func:`mesh` for the longest sequence. The token target is its longest slice and the
    time target its slowest; tokens are a hard limit, time a soft one. ``beside_tails``
    false keeps tails alone, which holds fewer tokens at once. None where a slice is
    over ``capacity_tokens``.
    """
    longest = int(lengths.max())
    bounds = [0, *cuts, longest]
    most_tokens = max(stop - start for start, stop in pairwise(bounds))
    if most_tokens > capacity_tokens:
        return None
    most_ms = max(
        cost.chunk_time_ms([(start, stop - start)], shape.stages, shape.degree).total_ms
        for start, stop in pairwise(bounds)
    )
    first_cut = cuts[0] if cuts else longest
    order = np.lexsort((sequences, -lengths))
    split: list[list[Slice]] = []
    short: list[Slice] = []
    for position in order.tolist():
        sequence, length = int(sequences[position]), int(lengths[position])
        if length <= first_cut:
            short.append(Slice(sequence, 0, length, length))
        else:
            edges = [0, *(cut for cut in cuts if cut < length), length]
            split.append([Slice(sequence, start, stop, length) for start, stop in pairwise(edges)])
    tails = [_opened(slices[-1], shape, cost) for slices in split]
    buckets = list(tails) if beside_tails else []
    _pack(short, buckets, most_ms, most_tokens, shape, cost)
    groups = [
        SequenceChunks(
            tuple(
                _chunk(slices, shape, cost)
                for slices in ([[part] for part in parts[:-1]] + [bucket.slices])
            )
        )
        for parts, bucket in zip(split, tails, strict=True)
    ]
    groups.sort(key=lambda group: -group.count)
    return groups + [
        SequenceChunks((_chunk(bucket.slices, shape, cost),))
        for bucket in (buckets[len(tails) :] if beside_tails else buckets)
    ]


def _pack(
    short: list[Slice],
    buckets: list[_Bucket],
    most_ms: float,
    most_tokens: int,
    shape: PipelineShape,
    cost: CostModel,
) -> None:
    """Best-fit-decreasing with two limits, tokens hard and time soft.

    Adds to ``buckets`` and opens new ones at their end. Buckets are tried from the
    least time per token: few tokens of long context leave most room for short
    sequences.
    """
    base = cost.chunk_time_ms([(0, 0)], shape.stages, shape.degree).total_ms
    added = {
        part.length: cost.chunk_time_ms([(0, part.length)], shape.stages, shape.degree).total_ms
        - base
        for part in short
    }
    times, tokens = (
        np.array([bucket.time_ms for bucket in buckets]),
        np.array([bucket.tokens for bucket in buckets]),
    )
    for part in short:
        takes = tokens + part.length <= most_tokens
        if not takes.any():
            buckets.append(_opened(part, shape, cost))
            times, tokens = (
                np.append(times, buckets[-1].time_ms),
                np.append(tokens, buckets[-1].tokens),
            )
            continue
        extra = added[part.length]
        # Where no bucket stays within the time target, the target rises to what the
        # least loaded one needs.
        most_ms = max(most_ms, float(times[takes].min()) + extra)
        fitting = np.flatnonzero(takes & (times + extra <= most_ms))
        chosen = int(fitting[np.argmin(times[fitting] / tokens[fitting])])
        buckets[chosen].slices.append(part)
        times[chosen] += extra
        tokens[chosen] += part.length


def _opened(part: Slice, shape: PipelineShape, cost: CostModel) -> _Bucket:
    time = cost.chunk_time_ms([(part.start, part.tokens)], shape.stages, shape.degree)
    return _Bucket([part], time.total_ms, part.tokens)


def _chunk(slices: list[Slice], shape: PipelineShape, cost: CostModel) -> Chunk:
    time = cost.chunk_time_ms(
        [(part.start, part.tokens) for part in slices], shape.stages, shape.degree
    )
    return Chunk(tuple(slices), time.forward_ms, time.backward_ms, time.all_to_all_ms)
