"""Orders of the passes of pipeline stages, and simulated times.

The base is InfiniPipe's order (section III-C). Forward is in chunk order, so the slices
of a sequence run left to right. Backward takes the sequences first in, first out and
the slices of each right to left, so that gradients of keys and values reach earlier
slices from the later ones. Other named orders are in ``simulation``; a pipeline may
have an explicit one (``Pipeline.order``).

The training runtime and the Gantt figure share this module, which needs the standard
library alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from railx.errors import UserError
from railx.planning.format.parts import Chunk, Pipeline, refused
from railx.planning.format.simulation import ScheduleName, Shape, Times, orders_of, run_orders

#: A pass: forward, backward, or the delayed weight pass of a backward pass.
OpKind = Literal["forward", "backward", "weight"]
_KINDS: tuple[OpKind, ...] = ("forward", "backward", "weight")
_LETTERS = "FBW"
#: What a pass needs before it on its stage, of its own chunk or the chunk so many steps
#: on in the same sequence, and why.
_NEEDS: tuple[tuple[OpKind, OpKind, int, str], ...] = (
    ("forward", "forward", -1, "the slices of a sequence left to right"),
    ("backward", "forward", 0, "a forward pass before its backward pass"),
    ("backward", "backward", 1, "backward the slices of a sequence right to left"),
    ("weight", "backward", 0, "the weights' part after backward"),
)
#: Characters of an operation in an explicit order.
_LONGEST_CODE = 40
#: A named schedule, or a searched order.
ScheduleChoice = Literal[ScheduleName, "searched"]
#: Named schedules that the training runtime runs; the others are simulated only.
RUNNABLE: tuple[ScheduleName, ...] = ("1f1b", "gpipe")
#: The same with searched orders: a tie takes the first, the paper's.
TRAINABLE_SCHEDULES: tuple[ScheduleChoice, ...] = ("1f1b", "searched", "gpipe")


@dataclass(frozen=True)
class Op:
    """A pass on a stage: kind, chunk in forward order, virtual stage (``part``)."""

    kind: OpKind
    chunk: int
    part: int = 0

    @property
    def code(self) -> str:
        """The pass in an explicit order: F0, B1, W1; F0.1 in virtual stage 1."""
        part = f".{self.part}" if self.part else ""
        return f"{_LETTERS[_KINDS.index(self.kind)]}{self.chunk}{part}"


@dataclass(frozen=True)
class ScheduledOp:
    """An operation of a stage (0-based) with its simulated times in ms."""

    stage: int
    part: int
    chunk: int
    kind: OpKind
    start_ms: float
    end_ms: float


def shape_of(pipeline: Pipeline) -> Shape:
    """The inputs of the named orders."""
    return Shape(pipeline.stages, list(map(len, runs_of(pipeline.chunks))), pipeline.virtual_stages)


def operations(pipeline: Pipeline, stage: int) -> list[Op]:
    """The operations of ``stage`` (0-based) in its explicit or named order."""
    _check_stage(pipeline, stage)
    return [_op(number, pipeline) for number in _orders(pipeline)[stage]]


def ordered(pipeline: Pipeline) -> tuple[tuple[str, ...], ...]:
    """The order of every stage, in the form of ``Pipeline.order``."""
    return coded(_orders(pipeline), pipeline)


def coded(orders: Sequence[Sequence[int]], pipeline: Pipeline) -> tuple[tuple[str, ...], ...]:
    """Passes as numbers (``simulation``) in the form of an explicit order."""
    return tuple(tuple(_op(number, pipeline).code for number in order) for order in orders)


def peak_live_chunks(pipeline: Pipeline, stage: int) -> int:
    """The most chunks of ``stage`` (0-based) alive at once, over its virtual stages."""
    _check_stage(pipeline, stage)
    return int(peak_live(pipeline, lambda model_stage, chunk: 1)[stage])


def peak_live(pipeline: Pipeline, size_of: Callable[[int, int], float]) -> list[float]:
    """By stage the most that its live chunks take at once (:func:`live_sizes`)."""
    peaks = [0.0] * pipeline.stages
    for stage, _, size in live_sizes(pipeline, size_of):
        peaks[stage] = max(peaks[stage], size)
    return peaks


def live_sizes(
    pipeline: Pipeline, size_of: Callable[[int, int], float]
) -> Iterator[tuple[int, int, float]]:
    """After each forward pass its stage and chunk, and the size of all live chunks.

    A chunk is alive from its forward to its backward or delayed weight pass.
    ``size_of`` gives the size of a chunk on a model stage.
    """
    chunks, stages = len(pipeline.chunks), pipeline.stages
    ended = chunks * pipeline.virtual_stages
    for stage, order in enumerate(_orders(pipeline)):
        closing = 2 * ended if max(order, default=0) >= 2 * ended else ended
        live: float = 0
        for number in order:
            part, chunk = divmod(number % ended, chunks)
            if number < ended:
                live += size_of(part * stages + stage, chunk)
                yield stage, chunk, live
            elif closing <= number < closing + ended:
                live -= size_of(part * stages + stage, chunk)


def simulate_pipeline(pipeline: Pipeline, start_ms: float = 0.0) -> list[ScheduledOp]:
    """Times of every operation when each stage runs its order, stage by stage.

    Those of chunks are the plan's. A message between stages takes its predicted time,
    or 0 without a prediction (InfiniPipe neglects it), and delays no computation of the
    sender.
    """
    orders = _orders(pipeline)
    times = _run(pipeline, orders, start_ms)
    rows = []
    for stage, order in enumerate(orders):
        for number in order:
            op = _op(number, pipeline)
            begin_ms, end_ms = times.begins[stage][number], times.ends[stage][number]
            rows.append(ScheduledOp(stage, op.part, op.chunk, op.kind, begin_ms, end_ms))
    return rows


def pipeline_ms(pipeline: Pipeline) -> float:
    """Simulated time of one pipeline."""
    return _run(pipeline, _orders(pipeline)).makespan_ms


def durations_ms(pipeline: Pipeline) -> list[list[float]]:
    """``durations`` of the simulation: the time of each pass, by stage.

    A backward pass recomputes layers, and lacks the weights' part where the schedule
    delays that; only then weight passes take time.
    """
    stages, parts, chunks = pipeline.stages, pipeline.virtual_stages, pipeline.chunks
    delays = _delays_weights(pipeline)
    forward = [chunk.predicted_forward_ms for chunk in chunks] * parts
    weight = [chunk.predicted_weight_ms if delays else 0.0 for chunk in chunks]
    rows = []
    for stage in range(stages):
        backward = [
            chunk.predicted_backward_ms
            + chunk.recomputed_layers(model_stage) * chunk.predicted_layer_forward_ms
            - later_ms
            for model_stage in range(stage, pipeline.model_stages, stages)
            for chunk, later_ms in zip(chunks, weight, strict=True)
        ]
        rows.append(forward + backward + weight * parts)
    return rows


def schedule_name(pipeline: Pipeline) -> str:
    """The name of the pipeline's schedule, or ``explicit``."""
    return "explicit" if pipeline.order else pipeline.schedule


def runnable(pipeline: Pipeline) -> bool:
    """Whether the training runtime runs it; other schedules are only simulated."""
    if pipeline.order:
        return pipeline.virtual_stages == 1 and not _delays_weights(pipeline)
    return pipeline.schedule in RUNNABLE


def check_order(pipeline: Pipeline, where: str) -> None:
    """Refuse an explicit order that cannot run; PlanError names stage and chunk.

    Each stage runs every pass once, slices left to right and back right to left, a
    backward pass after the forward pass and the weight pass after that; and no stage
    waits for itself through the others.
    """
    if not pipeline.order:
        return
    if len(pipeline.order) != pipeline.stages:
        got = f"orders of {len(pipeline.order)} stages"
        raise refused(where, got, f"one for each of {pipeline.stages} stages, or none")
    kinds = _KINDS if _delays_weights(pipeline) else _KINDS[:2]
    counts = shape_of(pipeline).runs
    spans = zip(itertools.accumulate(counts), counts, strict=True)
    run_of = [range(end - count, end) for end, count in spans for _ in range(count)]
    for stage, order in enumerate(pipeline.order):
        inside = f"{where}, stage {stage}"
        done: set[Op] = set()
        for code in order:
            op = _parsed(code, pipeline, inside)
            if op in done:
                raise refused(inside, f"{code} appears twice", "exactly once")
            for kind, earlier, step, why in _NEEDS:
                chunk = op.chunk + step
                if kind != op.kind or chunk not in run_of[op.chunk]:
                    continue
                if (needed := Op(earlier, chunk, op.part)) not in done:
                    got = f"{code} before {needed.code}"
                    raise refused(f"{inside}, chunk {op.chunk}", got, why)
            done.add(op)
        for chunk, part, kind in itertools.product(
            range(len(pipeline.chunks)), range(pipeline.virtual_stages), kinds
        ):
            if (op := Op(kind, chunk, part)) not in done:
                got = f"chunk {chunk} is dropped, no {op.code}"
                raise refused(inside, got, "every pass of every chunk")
    _run(pipeline, _orders(pipeline), where=where)


def stage_layers(layers: int, stages: int) -> list[range]:
    """Consecutive layers of each stage, as even as possible, first ones larger.

    Raises ValueError where a stage would be empty.
    """
    if stages > layers:
        got = f"{stages} pipeline stages for {layers} layers"
        raise UserError(f"{got}; allowed: at most one stage per layer")
    share, rest = divmod(layers, stages)
    starts = [stage * share + min(stage, rest) for stage in range(stages + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def runs_of(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Neighbouring chunks of a cut sequence together; each other chunk alone."""
    runs: list[list[Chunk]] = []
    for chunk in chunks:
        cut = chunk.cut_sequence
        if runs and cut is not None and cut == runs[-1][-1].cut_sequence:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs


def _orders(pipeline: Pipeline) -> list[list[int]]:
    """The passes of each stage as numbers (``simulation``)."""
    if not pipeline.order:
        return orders_of(pipeline.schedule, shape_of(pipeline))
    chunks, parts = len(pipeline.chunks), pipeline.virtual_stages
    plain = {
        f"{letter}{chunk}": kind * parts * chunks + chunk
        for kind, letter in enumerate(_LETTERS)
        for chunk in range(chunks)
    }

    def number(code: str, stage: int) -> int:
        if code in plain:
            return plain[code]
        op = _parsed(code, pipeline, f"stage {stage}")
        return (_KINDS.index(op.kind) * parts + op.part) * chunks + op.chunk

    return [[number(code, stage) for code in order] for stage, order in enumerate(pipeline.order)]


def _delays_weights(pipeline: Pipeline) -> bool:
    """Whether the order has weight passes."""
    if not pipeline.order:
        return pipeline.schedule == "zero_bubble"
    return any(code.startswith("W") for order in pipeline.order for code in order)


def _run(
    pipeline: Pipeline,
    orders: Sequence[Sequence[int]],
    start_ms: float = 0.0,
    where: str = "the pipeline",
) -> Times:
    """The simulation; PlanError where orders wait for themselves."""
    sends = [chunk.predicted_send_ms for chunk in pipeline.chunks]
    times = run_orders(orders, durations_ms(pipeline), sends, pipeline.virtual_stages, start_ms)
    if times.complete:
        return times
    stage, code = next(
        (stage, _op(number, pipeline).code)
        for stage, order in enumerate(orders)
        for number in order
        if times.ends[stage][number] < 0.0
    )
    got = f"{code} waits for itself by way of other stages"
    raise refused(f"{where}, stage {stage}", got, "orders in which some stage can always go on")


def _op(number: int, pipeline: Pipeline) -> Op:
    rest, chunk = divmod(number, len(pipeline.chunks))
    kind, part = divmod(rest, pipeline.virtual_stages)
    return Op(_KINDS[kind], chunk, part)


def _parsed(code: str, pipeline: Pipeline, where: str) -> Op:
    """An operation of an explicit order; PlanError for an unknown code."""
    chunk, _, part = code[1:].partition(".")
    chunks, parts = len(pipeline.chunks), pipeline.virtual_stages
    shaped = code[:1] in _LETTERS and chunk.isdecimal() and (part.isdecimal() or "." not in code)
    if not shaped or not code.isascii() or not 1 < len(code) <= _LONGEST_CODE:
        shown = code if len(code) <= _LONGEST_CODE else f"{code[:_LONGEST_CODE]}..."
        allowed = "F, B or W and a chunk, as in F0 (F0.1 in virtual stage 1)"
        raise refused(where, f"got {shown!r}", allowed)
    if int(chunk) >= chunks:
        raise refused(where, f"{code} of chunk {chunk}", f"0 to {chunks - 1}")
    if int(part or 0) >= parts:
        raise refused(where, f"{code} of virtual stage {part}", f"0 to {parts - 1}")
    return Op(_KINDS[_LETTERS.index(code[0])], int(chunk), int(part or 0))


def _check_stage(pipeline: Pipeline, stage: int) -> None:
    if not 0 <= stage < pipeline.stages:
        raise refused("stage", f"got {stage}", f"0 to {pipeline.stages - 1}")
