"""ChunkFlow: chunks of one size, and only the last of each sequence keep activations.

Sequences over the chunk size are cut into slices of it, shorter ones are packed up to
it by best-fit-decreasing (arXiv 2503.02356). Of a sequence of n slices the last K keep
their activations; the forward pass of the n - K before them is run again when their
turn to go back comes, right to left. Chunk size and K are tuned together.

Where it differs from the paper's implementation, which is not public: what is run again
is recomputed layer by layer, as InfiniPipe prices it, so that the input of each layer
stays besides keys and values, where ChunkFlow keeps keys and values alone. The warm-up
is that of Seq1F1B, stages - rank + slices - 2 forward passes; the text that we have of
the paper does not give ChunkFlow's. The tail of a sequence is a chunk of its own. The
published comparison is with Megatron-LM; one with other planners is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.planning.format.plan import PipelineBatch
from railx.planning.pipeline.chunk_rules import (
    ChunkRule,
    FixedChunkSettings,
    cost_of,
    plan_with_rules,
    ranks_of,
    sizes_of,
)
from railx.planning.planner import Planner, PlanningTask
from railx.planning.rivals.seq1f1b import fixed_slices
from railx.settings import AtLeast

__all__ = ["CHUNK_FLOW", "ChunkFlowSettings"]


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


def _retained_counts(settings: ChunkFlowSettings, chunks: int) -> list[int]:
    """Numbers K to try for a longest sequence of so many chunks, most first."""
    if settings.kept_chunks is not None:
        return [settings.kept_chunks]
    powers = {2**k for k in range(chunks.bit_length()) if 2**k < chunks}
    return sorted(powers | {chunks}, reverse=True)


def _rule(tokens: int, retained: int) -> ChunkRule:
    return ChunkRule(
        lambda rows, lengths: fixed_slices(rows, lengths, tokens, beside_tails=False),
        {"chunk_tokens": tokens, "kept_chunks": retained},
        lambda count, index: index < count - retained,
    )


def _plan(settings: ChunkFlowSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    longest = task.max_length_tokens
    sizes = sizes_of(settings.chunk_tokens, longest, settings.most_parts, settings.alignment_tokens)
    rules = [
        _rule(size, retained)
        for size in sizes
        for retained in _retained_counts(settings, -(-longest // size))
    ]
    return plan_with_rules(settings, task, rules, cost_of(settings, task))


#: The entry of the list of planners.
CHUNK_FLOW = Planner("chunk_flow", "pipeline", ChunkFlowSettings, _plan, ranks_of)
