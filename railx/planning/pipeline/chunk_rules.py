"""Shared parts of the pipeline planners that choose their chunks by fixed rules.

DAPPLE, Seq1F1B, ChunkFlow and SlimPipe cut and pack sequences by fixed rules, and
recompute the same layers in every chunk of a kind (static checkpointing). Each defines
rules for its chunks (:class:`ChunkRule`); the rule with the least total time of all
batches wins.

* Chunks run in 1F1B order, sequences of most chunks first, one pipeline to a replica.
  Replicas share a batch by the compute time of its sequences.
* Times and memory are those of the common cost model of pipelines (InfiniPipe eqs.
  1-11). Chunks are live on a stage between forward and backward pass, eqs. 6-8.
* Static checkpointing recomputes a number of layers, spread evenly over the stages.
  Without a given number, a plan takes the least with which all its batches fit.

:func:`fixed_chunks` applies the same rules on arrays: elastic pipelines try these
chunks too (``chunking: best``), so that they are never slower than such a planner.
Tests compare both. Chunks of DynaPipe depend on the recomputed layers
(``consecutive``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from railx.performance.pipeline_cost import PipelineCost, PipelineShape, build_pipeline_cost
from railx.planning.format.parts import Chunk, Pipeline, PlanError, Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import backward_order, longest_split
from railx.planning.groups import Lengths, best_fit_decreasing
from railx.planning.pipeline.chunks import Chunked, join, share_among_replicas
from railx.planning.planner import PlannerBase, PlanningTask
from railx.progress import counted
from railx.settings import AtLeast, NonNegative, PowerOfTwo, SettingsError
from railx.workload.batches import SampledBatch

__all__ = [
    "ChunkRule",
    "FixedChunkSettings",
    "FixedChunks",
    "Run",
    "check_settings",
    "chunk_of",
    "cost_of",
    "cut_evenly",
    "filled",
    "fits",
    "fixed_chunks",
    "pieces",
    "pipeline_of",
    "plan_with_rules",
    "ranks_of",
    "recomputing",
    "refusal",
    "sizes_of",
    "spread",
    "uncut",
    "window_bytes",
]

#: Chunks of several sequences' slices, those of one cut sequence left to right. They
#: must stay neighbours.
Run = list[list[Slice]]
#: Chunks of a batch: corpus rows [n] and lengths [n] to runs.
Cut = Callable[[Lengths, Lengths], list[Run]]
#: The longest context over the sizes of chunks to try.
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: Multiples of the longest context to try too: packs of short sequences may be larger
#: than one long sequence.
_TIMES = (2, 3, 4, 6, 8)


@dataclass(frozen=True)
class FixedChunkSettings(PlannerBase):
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


@dataclass(frozen=True)
class ChunkRule:
    """A rule for the chunks of a plan.

    ``recomputes(count, index)``: whether all layers of chunk ``index`` of a run of
    ``count`` chunks are always recomputed; None: of no chunk. ``account`` goes to the
    plan's account.
    """

    cut: Cut
    account: dict[str, Any] = field(default_factory=dict)
    recomputes: Callable[[int, int], bool] | None = None
    retimed: Callable[[list[Chunk]], list[Chunk]] | None = None


def cost_of(settings: FixedChunkSettings, task: PlanningTask) -> PipelineCost:
    """The costs of the shape in the settings."""
    shape = PipelineShape(settings.stages, settings.sequence_parallel_degree, settings.replicas)
    return build_pipeline_cost(
        task.constants, task.cluster, task.model, task.max_length_tokens, shape, task.cost
    )


def ranks_of(settings: FixedChunkSettings) -> int:
    """Every rank of every stage."""
    return settings.stages * settings.replicas * settings.sequence_parallel_degree


def uncut(sequence: int, length: int) -> Slice:
    """A sequence that is not cut."""
    return Slice(int(sequence), 0, int(length), int(length))


def pieces(sequence: int, length: int, cuts: Iterable[int]) -> list[Slice]:
    """The slices of a sequence between cuts, ascending and inside it."""
    return [
        Slice(int(sequence), start, stop, int(length))
        for start, stop in pairwise([0, *cuts, int(length)])
    ]


def cut_evenly(sequence: int, length: int, count: int) -> list[Slice]:
    """``count`` slices of a sequence of equal tokens up to one, fewer for fewer
    tokens.
    """
    count = min(count, int(length))
    return pieces(sequence, length, (length * part // count for part in range(1, count)))


def filled(
    short: Sequence[Slice], capacity: int, opened: Sequence[Slice] = ()
) -> tuple[list[list[Slice]], list[list[Slice]]]:
    """Whole sequences packed to chunks of ``capacity`` tokens by best-fit-decreasing.

    ``opened`` are slices that begin a chunk each and may be joined. Returns those
    chunks and the new ones. A sequence over the capacity is alone.
    """
    ordered = sorted(short, key=lambda part: part.sequence)
    packed = best_fit_decreasing(
        [part.tokens for part in ordered], capacity, [part.tokens for part in opened]
    )
    bins = [[ordered[position] for position in positions] for positions in packed]
    joined = [[part, *members] for part, members in zip(opened, bins, strict=False)]
    return joined, bins[len(opened) :]


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
    return tuple(
        min(share + (stage < rest), cost.layers_of(stage)) for stage in range(cost.shape.stages)
    )


def chunk_of(slices: Sequence[Slice], cost: PipelineCost) -> Chunk:
    """A chunk with its times, nothing recomputed."""
    time = cost.chunk_time_ms([(part.start, part.tokens) for part in slices])
    return Chunk(
        tuple(slices),
        time.forward_ms,
        time.backward_ms,
        time.all_to_all_ms,
        predicted_layer_forward_ms=cost.layer_forward_ms(time.forward_ms),
        predicted_send_ms=cost.send_ms(sum(part.tokens for part in slices)),
    )


def recomputing(chunk: Chunk, layers: tuple[int, ...]) -> Chunk:
    """A chunk that recomputes ``layers`` on each stage."""
    return replace(chunk, checkpoint_layers=layers if any(layers) else ())


def pipeline_of(chunks: Iterable[Chunk], replica: int, shape: PipelineShape) -> Pipeline:
    """A pipeline of these chunks in their order."""
    return Pipeline(shape.stages, replica, tuple(chunks), shape.degree)


def fits(pipeline: Pipeline, cost: PipelineCost) -> bool:
    """Whether memory suffices on every stage at any time (InfiniPipe eqs. 5-10)."""
    return all(
        window_bytes(pipeline, cost, stage) <= cost.capacity_bytes(stage)
        for stage in range(pipeline.stages)
    )


def window_bytes(pipeline: Pipeline, cost: PipelineCost, stage: int) -> float:
    """The peak bytes of a rank of a stage."""
    chunks = pipeline.chunks
    chunk_bytes = cost.activation_bytes(
        np.array([chunk.tokens for chunk in chunks], dtype=np.int64),
        np.array([chunk.kind == "split" for chunk in chunks]),
        stage,
        np.array([(chunk.checkpoint_layers or (0,) * stage + (0,))[stage] for chunk in chunks]),
    )
    count = len(chunks)
    window = pipeline.stages - (stage + 1) + longest_split(chunks)
    begun = np.concatenate(([0.0], np.cumsum(chunk_bytes)))
    ended = np.concatenate(([0.0], np.cumsum(chunk_bytes[backward_order(chunks)])))
    step = np.arange(count)
    return float((begun[np.minimum(count, window + step)] - ended[step]).max())


def plan_with_rules(
    settings: FixedChunkSettings, task: PlanningTask, rules: Sequence[ChunkRule], cost: PipelineCost
) -> tuple[PipelineBatch, ...]:
    """The batches of the fastest rule; PlanError where none fits memory."""
    check_settings(settings, task)
    best: tuple[PipelineBatch, ...] | None = None
    best_ms = np.inf
    for rule in rules:
        batches = _plan_with_rule(rule, settings, task, cost)
        if batches is not None:
            total = sum(batch.predicted_ms for batch in batches)
            if total < best_ms:
                best, best_ms = batches, total
    if best is None:

        def holds(batch: SampledBatch) -> bool:
            only, alone = replace(task, batches=(batch,)), replace(settings, replicas=1)
            return any(_plan_with_rule(rule, alone, only, cost) is not None for rule in rules)

        raise refusal(settings, task, holds)
    return best


def check_settings(settings: FixedChunkSettings, task: PlanningTask) -> None:
    """Refuse batches with fewer sequences than replicas, and layers beyond the
    model's.
    """
    layers = settings.checkpointed_layers
    if layers is not None and layers > task.model.layers:
        raise SettingsError(
            "planner.checkpointed_layers",
            f"got {layers}; allowed: at most {task.model.layers}, the layers of {task.model.name}",
        )
    fewest = min(len(batch.lengths) for batch in task.batches)
    if fewest < settings.replicas:
        raise PlanError(
            f"planner.replicas: got {settings.replicas}; allowed: at most {fewest}, the sequences"
            " of a batch"
        )


def refusal(
    settings: FixedChunkSettings, task: PlanningTask, holds: Callable[[SampledBatch], bool]
) -> PlanError:
    """Why nothing fits memory, with the longest sequence and the longest that fits.

    ``holds``: whether one replica fits a batch.
    """
    worst = max(task.batches, key=lambda batch: int(batch.lengths.max()))
    index = int(np.argmax(worst.lengths))
    sequence, length = int(worst.sequences[index]), int(worst.lengths[index])
    where = f"{settings.stages} stages of {settings.sequence_parallel_degree} ranks"
    most, fails = 0, length + 1
    while fails - most > 1:
        middle = (most + fails) // 2
        fitting = holds(SampledBatch(np.array([0]), np.array([middle])))
        most, fails = (middle, fails) if fitting else (most, middle)
    if most == length:
        layers = settings.checkpointed_layers
        how = "that recompute all layers" if layers is None else f"with {layers} recomputed layers"
        return PlanError(
            f"sequence {sequence}: {length} tokens beside those of its batch; allowed: what a"
            f" pipeline of {where} {how} holds at once"
        )
    return PlanError(
        f"sequence {sequence}: {length} tokens; allowed: at most {most}, the longest that a"
        f" pipeline of {where} holds"
    )


def _plan_with_rule(
    rule: ChunkRule, settings: FixedChunkSettings, task: PlanningTask, cost: PipelineCost
) -> tuple[PipelineBatch, ...] | None:
    """All batches by one rule with the fewest layers recomputed; None: too large."""
    layers = sum(map(cost.layers_of, range(cost.shape.stages)))
    if settings.checkpointed_layers is not None:
        counts = range(settings.checkpointed_layers, settings.checkpointed_layers + 1)
    else:
        counts = range(layers + 1)
    runs = [
        [
            rule.cut(batch.sequences[positions], batch.lengths[positions])
            for positions in share_among_replicas(batch.lengths, settings.replicas, cost)
        ]
        for batch in counted(task.batches, "batches")
    ]
    chunked = [[_timed(rule, replica_runs, cost) for replica_runs in batch] for batch in runs]
    low = 0
    for batch_runs in chunked:
        for replica, timed in enumerate(batch_runs):
            high = len(counts) - 1
            if not fits(_pipeline(rule, timed, counts[high], replica, cost), cost):
                return None
            while low < high:
                middle = (low + high) // 2
                if fits(_pipeline(rule, timed, counts[middle], replica, cost), cost):
                    high = middle
                else:
                    low = middle + 1
    count = counts[low]
    account = {**rule.account, "checkpointed_layers": count}
    return tuple(
        PipelineBatch(
            index,
            tuple(
                _pipeline(rule, timed, count, replica, cost)
                for replica, timed in enumerate(batch_runs)
            ),
            account,
            predicted_other_ms=cost.batch_ms,
        )
        for index, batch_runs in enumerate(chunked)
    )


def _timed(rule: ChunkRule, runs: list[Run], cost: PipelineCost) -> list[list[Chunk]]:
    """Runs as chunks with their times, those of most chunks first."""
    chunk_runs = [[chunk_of(slices, cost) for slices in run] for run in runs]
    if rule.retimed is not None:
        chunk_runs = [rule.retimed(run) for run in chunk_runs]
    return sorted(chunk_runs, key=lambda run: -len(run))


def _pipeline(
    chunk_rule: ChunkRule, runs: list[list[Chunk]], layers: int, replica: int, cost: PipelineCost
) -> Pipeline:
    spread_layers = spread(layers, cost)
    every = tuple(map(cost.layers_of, range(cost.shape.stages)))
    rule = chunk_rule.recomputes
    return pipeline_of(
        (
            recomputing(
                chunk, every if rule is not None and rule(len(run), index) else spread_layers
            )
            for run in runs
            for index, chunk in enumerate(run)
        ),
        replica,
        cost.shape,
    )


Integers = npt.NDArray[np.int64]
#: The slices of long sequences [n]: each one's sequence [m] and start [m] in tokens.
_Slices = tuple[Integers, Integers]


@dataclass(frozen=True)
class FixedChunks:
    """Chunks by a named rule.

    Of a sequence all but the last ``kept_chunks`` chunks recompute every layer; None:
    all chunks are alike.
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
    """A batch's ``sequences`` [n] of ``lengths`` [n] by every rule and size.

    Sizes are parts and multiples of ``context``, the longest allowed sequence.
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
    """``count`` equal slices of each sequence, or as many as its length requires."""

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
    """Sequence and slice index [m] of every slice, from the number of slices [n]."""
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
    # Planning alone loads Numba.
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
