"""DynaPipe: micro-batches of neighbours in length, cut for the pipeline's time.

Sequences are sorted by length and cut into consecutive micro-batches such that

    (stages - 1) · max t + (1 / replicas) Σ t

is least, with t the time of a micro-batch on a stage (arXiv 2311.10418). Micro-batches
go to replicas longest first, each to the one with the least time so far, and run in the
better of both orders of length by simulation. No sequence is cut. How many layers are
recomputed is chosen batch by batch.

Where it differs from the public code: that pads the samples of a micro-batch to the
longest, here they are packed, so that t is a sum over sequences and a constant, and the
programme over cuts has a closed form: for a limit on t, filling micro-batches in turn
gives the fewest of them. The limit is searched exactly, not on a grid. Memory allows a
micro-batch what leaves room for as many as a stage holds at once; the code lets a stage
hold fewer where they are large, and clusters micro-batches to try more orders. As many
layers are recomputed as it takes, where the code chooses among none, selective and
full. Its comparison is with Megatron-LM; one with other planners is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from railx.planning.format.plan import PipelineBatch
from railx.planning.pipeline.chunk_rules import (
    FixedChunkSettings,
    check_settings,
    cost_of,
    ranks_of,
    refusal,
)
from railx.planning.pipeline.consecutive import plan_dyna_pipe_batch
from railx.planning.planner import Planner, PlanningTask
from railx.progress import counted

__all__ = ["DYNA_PIPE", "DynaPipeSettings"]


@dataclass(frozen=True)
class DynaPipeSettings(FixedChunkSettings):
    """Pipelines of consecutive micro-batches of sorted sequences (DynaPipe)."""

    planner: Literal["dyna_pipe"]
    """Which planner it is."""


def _plan(settings: DynaPipeSettings, task: PlanningTask) -> tuple[PipelineBatch, ...]:
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


#: The entry of the list of planners.
DYNA_PIPE = Planner("dyna_pipe", "pipeline", DynaPipeSettings, _plan, ranks_of)
