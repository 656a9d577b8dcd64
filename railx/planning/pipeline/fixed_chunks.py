"""Chunks as planners of fixed chunks make them, on arrays.

Elastic pipelines try these beside their own (``chunking: best``), so that they are
never slower than a planner whose chunks they could have taken. The rules are those of
``seq1f1b``, ``dapple``, ``chunk_flow`` and ``slim_pipe``, for the same sizes of chunks
(``chunk_rules``); tests hold the two equal. Chunks of DynaPipe depend on
what is recomputed and come from its own module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from railx.planning.packing import Lengths
from railx.planning.pipeline.chunk_rules import sizes_of
from railx.planning.pipeline.chunks import Chunked, join
from railx.workload.pipeline_cost import PipelineCost

__all__ = ["FixedChunks", "fixed_chunks"]

Integers = npt.NDArray[np.int64]
#: The slices of long sequences [n]: each one's sequence [m] and start [m] in tokens.
_Slices = tuple[Integers, Integers]


@dataclass(frozen=True)
class FixedChunks:
    """Chunks by a rule that has a name.

    Of a sequence all but the last ``kept_chunks`` chunks recompute every layer; None:
    every chunk is like any other.
    """

    name: str
    chunked: Chunked
    kept_chunks: int | None = None


def fixed_chunks(
    sequences: Lengths,
    lengths: Lengths,
    context: int,
    most_parts: int,
    alignment: int,
    cost: PipelineCost,
) -> Iterator[FixedChunks]:
    """A batch's ``sequences`` [n] of ``lengths`` [n] in every way and size.

    Sizes are parts and multiples of ``context``, the longest that sequences may be.
    """
    order = np.lexsort((sequences, -lengths))
    rows, tokens = sequences[order], lengths[order]

    def packed(size: int, cut: Callable[[Lengths], _Slices], beside_tails: bool = False) -> Chunked:
        long = int(np.count_nonzero(tokens > size))
        return _packed(rows, tokens, long, cut(tokens[:long]), size, beside_tails, cost)

    for size in sizes_of(None, context, most_parts, 1):
        yield FixedChunks(f"dapple {size}", packed(size, _uncut))
    for size in sizes_of(None, context, most_parts, alignment):
        count = -(-context // size)
        of_size = _by_size(size)
        yield FixedChunks(f"seq1f1b {size}", packed(size, of_size, beside_tails=True))
        alone = packed(size, of_size)
        for retained in sorted({2**k for k in range(count.bit_length()) if 2**k < count} | {count}):
            yield FixedChunks(f"chunk_flow {size} {retained}", alone, retained)
        yield FixedChunks(f"slim_pipe {size}", packed(size, _evenly(size=size)))
        if count > 1:
            yield FixedChunks(f"seq1f1b even {size}", packed(size, _evenly(count=count)))
            by_work = _by_work(count, alignment, cost)
            yield FixedChunks(f"seq1f1b equal_work {size}", packed(size, by_work))


def _uncut(tokens: Lengths) -> _Slices:
    return np.arange(len(tokens)), np.zeros_like(tokens)


def _by_size(size: int) -> Callable[[Lengths], _Slices]:
    def cut(tokens: Lengths) -> _Slices:
        owner, index = _indices(-(-tokens // size))
        return owner, index * size

    return cut


def _evenly(count: int | None = None, size: int = 1) -> Callable[[Lengths], _Slices]:
    """So many equal slices of each sequence, or as many as its length asks for."""

    def cut(tokens: Lengths) -> _Slices:
        counts = -(-tokens // size) if count is None else np.minimum(count, tokens)
        owner, index = _indices(counts)
        return owner, tokens[owner] * index // counts[owner]

    return cut


def _by_work(count: int, alignment: int, cost: PipelineCost) -> Callable[[Lengths], _Slices]:
    """Slices of equal time; cuts that coincide are one (``equal_work_cuts``)."""

    def cut(tokens: Lengths) -> _Slices:
        length = tokens[:, None].astype(np.float64)
        quadratic, linear = cost.quadratic_ms, cost.linear_ms
        target = (quadratic * length**2 + linear * length) * np.arange(count) / count
        position = 2 * target / (linear + np.sqrt(linear**2 + 4 * quadratic * target))
        starts = (np.round(position / alignment) * alignment).astype(np.int64)
        first = np.diff(starts, axis=1, prepend=-1) > 0
        owner, index = np.nonzero(first & (starts < tokens[:, None]))
        return owner.astype(np.int64), starts[owner, index]

    return cut


def _indices(counts: Integers) -> _Slices:
    """For so many slices of each sequence [n]: each one's sequence and place [m]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - first[owner]


def _packed(
    rows: Lengths,
    tokens: Lengths,
    long: int,
    slices: _Slices,
    size: int,
    beside_tails: bool,
    cost: PipelineCost,
) -> Chunked:
    """Slices of the ``long`` first sequences, the others packed up to ``size`` tokens.

    By best-fit-decreasing (``filled``). Sequences of most slices come first.
    """
    # Compiled code is loaded by who plans.
    from railx.planning.pipeline.kernels import pack

    owner, start = slices
    counts = np.bincount(owner, minlength=long).astype(np.int64)
    by_count = np.argsort(-counts, kind="stable")
    if np.any(by_count[1:] < by_count[:-1]):
        rank_of = np.empty_like(by_count)
        rank_of[by_count] = np.arange(long)
        by_rank = np.argsort(rank_of[owner], kind="stable")
        owner, start = rank_of[owner][by_rank], start[by_rank]
        rows = np.concatenate([rows[:long][by_count], rows[long:]])
        tokens = np.concatenate([tokens[:long][by_count], tokens[long:]])
        counts = counts[by_count]
    ends = np.cumsum(counts)
    tails = tokens[:long] - start[ends - 1] if beside_tails else tokens[:0]
    short = tokens[long:]
    nothing = np.zeros(len(short))
    bin_of, bins = pack(short, nothing, tails, np.zeros(len(tails)), 0.0, math.inf, size, 2)
    return join((), rows, tokens, owner, start, bin_of, bins, len(tails), cost)
