"""Pipelines with chunks of fixed rules: DAPPLE, Seq1F1B, ChunkFlow and SlimPipe.

A rule (:class:`ChunkRule`) cuts and packs the sequences of a batch. A planner tries
some (``rules`` of its settings) and takes the one with the least total time of all
batches. Elastic pipelines try every rule too (:func:`every_rule`, ``chunking: best``),
so that they are never slower. Published comparisons are with Megatron-LM, that of
Seq1F1B with ``fixed`` is InfiniPipe's; others are ours.

* Chunks run in 1F1B order, sequences of most chunks first, one pipeline to a replica.
  Replicas share a batch by the compute time of its sequences.
* Times and memory are those of the common cost model of pipelines (InfiniPipe eqs.
  1-11). Chunks are live on a stage between forward and backward pass, eqs. 6-8.
* Static checkpointing recomputes a number of layers, spread evenly over the stages.
  Without a given number, a plan takes the least with which all its batches fit.

**DAPPLE** (Fan et al., PPoPP 2021) is the batch-level pipeline that InfiniPipe starts
from: no sequence is cut, short ones are packed into a chunk by best-fit-decreasing up
to a fixed number of tokens, a longer one is a chunk of its own. Each stage runs as many
forward passes ahead as stages follow it (N_split = 1). Stages have equally many layers
and ranks, as the settings give them, where the paper's planner chooses both. Its chunks
hold equally many samples of one length; packing is ours, for variable lengths.

**Seq1F1B** has two settings (``splitting``). ``fixed`` is the baseline of InfiniPipe's
paper: slices of a fixed number of tokens, tails and short sequences packed up to the
same number, never two tails in one chunk. The number is not published: the best one by
predicted time is taken, which favours the baseline. ``even`` and ``equal_work`` are the
original (Sun et al., arXiv 2406.03488): every sequence is cut into the same number of
slices, of equal tokens or of equal work. Forward passes take slices left to right;
backward passes take sequences first in first out and their slices right to left; the
warm-up is stages - rank + slices - 2 forward passes (rank from 0), as in its code. That
code trains micro-batches of one length. Here lengths vary: all sequences over the N-th
part of the longest context are cut into N, others are packed whole to that part, for a
chunk of a plan holds no beginning of a sequence beside another. Equal work is that of
the common cost model, all-to-all included, where the code counts operations.

**ChunkFlow** (arXiv 2503.02356) cuts sequences over the chunk size into slices of it
and packs shorter ones up to it; a tail is a chunk of its own. Of a sequence of n slices
the last K keep their activations; the forward pass of the n - K before them is run
again when their turn to go back comes, right to left. Chunk size and K are tuned
together. Its implementation is not public. What is run again is recomputed layer by
layer, as InfiniPipe prices it, so that the input of each layer stays besides keys and
values, where ChunkFlow keeps these alone. The warm-up is that of Seq1F1B; the text that
we have of the paper does not give ChunkFlow's. Keys and values alone would not make it
fit a 30B model either (48K tokens, 4 stages of 8 A800, chunks of 2,048 tokens): behind
the longest sequence, of 24 slices, 1F1B keeps as many packs of short ones, which keep
all, so that the first stage holds 28.6 GiB where 11.8 are free, the last 26.0 of 13.6.
So 30B needs recomputed layers (``checkpointed_layers``).

**SlimPipe** (arXiv 2504.14519) cuts every sequence over the slice size into slices of
equal tokens, which run slice by slice in 1F1B order, backward passes right to left.
Later slices attend to more context; the stages of a pipeline, which work on different
slices at a time, hand the excess to one another. With ``context_exchange`` all slices
of a sequence therefore take the mean time of its slices, and what is handed over takes
no time: an upper bound on what the exchange can win. The paper's implementation cuts
every micro-batch, packs of short sequences too, into n slices. Here short sequences are
packed whole, and a sequence has as many slices as its length requires. There are no
virtual stages, no division of the vocabulary and no offloading. The rules come from
secondary sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np

from railx.performance.pipeline_cost import PipelineCost
from railx.planning.format.parts import Chunk, Pipeline, PlanError, refused
from railx.planning.format.plan import PipelineBatch
from railx.planning.groups import Lengths
from railx.planning.packing import Integers, fewest, longest_fitting
from railx.planning.pipeline import checkpoints
from railx.planning.pipeline.chunks import (
    Chunked,
    Slices,
    chunk_of,
    equal_work_starts,
    pack,
    pipeline_of,
    recomputing,
    share_among_replicas,
    slice_indices,
)
from railx.planning.planner import Planner, PlanningTask, StagedSettings, check_replicas
from railx.progress import counted
from railx.settings import AtLeast, NonNegative, PowerOfTwo, SettingsError
from railx.workload.batches import SampledBatch

#: The chunks of a sequence with other times.
Retimed = Callable[[list[Chunk]], list[Chunk]]
#: How Seq1F1B cuts: slices of one size, or as many of equal tokens or of equal work.
Splitting = Literal["fixed", "even", "equal_work"]
#: The longest context over the sizes of chunks to try.
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: Multiples of the longest context to try too: packs of short sequences may be larger
#: than one long sequence.
_TIMES = (2, 3, 4, 6, 8)


@dataclass(frozen=True)
class ChunkRule:
    """A rule for the chunks of a plan.

    Sequences over ``size`` tokens are cut by ``cut``, from their lengths [n], the
    others are packed up to it by best-fit-decreasing, with ``beside_tails`` beside last
    slices. Of a sequence all but the last ``kept_chunks`` chunks recompute every layer;
    None: all chunks are alike. ``retimed`` changes the times of a sequence's chunks.
    ``account`` goes to the plan's account.
    """

    name: str
    size: int
    cut: Callable[[Lengths], Slices]
    account: dict[str, Any] = field(default_factory=dict)
    beside_tails: bool = False
    kept_chunks: int | None = None
    retimed: Retimed | None = None

    def chunked(self, batch: SampledBatch, cost: PipelineCost) -> Chunked:
        """The chunks of a batch or a part of it, sequences of most slices first."""
        sequences, lengths = batch.sequences, batch.lengths
        order = np.lexsort((sequences, -lengths))
        tokens, long = lengths[order], int(np.count_nonzero(lengths > self.size))
        counts = np.bincount(self.cut(tokens[:long])[0], minlength=long)
        order[:long] = order[np.argsort(-counts, kind="stable")]
        rows, tokens = sequences[order], lengths[order]
        owner, start = self.cut(tokens[:long])
        return pack(rows, tokens, owner, start, self.size, cost, beside_tails=self.beside_tails)

    def layers(self, chunked: Chunked, count: int, cost: PipelineCost) -> Integers:
        """What stages recompute of each chunk [d, n], ``count`` layers of most."""
        index = np.arange(chunked.chunks) - chunked.run_start
        early = index < chunked.count - (self.kept_chunks or chunked.chunks)
        every, static = np.array([cost.layer_counts, spread(count, cost)])[:, :, None]
        layers: Integers = np.where(early, every, static)
        return layers

    def fewest_layers(self, chunked: Chunked, counts: range, cost: PipelineCost) -> int | None:
        """The fewest of ``counts`` layers with which chunks fit; None where none do."""
        problem = checkpoints.problem_of(chunked, 0, chunked.chunks, cost)
        return fewest(
            counts, lambda count: checkpoints.fits(problem, self.layers(chunked, count, cost))
        )

    def pipeline(self, chunked: Chunked, count: int, replica: int, cost: PipelineCost) -> Pipeline:
        """The chunks of a replica that recompute ``count`` layers, with their times."""
        chunks = [chunk_of(chunked.slices(chunk), cost) for chunk in range(chunked.chunks)]
        if self.retimed is not None:
            starts = [*np.unique(chunked.run_start).tolist(), len(chunks)]
            runs = (self.retimed(chunks[start:end]) for start, end in pairwise(starts))
            chunks = list(chain.from_iterable(runs))
        recomputed = map(recomputing, chunks, self.layers(chunked, count, cost).T.tolist())
        return pipeline_of(recomputed, replica, cost.shape)


@dataclass(frozen=True)
class FixedChunkSettings(StagedSettings):
    """Settings of every planner of fixed chunks."""

    stages: Annotated[int, AtLeast(1)]
    """Stages of a replica."""

    replicas: Annotated[int, AtLeast(1)] = field(default=1, kw_only=True)
    """Replicas that share a batch."""

    sequence_parallel_degree: Annotated[int, PowerOfTwo()]
    """Ranks of each stage, which share the tokens of a chunk."""

    checkpointed_layers: Annotated[int, NonNegative()] | None = field(default=None, kw_only=True)
    """Layers of the model that are recomputed in every chunk; null takes the fewest
    with which all batches fit memory."""

    def rules(self, longest: int, cost: PipelineCost) -> list[ChunkRule]:
        """The rules to try for contexts of up to ``longest`` tokens."""
        raise NotImplementedError

    def plan(
        self, rules: Sequence[ChunkRule], task: PlanningTask, cost: PipelineCost
    ) -> tuple[PipelineBatch, ...]:
        """The batches of the fastest rule; PlanError where none fits memory."""
        self.check(task)
        planned = (_plan_with_rule(rule, self, task, cost) for rule in rules)
        fitting = (batches for batches in planned if batches is not None)
        best = min(fitting, key=lambda plan: sum(part.predicted_ms for part in plan), default=None)
        if best is None:

            def holds(batch: SampledBatch) -> bool:
                only, alone = replace(task, batches=(batch,)), replace(self, replicas=1)
                return any(_plan_with_rule(rule, alone, only, cost) is not None for rule in rules)

            raise self.refusal(task, holds)
        return best

    def check(self, task: PlanningTask) -> None:
        """Refuse fewer sequences than replicas, and layers beyond the model's."""
        layers = self.checkpointed_layers
        if layers is not None and layers > task.model.layers:
            most = f"at most {task.model.layers}, the layers of {task.model.name}"
            raise SettingsError("planner.checkpointed_layers", f"got {layers}; allowed: {most}")
        check_replicas(self.replicas, min(len(batch.lengths) for batch in task.batches))

    def refusal(self, task: PlanningTask, holds: Callable[[SampledBatch], bool]) -> PlanError:
        """Why nothing fits memory, with the longest sequence and the longest that fits.

        ``holds``: whether one replica fits a batch.
        """
        worst = max(task.batches, key=lambda batch: int(batch.lengths.max()))
        index = int(np.argmax(worst.lengths))
        sequence, length = f"sequence {worst.sequences[index]}", int(worst.lengths[index])
        where = f"pipeline of {self.stages} stages of {self.sequence_parallel_degree} ranks"
        most = longest_fitting(length, holds)
        if most < length:
            allowed = f"at most {most}, the longest that a {where} holds"
            return refused(sequence, f"{length} tokens", allowed)
        layers = self.checkpointed_layers
        how = "that recompute all layers" if layers is None else f"with {layers} recomputed layers"
        allowed = f"what a {where} {how} holds at once"
        return refused(sequence, f"{length} tokens beside those of its batch", allowed)


@dataclass(frozen=True)
class SlicedSettings(FixedChunkSettings):
    """Settings of planners that cut sequences."""

    most_parts: Annotated[int, AtLeast(1)] = field(default=32, kw_only=True)
    """Most slices of the longest context that are tried where their tokens are not
    given."""

    alignment_tokens: Annotated[int, AtLeast(1)] = field(default=1024, kw_only=True)
    """Tokens of which the sizes that are tried, and cuts of equal work, are a
    multiple."""


@dataclass(frozen=True)
class DappleSettings(FixedChunkSettings):
    """Pipelines of whole sequences, packed (DAPPLE)."""

    planner: Literal["dapple"]
    """Which planner it is."""

    chunk_tokens: Annotated[int, AtLeast(1)] | None = None
    """Tokens up to which sequences are packed into a chunk; null takes the best of the
    longest context and its parts by predicted time."""

    most_parts: Annotated[int, AtLeast(1)] = 16
    """Smallest part of the longest context that is tried where ``chunk_tokens`` is
    null: one over this number."""

    def rules(self, longest: int, cost: PipelineCost) -> list[ChunkRule]:
        return list(map(dapple_rule, sizes_of(self.chunk_tokens, longest, self.most_parts, 1)))


@dataclass(frozen=True)
class Seq1F1BSettings(SlicedSettings):
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

    def rules(self, longest: int, cost: PipelineCost) -> list[ChunkRule]:
        parts, alignment = self.most_parts, self.alignment_tokens
        return [
            seq1f1b_rule(size, self.splitting, longest, alignment, cost)
            for size in sizes_of(self.chunk_tokens, longest, parts, alignment)
        ]


@dataclass(frozen=True)
class ChunkFlowSettings(SlicedSettings):
    """Pipelines of chunks of one size; a sequence keeps its last K (ChunkFlow)."""

    planner: Literal["chunk_flow"]
    """Which planner it is."""

    chunk_tokens: Annotated[int, AtLeast(1)] | None = None
    """Tokens of a chunk; null takes the best by predicted time."""

    kept_chunks: Annotated[int, AtLeast(1)] | None = None
    """K: the last chunks of a sequence that keep their activations; null takes the best
    by predicted time."""

    def rules(self, longest: int, cost: PipelineCost) -> list[ChunkRule]:
        parts, alignment, given = self.most_parts, self.alignment_tokens, self.kept_chunks
        return [
            chunk_flow_rule(size, retained)
            for size in sizes_of(self.chunk_tokens, longest, parts, alignment)
            for retained in ([given] if given else reversed(retained_counts(-(-longest // size))))
        ]


@dataclass(frozen=True)
class SlimPipeSettings(SlicedSettings):
    """Pipelines of uniform slices whose attention is balanced (SlimPipe)."""

    planner: Literal["slim_pipe"]
    """Which planner it is."""

    slice_tokens: Annotated[int, AtLeast(1)] | None = None
    """Most tokens of a slice; null takes the best by predicted time."""

    context_exchange: bool = True
    """Whether stages balance the attention of a sequence's slices."""

    def rules(self, longest: int, cost: PipelineCost) -> list[ChunkRule]:
        parts, alignment = self.most_parts, self.alignment_tokens
        sizes = sizes_of(self.slice_tokens, longest, parts, alignment)
        return [slim_pipe_rule(size, self.context_exchange) for size in sizes]


def dapple_rule(size: int) -> ChunkRule:
    """Whole sequences, packed."""
    return ChunkRule(
        f"dapple {size}",
        size,
        lambda tokens: _equal(tokens, np.ones_like(tokens)),
        {"chunk_tokens": size},
    )


def seq1f1b_rule(
    size: int, splitting: Splitting, context: int, alignment: int, cost: PipelineCost
) -> ChunkRule:
    """Slices of one size, or as many as the longest ``context`` has of that size."""
    account: dict[str, Any] = {"splitting": splitting, "chunk_tokens": size}
    if splitting == "fixed":
        cut = _of_size(size)
        return ChunkRule(f"seq1f1b {size}", size, cut, account, beside_tails=True)
    account["slices"] = count = -(-context // size)

    def cut_alike(tokens: Lengths) -> Slices:
        if splitting == "even":
            return _equal(tokens, np.minimum(count, tokens))
        return equal_work_starts(tokens, count, alignment, cost)

    return ChunkRule(f"seq1f1b {splitting} {size}", size, cut_alike, account)


def chunk_flow_rule(size: int, retained: int) -> ChunkRule:
    """Slices of one size; a sequence keeps the activations of the last ones."""
    account = {"chunk_tokens": size, "kept_chunks": retained}
    name = f"chunk_flow {size} {retained}"
    return ChunkRule(name, size, _of_size(size), account, kept_chunks=retained)


def retained_counts(chunks: int) -> list[int]:
    """Numbers K of chunks that keep theirs, where the longest has so many."""
    return sorted({2**k for k in range(chunks.bit_length()) if 2**k < chunks} | {chunks})


def slim_pipe_rule(size: int, context_exchange: bool = False) -> ChunkRule:
    """Equal slices of up to ``size`` tokens."""
    return ChunkRule(
        f"slim_pipe {size}",
        size,
        lambda tokens: _equal(tokens, -(-tokens // size)),
        {"slice_tokens": size, "context_exchange": context_exchange},
        retimed=balanced if context_exchange else None,
    )


def every_rule(context: int, parts: int, alignment: int, cost: PipelineCost) -> Iterator[ChunkRule]:
    """Every rule, for parts and multiples of ``context``, the longest sequence."""
    yield from map(dapple_rule, sizes_of(None, context, parts, 1))
    for size in sizes_of(None, context, parts, alignment):
        count = -(-context // size)
        yield seq1f1b_rule(size, "fixed", context, alignment, cost)
        yield from (chunk_flow_rule(size, retained) for retained in retained_counts(count))
        yield slim_pipe_rule(size)
        if count > 1:
            yield seq1f1b_rule(size, "even", context, alignment, cost)
            yield seq1f1b_rule(size, "equal_work", context, alignment, cost)


def _of_size(size: int) -> Callable[[Lengths], Slices]:
    """Slices of ``size`` tokens, the last of a sequence with the rest."""

    def cut(tokens: Lengths) -> Slices:
        owner, index = slice_indices(-(-tokens // size))
        return owner, index * size

    return cut


def _equal(tokens: Lengths, counts: Integers) -> Slices:
    """``counts`` [n] slices of equal tokens of each sequence."""
    owner, index = slice_indices(counts)
    return owner, tokens[owner] * index // counts[owner]


def balanced(run: list[Chunk]) -> list[Chunk]:
    """The slices of a sequence with the mean of their times."""
    parts = ("forward", "backward", "all_to_all", "layer_forward")
    names = [f"predicted_{part}_ms" for part in parts]
    means: dict[str, Any] = {name: fmean(getattr(chunk, name) for chunk in run) for name in names}
    return [replace(chunk, **means) for chunk in run]


def sizes_of(given: int | None, longest: int, most_parts: int, alignment: int) -> list[int]:
    """Sizes of chunks in tokens to choose from, the largest first.

    The given one, else the longest context, its parts down to one over ``most_parts``
    and multiples of it, rounded up to the alignment.
    """
    if given is not None:
        return [given]
    sizes = [longest / part for part in _PARTS if part <= most_parts]
    sizes += [longest * times for times in _TIMES]
    return sorted({math.ceil(size / alignment) * alignment for size in sizes}, reverse=True)


def spread(layers: int, cost: PipelineCost) -> tuple[int, ...]:
    """Recomputed layers of each stage: as even as possible, the first ones more."""
    share, rest = divmod(layers, cost.shape.stages)
    return tuple(min(share + (stage < rest), most) for stage, most in enumerate(cost.layer_counts))


def layers_to_try(given: int | None, cost: PipelineCost) -> range:
    """The given number of recomputed layers, or every number from 0 to all layers."""
    return range(sum(cost.layer_counts) + 1) if given is None else range(given, given + 1)


def _plan(settings: FixedChunkSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    cost = task.pipelines(settings.shape)
    return settings.plan(settings.rules(task.max_length_tokens, cost), task, cost)


def _plan_with_rule(
    rule: ChunkRule, settings: FixedChunkSettings, task: PlanningTask, cost: PipelineCost
) -> tuple[PipelineBatch, ...] | None:
    """All batches by one rule with the fewest layers recomputed; None: too large."""
    counts = layers_to_try(settings.checkpointed_layers, cost)
    drawn = []
    for batch in counted(task.batches, "batches"):
        shares = share_among_replicas(batch, settings.replicas, cost)
        drawn.append([rule.chunked(share, cost) for share in shares])
    for chunked in chain.from_iterable(drawn):
        needed = rule.fewest_layers(chunked, counts, cost)
        if needed is None:
            return None
        counts = range(needed, counts.stop)
    account = {**rule.account, "checkpointed_layers": counts[0]}
    batches = []
    for index, replicas in enumerate(drawn):
        numbered = enumerate(replicas)
        pipelines = (rule.pipeline(part, counts[0], replica, cost) for replica, part in numbered)
        batches.append(
            PipelineBatch(index, tuple(pipelines), account, predicted_other_ms=cost.batch_ms)
        )
    return tuple(batches)


DAPPLE = Planner("dapple", "pipeline", DappleSettings, _plan)
SEQ1F1B = Planner("seq1f1b", "pipeline", Seq1F1BSettings, _plan)
CHUNK_FLOW = Planner("chunk_flow", "pipeline", ChunkFlowSettings, _plan)
SLIM_PIPE = Planner("slim_pipe", "pipeline", SlimPipeSettings, _plan, predictions="own")
