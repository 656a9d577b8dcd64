"""InfiniPipe's sequence processor (Algorithm 1): long sequences cut, short ones packed.

One mesh of equal time cuts all long sequences; short ones fill up their last slices and
chunks of their own. The paper prints the algorithm without the mesh's formula. Here the
cuts x_i of the longest sequence solve w(x_i) = (i/K) w(L). The work of a prefix is
w(x) = a x² + g x, with g the linear cost of a token including its all-to-all. It
depends on positions alone, so that the same cuts are of equal time in every sequence.

Deviations, all of them in :func:`cut_and_pack` with ``chunking`` ``balanced``:

* where no chunk has time for a short sequence, a new chunk is opened. The paper raises
  the time target, which lengthens the slowest chunk for good; ``published`` does so;
* a sequence joins the fullest chunk that still takes it (best fit in time). The paper
  walks chunks by time per token;
* the limit of tokens is the caller's. The paper's is the mesh's longest slice. Short
  sequences cost less per token than long ones, so that this limit leaves chunks of
  short ones far below the time of a slice.

``even`` is the paper's ablation: slices of equal tokens, and chunks filled up to as
many tokens, whatever time they take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from railx.performance.pipeline_cost import PipelineCost, PipelineShape
from railx.planning.format.parts import Chunk, Pipeline, Slice
from railx.planning.groups import Lengths
from railx.planning.packing import Floats, Integers, least_loaded, tokens_of_work
from railx.workload.batches import SampledBatch

#: The slices of sequences: each one's sequence [m] and its index or first token [m].
Slices = tuple[Integers, Integers]
#: How sequences become chunks, as described above.
Chunking = Literal["balanced", "published", "even"]


@dataclass(frozen=True)
class Chunked:
    """A batch in chunks, those of a cut sequence adjacent, longest sequences first.

    Slices [m] in order of their chunks: the sequence's corpus row, its length, start
    and stop, and the chunk. Chunks [n]: tokens, times in ms on one stage, whether it is
    one slice of a cut sequence (``split``), ``count``, the number of chunks of its cut
    sequence (1 for whole ones), and ``run_start``, the first of these.
    """

    sequence: Integers
    length: Integers
    start: Integers
    stop: Integers
    chunk: Integers
    tokens: Integers
    forward_ms: Floats
    backward_ms: Floats
    all_to_all_ms: Floats
    split: npt.NDArray[np.bool_]
    count: Integers
    run_start: Integers

    @property
    def chunks(self) -> int:
        return len(self.tokens)

    @property
    def total_ms(self) -> Floats:
        """Forward and backward time of each chunk [n]."""
        return self.forward_ms + self.backward_ms

    @property
    def longest_over_mean(self) -> float:
        """Time of the longest chunk over the mean: 1 where all are equal."""
        return float(self.total_ms.max() / self.total_ms.mean())

    def backward_order(self, first: int, end: int) -> Integers:
        """Chunks [first, end), counted from 0: runs in order, each from its last."""
        span = slice(first, end)
        order: Integers = 2 * self.run_start[span] + self.count[span] - 1 - np.arange(first, end)
        return order - first

    @cached_property
    def _first(self) -> Integers:
        return np.searchsorted(self.chunk, np.arange(self.chunks + 1))

    def slices(self, chunk: int) -> tuple[Slice, ...]:
        """The slices of a chunk."""
        span = slice(int(self._first[chunk]), int(self._first[chunk + 1]))
        columns = (self.sequence, self.start, self.stop, self.length)
        rows = zip(*(column[span].tolist() for column in columns), strict=True)
        return tuple(Slice(*row) for row in rows)


def mesh(length: int, slices: int, cost: PipelineCost, alignment_tokens: int) -> list[int]:
    """Ascending cut positions in tokens for slices of equal time.

    They divide a sequence of ``length`` tokens into up to ``slices`` slices. Positions
    are rounded to the alignment; duplicates and the end are left out.
    """
    _, starts = equal_work_starts(np.array([length]), slices, alignment_tokens, cost)
    cuts: list[int] = starts[1:].tolist()
    return cuts


def equal_work_starts(lengths: Lengths, count: int, alignment: int, cost: PipelineCost) -> Slices:
    """Up to ``count`` slices of equal time of each sequence, of ``lengths`` [n].

    Starts that the alignment makes equal are one.
    """
    length = lengths[:, None].astype(np.float64)
    quadratic, linear = cost.quadratic_ms, cost.linear_ms
    target = (quadratic * length**2 + linear * length) * np.arange(count) / count
    position = tokens_of_work(target, quadratic, linear)
    starts = (np.round(position / alignment) * alignment).astype(np.int64)
    distinct = np.diff(starts, axis=1, prepend=-1) > 0
    owner, index = np.nonzero(distinct & (starts < lengths[:, None]))
    return owner.astype(np.int64), starts[owner, index]


def slice_indices(counts: Integers) -> Slices:
    """Sequence and index of every slice, of sequences in ``counts`` [n] slices."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def even_mesh(length: int, slices: int, alignment_tokens: int) -> list[int]:
    """Cut positions in tokens for slices of equal length, aligned upwards."""
    width = -(-length // (slices * alignment_tokens)) * alignment_tokens
    return list(range(width, length, width))


def cut_and_pack(
    sequences: Lengths,
    lengths: Lengths,
    cuts: list[int],
    most_tokens: int,
    cost: PipelineCost,
    chunking: Chunking = "balanced",
    beside_tails: bool = True,
) -> Chunked | None:
    """Split, hybrid and batched chunks of ``sequences``, longest first.

    ``sequences`` are corpus rows [n] with ``lengths`` [n]; ``cuts`` come from
    :func:`mesh` for the longest sequence. ``most_tokens`` is the hard limit of a chunk;
    the soft one is the time of the slowest slice of the longest sequence.
    ``beside_tails`` false keeps tails alone, which needs less memory. None where a
    slice is over ``most_tokens``.
    """
    order = np.lexsort((sequences, -lengths))
    rows, tokens = sequences[order], lengths[order]
    edges = np.array([0, *cuts, tokens[0]], dtype=np.int64)
    widths = np.diff(edges)
    if widths.max() > most_tokens:
        return None
    constant = cost.chunk_constant_ms
    inner = _slice_ms(edges[:-1], widths, cost)
    time_limit = math.inf if chunking == "even" else float(inner.max()) + constant
    # Long sequences come first.
    inner_cuts = np.searchsorted(edges[1:-1], tokens, side="left")
    counts = inner_cuts[: np.count_nonzero(inner_cuts)] + 1
    owner, nth = slice_indices(counts)
    return pack(
        rows, tokens, owner, edges[nth], most_tokens, cost,
        time_limit=time_limit, chunking=chunking, beside_tails=beside_tails,
    )  # fmt: skip


def pack(
    rows: Lengths,
    tokens: Lengths,
    owner: Integers,
    start: Integers,
    most_tokens: int,
    cost: PipelineCost,
    *,
    time_limit: float = math.inf,
    chunking: Chunking = "even",
    beside_tails: bool = True,
) -> Chunked:
    """Chunks of slices of cut sequences and of packed whole ones.

    Sequences [n] are the corpus' ``rows`` with ``tokens``, cut ones first. Each slice
    [m] of these is a chunk: ``owner`` is its sequence, ``start`` its first token. The
    others are packed in the order given, with ``beside_tails`` beside last slices too.
    """
    # Planning alone loads Numba.
    from railx.planning.pipeline import kernels

    counts = np.bincount(owner).astype(np.int64)
    cut, ends = len(counts), np.cumsum(counts)
    tails = cut if beside_tails else 0
    tail_start = start[ends - 1][:tails]
    tail_tokens, short = tokens[:tails] - tail_start, tokens[cut:]
    bin_of, bins = kernels.pack(
        short,
        _slice_ms(np.zeros_like(short), short, cost),
        tail_tokens,
        _slice_ms(tail_start, tail_tokens, cost) + cost.chunk_constant_ms,
        cost.chunk_constant_ms,
        time_limit,
        most_tokens,
        {"balanced": 0, "published": 1, "even": 2}[chunking],
    )
    stop = np.append(start, 0)[1:]
    stop[ends - 1] = tokens[:cut]
    #: Chunks of whole sequences alone.
    packs = np.arange(len(owner), len(owner) + bins - tails)
    chunk_of_bin = np.concatenate([ends[:tails] - 1, packs])
    position = np.concatenate([owner, np.arange(cut, len(tokens))])
    chunk = np.concatenate([np.arange(len(owner)), chunk_of_bin[bin_of]])
    by_chunk = np.lexsort((position, chunk))
    chunk, sequence, length = chunk[by_chunk], rows[position][by_chunk], tokens[position][by_chunk]
    start = np.concatenate([start, np.zeros_like(bin_of)])[by_chunk]
    stop = np.concatenate([stop, tokens[cut:]])[by_chunk]
    count = np.concatenate([np.repeat(counts, counts), np.ones_like(packs)])
    run_start = np.concatenate([np.repeat(ends - counts, counts), packs])
    chunks, empty = len(count), cost.chunk_time_ms([])
    parts = cost.slice_times_ms(start, stop - start)
    constants = (empty.forward_ms, empty.backward_ms, empty.all_to_all_ms)
    forward, backward, exchange = (
        np.asarray(np.bincount(chunk, part, chunks) + constant, dtype=np.float64)
        for part, constant in zip(parts, constants, strict=True)
    )
    alone = np.bincount(chunk, minlength=chunks) == 1
    partial = np.bincount(chunk, (stop - start) < length, chunks) > 0
    chunk_tokens = np.bincount(chunk, stop - start, chunks).astype(np.int64)
    return Chunked(
        sequence, length, start, stop, chunk, chunk_tokens, forward, backward, exchange,
        alone & partial, count, run_start,
    )  # fmt: skip


def share_among_replicas(
    batch: SampledBatch, replicas: int, cost: PipelineCost
) -> list[SampledBatch]:
    """Each replica's part of a batch: longest first, each to the least loaded."""
    lengths = batch.lengths
    longest_first = np.argsort(-lengths, kind="stable").tolist()
    shared = least_loaded(longest_first, _slice_ms(0 * lengths, lengths, cost), replicas)
    return [SampledBatch(batch.sequences[part], lengths[part]) for part in shared]


def _slice_ms(contexts: Integers, tokens: Integers, cost: PipelineCost) -> Floats:
    """Forward and backward time of slices [n], without constants."""
    forward, backward, _ = cost.slice_times_ms(contexts, tokens)
    return forward + backward


def chunk_of(slices: Sequence[Slice], cost: PipelineCost, layers: Sequence[int] = ()) -> Chunk:
    """A chunk with its times that recomputes ``layers`` on each stage."""
    time = cost.chunk_time_ms([(part.start, part.tokens) for part in slices])
    return Chunk(
        tuple(slices),
        time.forward_ms,
        time.backward_ms,
        time.all_to_all_ms,
        checkpoint_layers=tuple(layers) if any(layers) else (),
        predicted_layer_forward_ms=cost.layer_forward_ms(time.forward_ms),
        predicted_send_ms=cost.send_ms(sum(part.tokens for part in slices)),
    )


def recomputing(chunk: Chunk, layers: Sequence[int]) -> Chunk:
    """A chunk that recomputes ``layers`` on each stage."""
    return replace(chunk, checkpoint_layers=tuple(layers) if any(layers) else ())


def pipeline_of(chunks: Iterable[Chunk], replica: int, shape: PipelineShape) -> Pipeline:
    """A pipeline of these chunks in their order."""
    return Pipeline(shape.stages, replica, tuple(chunks), shape.degree)
