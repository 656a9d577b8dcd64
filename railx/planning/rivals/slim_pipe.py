"""SlimPipe: uniform slices, and attention handed between stages until it is balanced.

Every sequence over the slice size is cut into slices of equal tokens (arXiv
2504.14519), which run slice by slice in 1F1B order, backward passes right to left.
Later slices attend to more context; the stages of a pipeline, which work on different
slices at a time, hand the excess to one another. With ``context_exchange`` all slices
of a sequence therefore take the mean time of its slices, and what is handed over takes
no time: an upper bound on what the exchange can win.

Where it differs from the paper's implementation: that cuts every micro-batch, packs of
short sequences too, into n slices. A chunk of a plan holds no beginning of a sequence
beside another, so here short sequences are packed whole up to the slice size, and a
sequence has as many slices as its length requires. Stages have no virtual stages, the
vocabulary is not divided among them, and activations are not offloaded. Recomputation
is static. The rules come from secondary sources. The published comparison is with
Megatron-LM; one with other planners is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Literal

from railx.planning.format.parts import Chunk, Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.groups import Lengths
from railx.planning.pipeline.chunk_rules import (
    ChunkRule,
    FixedChunkSettings,
    Run,
    cost_of,
    cut_evenly,
    filled,
    plan_with_rules,
    ranks_of,
    sizes_of,
    uncut,
)
from railx.planning.planner import Planner, PlanningTask
from railx.settings import AtLeast

__all__ = ["SLIM_PIPE", "SlimPipeSettings", "balanced", "uniform_slices"]


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


def uniform_slices(sequences: Lengths, lengths: Lengths, tokens: int) -> list[Run]:
    """Equal slices of up to ``tokens`` tokens of longer sequences [n], and packs."""
    short: list[Slice] = []
    runs: list[Run] = []
    for sequence, length in zip(sequences.tolist(), lengths.tolist(), strict=True):
        if length <= tokens:
            short.append(uncut(sequence, length))
        else:
            parts = cut_evenly(sequence, length, -(-length // tokens))
            runs.append([[part] for part in parts])
    return runs + [[chunk] for chunk in filled(short, tokens)[1]]


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


def _plan(settings: SlimPipeSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    sizes = sizes_of(
        settings.slice_tokens,
        task.max_length_tokens,
        settings.most_parts,
        settings.alignment_tokens,
    )

    def rule(size: int) -> ChunkRule:
        return ChunkRule(
            lambda rows, lengths: uniform_slices(rows, lengths, size),
            {"slice_tokens": size, "context_exchange": settings.context_exchange},
            retimed=balanced if settings.context_exchange else None,
        )

    return plan_with_rules(settings, task, [rule(size) for size in sizes], cost_of(settings, task))


#: The entry of the list of planners.
SLIM_PIPE = Planner("slim_pipe", "pipeline", SlimPipeSettings, _plan, ranks_of, predictions="own")
