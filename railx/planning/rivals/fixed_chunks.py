"""Pipelines with chunks of fixed rules: what elastic pipelines are compared with.

Recomputation is static (``railx.planning.pipeline.chunk_rules``). Published comparisons
are with Megatron-LM, that of Seq1F1B with ``fixed`` is InfiniPipe's; others are ours.

**DAPPLE** (Fan et al., PPoPP 2021) is the batch-level pipeline that InfiniPipe starts
from: no sequence is cut, short ones are packed into a chunk by best-fit-decreasing up
to a fixed number of tokens, and a longer one is a chunk of its own. Each stage runs as
many forward passes ahead as stages follow it (N_split = 1). The paper's planner also
chooses where to cut the model and how many devices each stage has. Here stages have
equally many layers and ranks, as the settings give them. Its chunks hold equally many
samples of one length; packing is what makes it work for variable lengths.

**Seq1F1B** has two settings (``splitting``). ``fixed`` is the baseline of InfiniPipe's
paper: sequences are cut into slices of a fixed number of tokens, tails
and short sequences are packed up to the same number. ``even`` and ``equal_work`` are
the original (Sun et al., arXiv 2406.03488): every sequence is cut into the same number
of slices, of equal tokens or of equal work. Forward passes take slices left to right;
backward passes take sequences first in first out and their slices right to left; the
warm-up is stages - rank + slices - 2 forward passes (rank from 0), as in its code. That
code trains micro-batches of one length, each cut into N slices. Here lengths vary. With
``fixed``, two tails never share a chunk, as in InfiniPipe. With the other two,
sequences up to the N-th part of the longest context are packed whole to that part, for
a chunk of a plan holds no beginning of a sequence beside another; all longer ones are
cut into N. Equal work is that of the common cost model, all-to-all included, where the
code counts operations. The fixed size that InfiniPipe used is not published: the best
one by predicted time is taken, which favours the baseline.

**ChunkFlow** (arXiv 2503.02356) cuts sequences over the chunk size into slices of it
and packs shorter ones up to it. Of a sequence of n slices the last K keep their
activations; the forward pass of the n - K before them is run again when their turn to
go back comes, right to left. Chunk size and K are tuned together. Its implementation is
not public. What is run again is recomputed layer by layer, as InfiniPipe prices it, so
that the input of each layer stays besides keys and values, where ChunkFlow keeps keys
and values alone. The warm-up is that of Seq1F1B; the text that we have of the paper
does not give ChunkFlow's. The tail of a sequence is a chunk of its own.

**SlimPipe** (arXiv 2504.14519) cuts every sequence over the slice size into slices of
equal tokens, which run slice by slice in 1F1B order, backward passes right to left.
Later slices attend to more context; the stages of a pipeline, which work on different
slices at a time, hand the excess to one another. With ``context_exchange`` all slices
of a sequence therefore take the mean time of its slices, and what is handed over takes
no time: an upper bound on what the exchange can win. The paper's implementation cuts
every micro-batch, packs of short sequences too, into n slices. Here short sequences are
packed whole up to the slice size, and a sequence has as many slices as its length
requires. Stages have no virtual stages, the vocabulary is not divided among them, and
activations are not offloaded. The rules come from secondary sources.

**DynaPipe** (arXiv 2311.10418) sorts sequences by length and cuts them into consecutive
micro-batches such that

    (stages - 1) · max t + (1 / replicas) Σ t

is least, with t the time of a micro-batch on a stage. Micro-batches go to replicas
longest first, each to the one with the least time so far, and run in the better of both
orders of length by simulation. No sequence is cut. How many layers are recomputed is
chosen batch by batch. The public code pads the samples of a micro-batch to the longest,
here they are packed, so that t is a sum over sequences and a constant, and the
programme over cuts has a closed form: for a limit on t, filling micro-batches in turn
gives the fewest of them. The limit is searched exactly, not on a grid. Memory allows a
micro-batch what leaves room for as many as a stage holds at once; the code lets a stage
hold fewer where they are large, and clusters micro-batches to try more orders. As many
layers are recomputed as it takes, where the code chooses among none, selective and
full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Literal

from railx.planning.format.parts import Chunk
from railx.planning.format.plan import PipelineBatch
from railx.planning.pipeline.chunk_rules import (
    FixedChunkSettings,
    Splitting,
    check_settings,
    chunk_flow_rule,
    cost_of,
    dapple_rule,
    plan_dyna_pipe_batch,
    plan_with_rules,
    ranks_of,
    refusal,
    retained_counts,
    seq1f1b_rule,
    sizes_of,
    slim_pipe_rule,
)
from railx.planning.planner import Planner, PlanningTask
from railx.progress import counted
from railx.settings import AtLeast

__all__ = [
    "CHUNK_FLOW",
    "DAPPLE",
    "DYNA_PIPE",
    "SEQ1F1B",
    "SLIM_PIPE",
    "ChunkFlowSettings",
    "DappleSettings",
    "DynaPipeSettings",
    "Seq1F1BSettings",
    "SlimPipeSettings",
    "balanced",
]


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


@dataclass(frozen=True)
class ChunkFlowSettings(FixedChunkSettings):
    """Pipelines of chunks of one size; a sequence keeps its last K (ChunkFlow)."""

    planner: Literal["chunk_flow"]
    """Which planner it is."""

    chunk_tokens: Annotated[int, AtLeast(1)] | None = None
    """Tokens of a chunk; null takes the best by predicted time."""

    kept_chunks: Annotated[int, AtLeast(1)] | None = None
    """K: the last chunks of a sequence that keep their activations; null takes the best
    by predicted time."""

    most_parts: Annotated[int, AtLeast(1)] = 32
    """Most chunks of the longest context that are tried where ``chunk_tokens`` is
    null."""

    alignment_tokens: Annotated[int, AtLeast(1)] = 1024
    """Tokens of which the sizes that are tried are a multiple."""


@dataclass(frozen=True)
class SlimPipeSettings(FixedChunkSettings):
    """Pipelines of uniform slices whose attention is balanced (SlimPipe)."""

    planner: Literal["slim_pipe"]
    """Which planner it is."""

    slice_tokens: Annotated[int, AtLeast(1)] | None = None
    """Most tokens of a slice; null takes the best by predicted time."""

    most_parts: Annotated[int, AtLeast(1)] = 32
    """Most slices of the longest context that are tried where ``slice_tokens`` is
    null."""

    alignment_tokens: Annotated[int, AtLeast(1)] = 1024
    """Tokens of which the sizes that are tried are a multiple."""

    context_exchange: bool = True
    """Whether stages balance the attention of a sequence's slices."""


@dataclass(frozen=True)
class DynaPipeSettings(FixedChunkSettings):
    """Pipelines of consecutive micro-batches of sorted sequences (DynaPipe)."""

    planner: Literal["dyna_pipe"]
    """Which planner it is."""


def balanced(run: list[Chunk]) -> list[Chunk]:
    """The slices of a sequence with the mean of their times."""
    forward, backward, exchange, layer = (
        fmean(getattr(chunk, name) for chunk in run)
        for name in (
            "predicted_forward_ms",
            "predicted_backward_ms",
            "predicted_all_to_all_ms",
            "predicted_layer_forward_ms",
        )
    )
    return [
        replace(
            chunk,
            predicted_forward_ms=forward,
            predicted_backward_ms=backward,
            predicted_all_to_all_ms=exchange,
            predicted_layer_forward_ms=layer,
        )
        for chunk in run
    ]


def _dapple(settings: DappleSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    sizes = sizes_of(settings.chunk_tokens, task.max_length_tokens, settings.most_parts, 1)
    return plan_with_rules(settings, task, list(map(dapple_rule, sizes)), cost_of(settings, task))


def _seq1f1b(settings: Seq1F1BSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    cost, longest = cost_of(settings, task), task.max_length_tokens
    parts, alignment = settings.most_parts, settings.alignment_tokens
    rules = [
        seq1f1b_rule(size, settings.splitting, longest, alignment, cost)
        for size in sizes_of(settings.chunk_tokens, longest, parts, alignment)
    ]
    return plan_with_rules(settings, task, rules, cost)


def _chunk_flow(settings: ChunkFlowSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    longest = task.max_length_tokens
    sizes = sizes_of(settings.chunk_tokens, longest, settings.most_parts, settings.alignment_tokens)
    given = settings.kept_chunks
    rules = [
        chunk_flow_rule(size, retained)
        for size in sizes
        for retained in ([given] if given else reversed(retained_counts(-(-longest // size))))
    ]
    return plan_with_rules(settings, task, rules, cost_of(settings, task))


def _slim_pipe(settings: SlimPipeSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    parts, alignment = settings.most_parts, settings.alignment_tokens
    exchange = settings.context_exchange
    rules = [
        replace(
            slim_pipe_rule(size, {"slice_tokens": size, "context_exchange": exchange}),
            retimed=balanced if exchange else None,
        )
        for size in sizes_of(settings.slice_tokens, task.max_length_tokens, parts, alignment)
    ]
    return plan_with_rules(settings, task, rules, cost_of(settings, task))


def _dyna_pipe(settings: DynaPipeSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    cost = cost_of(settings, task)
    check_settings(settings, task)
    alone = replace(settings, replicas=1)
    batches = []
    for index, batch in enumerate(counted(task.batches, "batches")):
        planned = plan_dyna_pipe_batch(index, batch, settings, cost)
        if planned is None:
            raise refusal(
                settings,
                replace(task, batches=(batch,)),
                lambda single: plan_dyna_pipe_batch(0, single, alone, cost) is not None,
            )
        batches.append(planned)
    return tuple(batches)


#: The entries of the list of planners.
DAPPLE = Planner("dapple", "pipeline", DappleSettings, _dapple, ranks_of)
SEQ1F1B = Planner("seq1f1b", "pipeline", Seq1F1BSettings, _seq1f1b, ranks_of)
CHUNK_FLOW = Planner("chunk_flow", "pipeline", ChunkFlowSettings, _chunk_flow, ranks_of)
SLIM_PIPE = Planner(
    "slim_pipe", "pipeline", SlimPipeSettings, _slim_pipe, ranks_of, predictions="own"
)
DYNA_PIPE = Planner("dyna_pipe", "pipeline", DynaPipeSettings, _dyna_pipe, ranks_of)
