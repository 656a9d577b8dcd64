"""One-forward-one-backward order for pipelines of chunks, and its simulated times.

The order rules are InfiniPipe's (section III-C). Forward is in chunk order, so the
slices of a sequence run left to right. Backward takes the sequences first in, first out
and the slices of each right to left, so that gradients of keys and values reach earlier
slices from the later ones.

Stage p (1-based) of d_p runs d_p - p + N_split - 1 forwards before it alternates
forward and backward, with N_split the number of chunks of the longest sequence of the
pipeline (eq. 7). It then holds at most d_p - p + N_split chunks. The training runtime
and the Gantt figure share this module, which needs the standard library alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from railx.planning.plan import Chunk, Pipeline, PlanError

__all__ = [
    "Op",
    "ScheduledOp",
    "backward_order",
    "longest_split",
    "one_f_one_b",
    "peak_live_chunks",
    "pipeline_ms",
    "simulate_pipeline",
    "stage_layers",
    "warm_up_forwards",
]


@dataclass(frozen=True)
class Op:
    """One step of one stage: the forward or backward pass of a chunk.

    The chunk is given by its index in forward order.
    """

    kind: Literal["forward", "backward"]
    chunk: int


@dataclass(frozen=True)
class ScheduledOp:
    """An operation of a stage (0-based) with its simulated times in ms."""

    stage: int
    chunk: int
    kind: Literal["forward", "backward"]
    start_ms: float
    end_ms: float


def backward_order(chunks: Sequence[Chunk]) -> list[int]:
    """Chunk indices in backward order.

    Sequences first in, first out; slices of one sequence right to left.
    """
    order: list[int] = []
    for run in _runs(chunks):
        order.extend(reversed(run))
    return order


def longest_split(chunks: Sequence[Chunk]) -> int:
    """N_split: the number of chunks of the sequence that has most."""
    return max(len(run) for run in _runs(chunks))


def warm_up_forwards(pipeline: Pipeline, stage: int) -> int:
    """Forwards before the first forward-backward pair on ``stage`` (0-based).

    InfiniPipe eq. 7 less one.
    """
    _check_stage(pipeline, stage)
    return min(
        pipeline.stages - (stage + 1) + longest_split(pipeline.chunks) - 1, len(pipeline.chunks)
    )


def one_f_one_b(pipeline: Pipeline, stage: int) -> list[Op]:
    """The operations of ``stage`` (0-based) in the order in which it runs them."""
    chunks, backward = len(pipeline.chunks), backward_order(pipeline.chunks)
    warm_up = warm_up_forwards(pipeline, stage)
    ops = [Op("forward", chunk) for chunk in range(warm_up)]
    for step in range(chunks):
        if warm_up + step < chunks:
            ops.append(Op("forward", warm_up + step))
        ops.append(Op("backward", backward[step]))
    return ops


def peak_live_chunks(pipeline: Pipeline, stage: int) -> int:
    """The most chunks of ``stage`` (0-based) alive at once.

    Their forward has run and their backward has not.
    """
    live = peak = 0
    for op in one_f_one_b(pipeline, stage):
        live += 1 if op.kind == "forward" else -1
        peak = max(peak, live)
    return peak


def simulate_pipeline(pipeline: Pipeline, start_ms: float = 0.0) -> list[ScheduledOp]:
    """Times of every operation when each stage runs its 1F1B order.

    A stage starts an operation as soon as its input is there. A forward needs the
    forward of the stage before, a backward the backward of the stage after (the order
    within a stage does the rest). The times of a chunk are those of the plan, so with
    all ranks of a stage at work. Sending between stages takes no time (InfiniPipe
    neglects it). Returns the operations stage by stage.
    """
    orders = [one_f_one_b(pipeline, stage) for stage in range(pipeline.stages)]
    finished: dict[tuple[str, int, int], float] = {}
    clock = [start_ms] * pipeline.stages
    position = [0] * pipeline.stages
    rows: list[list[ScheduledOp]] = [[] for _ in range(pipeline.stages)]
    remaining = sum(map(len, orders))
    while remaining:
        before = remaining
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                op = order[position[stage]]
                ready = _ready_ms(op, stage, pipeline.stages, finished, start_ms)
                if ready is None:
                    break
                begin = max(clock[stage], ready)
                clock[stage] = begin + _duration_ms(pipeline.chunks[op.chunk], op, stage)
                finished[op.kind, op.chunk, stage] = clock[stage]
                rows[stage].append(ScheduledOp(stage, op.chunk, op.kind, begin, clock[stage]))
                position[stage] += 1
                remaining -= 1
        if remaining == before:
            raise PlanError(
                "the 1F1B order of this pipeline waits for itself; allowed: slices of a sequence in"
                " neighbouring chunks"
            )
    return [row for stage_rows in rows for row in stage_rows]


def pipeline_ms(pipeline: Pipeline) -> float:
    """Simulated time of one pipeline."""
    return max(row.end_ms for row in simulate_pipeline(pipeline))


def stage_layers(layers: int, stages: int) -> list[range]:
    """Consecutive layers for each pipeline stage, as even as can be.

    The first stages get one more where it does not divide. Raises ValueError where a
    stage would stay empty.
    """
    if stages > layers:
        raise ValueError(
            f"{stages} pipeline stages for {layers} layers; allowed: at most one stage per layer"
        )
    share, rest = divmod(layers, stages)
    starts = [stage * share + min(stage, rest) for stage in range(stages + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def _runs(chunks: Sequence[Chunk]) -> list[list[int]]:
    """Neighbouring chunks that share a cut sequence, in forward order.

    Every other chunk is a run of its own.
    """
    runs: list[list[int]] = []
    previous: int | None = None
    for index, chunk in enumerate(chunks):
        cut = chunk.cut_sequence
        if cut is not None and cut == previous:
            runs[-1].append(index)
        else:
            runs.append([index])
        previous = cut
    return runs


def _ready_ms(
    op: Op, stage: int, stages: int, finished: dict[tuple[str, int, int], float], start_ms: float
) -> float | None:
    """When the input of an operation is there.

    None while what makes it has not been scheduled.
    """
    source = stage - 1 if op.kind == "forward" else stage + 1
    if source < 0:
        return start_ms
    if source == stages:
        return finished.get(("forward", op.chunk, stage))
    return finished.get((op.kind, op.chunk, source))


def _duration_ms(chunk: Chunk, op: Op, stage: int) -> float:
    if op.kind == "forward":
        return chunk.predicted_forward_ms
    recomputed = chunk.checkpoint_layers[stage] if chunk.checkpoint_layers else 0
    return chunk.predicted_backward_ms + recomputed * chunk.predicted_layer_forward_ms


def _check_stage(pipeline: Pipeline, stage: int) -> None:
    if not 0 <= stage < pipeline.stages:
        raise PlanError(f"stage: got {stage}; allowed: 0 to {pipeline.stages - 1}")
