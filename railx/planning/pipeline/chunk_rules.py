"""Shared parts of the pipeline planners that choose their chunks by fixed rules.

DAPPLE, Seq1F1B, ChunkFlow and SlimPipe cut and pack sequences by fixed rules, and
recompute the same layers in every chunk of a kind (static checkpointing). A rule
(:class:`ChunkRule`) makes the chunks of a batch; the rule with the least total time of
all batches wins.

* Chunks run in 1F1B order, sequences of most chunks first, one pipeline to a replica.
  Replicas share a batch by the compute time of its sequences.
* Times and memory are those of the common cost model of pipelines (InfiniPipe eqs.
  1-11). Chunks are live on a stage between forward and backward pass, eqs. 6-8.
* Static checkpointing recomputes a number of layers, spread evenly over the stages.
  Without a given number, a plan takes the least with which all its batches fit.

Elastic pipelines try every rule too (:func:`every_rule`, ``chunking: best``), so that
they are never slower than such a planner. DynaPipe's micro-batches depend on the
recomputed layers: sorted sequences are cut for the least time of the pipeline
(:func:`plan_dyna_pipe_batch`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from railx.performance.pipeline_cost import PipelineCost, PipelineShape, build_pipeline_cost
from railx.planning.format.parts import Chunk, Pipeline, PlanError, Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import pipeline_ms
from railx.planning.groups import Lengths
from railx.planning.pipeline import checkpoints
from railx.planning.pipeline.chunks import Chunked, equal_work_starts, join, share_among_replicas
from railx.planning.planner import PlannerBase, PlanningTask
from railx.progress import counted
from railx.settings import AtLeast, NonNegative, PowerOfTwo, SettingsError
from railx.workload.batches import SampledBatch

__all__ = [
    "ChunkRule",
    "FixedChunkSettings",
    "Splitting",
    "check_settings",
    "chunk_flow_rule",
    "chunk_of",
    "consecutive_cuts",
    "cost_of",
    "dapple_rule",
    "every_rule",
    "fits",
    "pipeline_of",
    "plan_dyna_pipe_batch",
    "plan_with_rules",
    "ranks_of",
    "recomputing",
    "refusal",
    "retained_counts",
    "seq1f1b_rule",
    "sizes_of",
    "slim_pipe_rule",
    "spread",
    "static_layers",
    "uncut",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
#: The slices of long sequences [n]: each one's sequence [m] and start [m] in tokens.
_Slices = tuple[Integers, Integers]
#: How Seq1F1B cuts: slices of one size, or as many of equal tokens or of equal work.
Splitting = Literal["fixed", "even", "equal_work"]
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

    Sequences over ``size`` tokens are cut by ``cut``, from their lengths [n], the
    others are packed up to it by best-fit-decreasing, with ``beside_tails`` beside last
    slices. Of a sequence all but the last ``kept_chunks`` chunks recompute every layer;
    None: all chunks are alike. ``account`` goes to the plan's account.
    """

    name: str
    size: int
    cut: Callable[[Lengths], _Slices]
    account: dict[str, Any] = field(default_factory=dict)
    beside_tails: bool = False
    kept_chunks: int | None = None
    retimed: Callable[[list[Chunk]], list[Chunk]] | None = None

    def chunked(self, sequences: Lengths, lengths: Lengths, cost: PipelineCost) -> Chunked:
        """Chunks of ``sequences`` [n] of ``lengths`` [n], most slices first."""
        # Planning alone loads Numba.
        from railx.planning.pipeline.kernels import pack

        order = np.lexsort((sequences, -lengths))
        rows, tokens = sequences[order], lengths[order]
        long = int(np.count_nonzero(tokens > self.size))
        owner, start = self.cut(tokens[:long])
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
        tails = tokens[:long] - start[np.cumsum(counts) - 1] if self.beside_tails else tokens[:0]
        short = tokens[long:]
        nothing = np.zeros(len(short))
        bin_of, bins = pack(
            short, nothing, tails, np.zeros(len(tails)), 0.0, math.inf, self.size, 2
        )
        return join((), rows, tokens, owner, start, bin_of, bins, len(tails), cost)


def dapple_rule(size: int) -> ChunkRule:
    """Whole sequences, packed."""
    return ChunkRule(f"dapple {size}", size, _uncut, {"chunk_tokens": size})


def seq1f1b_rule(
    size: int, splitting: Splitting, context: int, alignment: int, cost: PipelineCost
) -> ChunkRule:
    """Slices of one size, or as many as the longest ``context`` has of that size."""
    count = -(-context // size)
    account = {"splitting": splitting, "chunk_tokens": size, "slices": count}
    if splitting == "fixed":
        del account["slices"]
        return ChunkRule(f"seq1f1b {size}", size, _by_size(size), account, beside_tails=True)
    if splitting == "even":
        return ChunkRule(f"seq1f1b even {size}", size, _evenly(count=count), account)

    def by_work(tokens: Lengths) -> _Slices:
        return equal_work_starts(tokens, count, alignment, cost)

    return ChunkRule(f"seq1f1b equal_work {size}", size, by_work, account)


def chunk_flow_rule(size: int, retained: int) -> ChunkRule:
    """Slices of one size; a sequence keeps the activations of the last ones."""
    account = {"chunk_tokens": size, "kept_chunks": retained}
    name = f"chunk_flow {size} {retained}"
    return ChunkRule(name, size, _by_size(size), account, kept_chunks=retained)


def retained_counts(chunks: int) -> list[int]:
    """Numbers K of chunks that keep theirs, where the longest has so many."""
    return sorted({2**k for k in range(chunks.bit_length()) if 2**k < chunks} | {chunks})


def slim_pipe_rule(size: int, account: dict[str, Any]) -> ChunkRule:
    """Equal slices of up to ``size`` tokens."""
    return ChunkRule(f"slim_pipe {size}", size, _evenly(size=size), account)


def every_rule(
    context: int, most_parts: int, alignment: int, cost: PipelineCost
) -> Iterator[ChunkRule]:
    """Every rule and size.

    Sizes are parts and multiples of ``context``, the longest allowed sequence.
    """
    yield from map(dapple_rule, sizes_of(None, context, most_parts, 1))
    for size in sizes_of(None, context, most_parts, alignment):
        count = -(-context // size)
        yield seq1f1b_rule(size, "fixed", context, alignment, cost)
        yield from (chunk_flow_rule(size, retained) for retained in retained_counts(count))
        yield slim_pipe_rule(size, {})
        if count > 1:
            yield seq1f1b_rule(size, "even", context, alignment, cost)
            yield seq1f1b_rule(size, "equal_work", context, alignment, cost)


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


def _indices(counts: Integers) -> _Slices:
    """Sequence and slice index [m] of every slice, from the number of slices [n]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - first[owner]


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
    nothing = (0,) * pipeline.stages
    layers = np.array([chunk.checkpoint_layers or nothing for chunk in pipeline.chunks]).T
    return checkpoints.fits(checkpoints.problem_of_pipeline(pipeline, cost), layers)


def static_layers(
    chunked: Chunked, kept_chunks: int | None, counts: range, cost: PipelineCost
) -> tuple[int, Integers] | None:
    """The fewest of ``counts`` layers with which chunks fit, and each chunk's [d, n].

    ``kept_chunks``: those of a sequence that do not recompute every layer. None where
    not even the most fit.
    """
    every = np.array(cost.layer_counts)[:, None]
    early = np.zeros(chunked.chunks, dtype=np.bool_)
    if kept_chunks is not None:
        early = np.arange(chunked.chunks) - chunked.run_start < chunked.count - kept_chunks
    problem = checkpoints.problem_of(chunked, 0, chunked.chunks, cost)

    def layers(count: int) -> Integers:
        return np.where(early, every, np.array(spread(count, cost))[:, None])

    low, high = counts[0], counts[-1]
    if not checkpoints.fits(problem, layers(high)):
        return None
    while low < high:
        middle = (low + high) // 2
        if checkpoints.fits(problem, layers(middle)):
            high = middle
        else:
            low = middle + 1
    return high, layers(high)


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
    given = settings.checkpointed_layers
    most = sum(cost.layer_counts) if given is None else given
    count = 0 if given is None else given
    drawn = [
        [
            rule.chunked(batch.sequences[positions], batch.lengths[positions], cost)
            for positions in share_among_replicas(batch.lengths, settings.replicas, cost)
        ]
        for batch in counted(task.batches, "batches")
    ]
    for chunked in (replica for replicas in drawn for replica in replicas):
        fewest = static_layers(chunked, rule.kept_chunks, range(count, most + 1), cost)
        if fewest is None:
            return None
        count = fewest[0]
    account = {**rule.account, "checkpointed_layers": count}
    return tuple(
        PipelineBatch(
            index,
            tuple(
                _pipeline(rule, chunked, count, replica, cost)
                for replica, chunked in enumerate(replicas)
            ),
            account,
            predicted_other_ms=cost.batch_ms,
        )
        for index, replicas in enumerate(drawn)
    )


def _pipeline(
    rule: ChunkRule, chunked: Chunked, count: int, replica: int, cost: PipelineCost
) -> Pipeline:
    """The chunks of a replica that recompute ``count`` layers, with their times."""
    fewest = static_layers(chunked, rule.kept_chunks, range(count, count + 1), cost)
    assert fewest is not None  # fewer layers fitted
    chunks = [chunk_of(chunked.slices(chunk), cost) for chunk in range(chunked.chunks)]
    if rule.retimed is not None:
        starts = [*np.unique(chunked.run_start).tolist(), len(chunks)]
        runs = (rule.retimed(chunks[start:end]) for start, end in pairwise(starts))
        chunks = [chunk for run in runs for chunk in run]
    recomputed = map(recomputing, chunks, map(tuple, fewest[1].T.tolist()))
    return pipeline_of(recomputed, replica, cost.shape)


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
