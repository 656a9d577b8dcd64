"""Seq1F1B: sequences in slices of fixed size or number, in 1F1B order.

``splitting`` chooses between two settings of it:

* ``fixed`` is the baseline that InfiniPipe's paper compares with: sequences are cut
  into slices of a fixed number of tokens, tails and short sequences are packed up to
  the same number, and layers are recomputed statically.
* ``even`` and ``equal_work`` are the original (Sun et al., arXiv 2406.03488): every
  sequence is cut into the same number of slices, of equal tokens or of equal work.

Forward passes take slices left to right; backward passes take sequences first in first
out and their slices right to left; the warm-up is stages - rank + slices - 2 forward
passes (rank from 0), as in its code.

Where it differs from the code: that one trains micro-batches of one length, each cut
into N slices. Here lengths vary. With ``fixed``, two tails never share a chunk, as in
InfiniPipe. With the other two, sequences up to the N-th part of the longest context are
packed whole to that part, for a chunk of a plan holds no beginning of a sequence beside
another; all longer ones are cut into N. Equal work is that of the common cost model,
all-to-all included, where the code counts operations. Sequences of most slices come
first. The fixed size that InfiniPipe used is not published: the best one by predicted
time is taken, which favours the baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.groups import Lengths
from railx.planning.pipeline.chunk_rules import (
    ChunkRule,
    FixedChunkSettings,
    Run,
    cost_of,
    cut_evenly,
    filled,
    pieces,
    plan_with_rules,
    ranks_of,
    sizes_of,
    uncut,
)
from railx.planning.planner import Planner, PlanningTask
from railx.settings import AtLeast

__all__ = ["SEQ1F1B", "Seq1F1BSettings", "equal_work_cuts", "fixed_slices", "n_way"]

Splitting = Literal["fixed", "even", "equal_work"]


@dataclass(frozen=True)
class Seq1F1BSettings(FixedChunkSettings):
    """Pipelines of slices of fixed size or number (Seq1F1B)."""

    planner: Literal["seq1f1b"]
    """Which planner it is."""

    splitting: Splitting = "fixed"
    """How sequences are cut: "fixed" into slices of ``chunk_tokens`` (as InfiniPipe's
    paper sets it), "even" and "equal_work" each into the same number of slices, of
    equal tokens or equal work (the original)."""

    chunk_tokens: Annotated[int, AtLeast(1)] | None = None
    """Tokens of a chunk with "fixed", of a pack of short sequences with the others; the
    longest context divided by the number of slices is then the number. null takes the
    best by predicted time."""

    most_parts: Annotated[int, AtLeast(1)] = 32
    """Most slices of the longest context that are tried where ``chunk_tokens`` is
    null."""

    alignment_tokens: Annotated[int, AtLeast(1)] = 1024
    """Tokens of which the sizes that are tried, and cuts of equal work, are a
    multiple."""


def fixed_slices(
    sequences: Lengths, lengths: Lengths, tokens: int, beside_tails: bool = True
) -> list[Run]:
    """Slices of ``tokens`` tokens; tails and short sequences [n] packed up to them.

    ``beside_tails`` false packs short sequences among themselves alone.
    """
    short: list[Slice] = []
    long: list[list[Slice]] = []
    for sequence, length in zip(sequences.tolist(), lengths.tolist(), strict=True):
        if length <= tokens:
            short.append(uncut(sequence, length))
        else:
            long.append(pieces(sequence, length, range(tokens, length, tokens)))
    tails = [parts[-1] for parts in long]
    joined, new = filled(short, tokens, tails if beside_tails else ())
    ends = joined if beside_tails else [[tail] for tail in tails]
    runs: list[Run] = [
        [*([part] for part in parts[:-1]), end] for parts, end in zip(long, ends, strict=True)
    ]
    return runs + [[chunk] for chunk in new]


def n_way(
    sequences: Lengths,
    lengths: Lengths,
    count: int,
    tokens: int,
    cost: PipelineCost | None = None,
    alignment: int = 1,
) -> list[Run]:
    """``count`` slices of every sequence [n] over ``tokens``, the others packed to it.

    Of equal tokens, or of equal work by ``cost``.
    """
    short: list[Slice] = []
    runs: list[Run] = []
    for sequence, length in zip(sequences.tolist(), lengths.tolist(), strict=True):
        if length <= tokens:
            short.append(uncut(sequence, length))
            continue
        if cost is None:
            parts = cut_evenly(sequence, length, count)
        else:
            parts = pieces(sequence, length, equal_work_cuts(length, count, cost, alignment))
        runs.append([[part] for part in parts])
    return runs + [[chunk] for chunk in filled(short, tokens)[1]]


def equal_work_cuts(length: int, count: int, cost: PipelineCost, alignment: int = 1) -> list[int]:
    """Cuts of a sequence into slices of equal time, without their constant.

    The prefix x takes q x² + l x, so cut i is at i / count of the whole, rounded to the
    alignment; equal cuts merge.
    """
    quadratic, linear = cost.quadratic_ms, cost.linear_ms
    work = quadratic * length**2 + linear * length
    cuts = set()
    for part in range(1, count):
        target = work * part / count
        position = 2 * target / (linear + math.sqrt(linear**2 + 4 * quadratic * target))
        cuts.add(round(position / alignment) * alignment)
    return sorted(cut for cut in cuts if 0 < cut < length)


def _plan(settings: Seq1F1BSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    cost, longest = cost_of(settings, task), task.max_length_tokens
    sizes = sizes_of(settings.chunk_tokens, longest, settings.most_parts, settings.alignment_tokens)

    def rule(size: int) -> ChunkRule:
        account = {"splitting": settings.splitting, "chunk_tokens": size}
        if settings.splitting == "fixed":
            return ChunkRule(lambda rows, lengths: fixed_slices(rows, lengths, size), account)
        count = -(-longest // size)
        work = cost if settings.splitting == "equal_work" else None
        return ChunkRule(
            lambda rows, lengths: n_way(
                rows, lengths, count, size, work, settings.alignment_tokens
            ),
            account | {"slices": count},
        )

    return plan_with_rules(settings, task, [rule(size) for size in sizes], cost)


#: The entry of the list of planners.
SEQ1F1B = Planner("seq1f1b", "pipeline", Seq1F1BSettings, _plan, ranks_of)
