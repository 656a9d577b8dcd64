"""Plans by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from railx.planning.format.parts import Chunk, Group, MicroBatch, Pipeline, Slice
from railx.planning.format.plan import (
    SCHEMA,
    PipelineBatch,
    Plan,
    SequenceParallelBatch,
    sequence_lengths,
)

__all__ = ["chunk", "made_for_itself", "micro_batch", "pipeline_plan", "sequence_parallel_plan"]


def made_for_itself(plan: Plan) -> Plan:
    """A plan whose batches were made for just what they process."""
    batches: list[Any] = []
    for batch in plan.batches:
        held = dict(sequence_lengths(batch))
        batches.append(replace(batch, sequences=tuple(held), lengths=tuple(held.values())))
    return replace(plan, batches=tuple(batches))


def micro_batch(*groups: tuple[Sequence[int], dict[int, int]]) -> MicroBatch:
    """Groups given as (ranks, sequence -> length)."""
    return MicroBatch(
        tuple(
            Group(tuple(ranks), tuple(cut), tuple(cut.values()), 1.0, 1.0) for ranks, cut in groups
        ),
        1.0,
    )


def sequence_parallel_plan(devices: int, *batches: Sequence[MicroBatch]) -> Plan:
    """Batches of micro-batches, numbered from 0."""
    numbered = tuple(SequenceParallelBatch(i, tuple(batch)) for i, batch in enumerate(batches))
    return made_for_itself(Plan(SCHEMA, "sequence_parallel", "hand", devices, {}, numbered))


def chunk(*slices: tuple[int, int, int, int], checkpoint_layers: tuple[int, ...] = ()) -> Chunk:
    """Slices given as (sequence, start, stop, length); the way back takes twice as
    long.
    """
    return Chunk(
        tuple(Slice(*part) for part in slices), 1.0, 2.0, checkpoint_layers=checkpoint_layers
    )


def pipeline_plan(devices: int, *batches: Sequence[Pipeline]) -> Plan:
    """Batches of pipelines, numbered from 0."""
    numbered = tuple(PipelineBatch(i, tuple(batch)) for i, batch in enumerate(batches))
    return made_for_itself(Plan(SCHEMA, "pipeline", "hand", devices, {}, numbered))
