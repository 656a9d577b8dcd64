"""DAPPLE-style pipelines: chunks of whole sequences in 1F1B order.

It is the batch-level pipeline that InfiniPipe starts from: no sequence is cut, short
ones are packed into a chunk by best-fit-decreasing up to a fixed number of tokens, and
a longer one is a chunk of its own. Each stage runs as many forward passes ahead as
stages follow it (N_split = 1).

Where it differs from DAPPLE (Fan et al., PPoPP 2021): that planner also chooses where
to cut the model and how many devices each stage has. Here stages have equally many
layers and ranks, as the settings give them. Its chunks hold equally many samples of one
length; packing is what makes it work for variable lengths. Recomputation is static.
InfiniPipe's paper does not compare with DAPPLE; a comparison is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.planning.format.plan import PipelineBatch
from railx.planning.groups import Lengths
from railx.planning.pipeline.chunk_rules import (
    ChunkRule,
    FixedChunkSettings,
    Run,
    cost_of,
    filled,
    plan_with_rules,
    ranks_of,
    sizes_of,
    uncut,
)
from railx.planning.planner import Planner, PlanningTask
from railx.settings import AtLeast

__all__ = ["DAPPLE", "DappleSettings", "packs"]


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


def packs(sequences: Lengths, lengths: Lengths, tokens: int) -> list[Run]:
    """Chunks of whole sequences [n] with up to ``tokens`` tokens, or one alone."""
    ends = [uncut(*pair) for pair in zip(sequences.tolist(), lengths.tolist(), strict=True)]
    return [[chunk] for chunk in filled(ends, tokens)[1]]


def _plan(settings: DappleSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
    sizes = sizes_of(settings.chunk_tokens, task.max_length_tokens, settings.most_parts, 1)

    def rule(size: int) -> ChunkRule:
        return ChunkRule(lambda rows, lengths: packs(rows, lengths, size), {"chunk_tokens": size})

    return plan_with_rules(settings, task, [rule(size) for size in sizes], cost_of(settings, task))


#: The entry of the list of planners.
DAPPLE = Planner("dapple", "pipeline", DappleSettings, _plan, ranks_of)
