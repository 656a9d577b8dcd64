"""Programs of the ranks of a generated step.

All ranks of a stage do the same, so a program is made once for each stage and laid over
the stage's ranks (:func:`lay_over_ranks`). What stays inside a server is folded into
computation: it needs no circuits, and no other rank waits for it. Where one rail stands
for all of a server, ranks are those of rail 0: rails do the same at the same time.

Forward and backward messages of a pair of stages use separate channels, so that neither
waits behind the other. A stage receives when it has nothing else to do, and goes on
while it sends. Shards (FSDP) are gathered one unit ahead, and again in the backward
pass; gradients are scattered after the last micro-batch's backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from railx.fabric.circuits import Configuration
from railx.performance.networks import Kind, ring_bytes
from railx.performance.programs import constants_named
from railx.planning.format.simulation import Shape, orders_of
from railx.replay.programs import DOES, KINDS, Programs
from railx.steps.experts import expert_templates
from railx.steps.layers import Direction, Unit, hop_bytes, layer_segments, stage_units
from railx.steps.settings import StepJob
from railx.steps.template import Template
from railx.vocabulary.arrays import Array

#: The last word of a channel's name by the lane of an operation, alike on both ends of
#: a message.
_CHANNELS = {
    "from_before": "forward",
    "to_next": "forward",
    "from_next": "backward",
    "to_before": "backward",
    **{lane: lane for lane in ("data", "expert", "context", "tensor")},
}
#: The parallelism of a channel, and of an operation on the rails by its lane.
PARALLELISMS_OF_CHANNELS = {
    "forward": "PP",
    "backward": "PP",
    "data": "DP",
    "expert": "EP",
    "context": "CP",
    "tensor": "TP",
}
PARALLELISMS = {lane: PARALLELISMS_OF_CHANNELS[word] for lane, word in _CHANNELS.items()}
_LANES = tuple(PARALLELISMS)
#: Bytes of a small reduction: one number.
_NUMBER = 4


def templates(job: StepJob, *, electrical: bool) -> list[Template]:
    """The program of every stage, for one step of training."""
    if job.expert_counts is not None:
        return expert_templates(job, electrical=electrical)
    units = stage_units(job)
    stages, parts = job.degrees.pipeline, job.parts
    orders = orders_of(job.schedule, Shape(stages, [1] * job.micro_batches, parts))
    return [
        _Stage(job, stage, units[stage], electrical).program(orders[stage])
        for stage in range(stages)
    ]


class _Stage:
    """Writes the program of one stage."""

    def __init__(
        self, job: StepJob, stage: int, units: Sequence[Sequence[Unit]], electrical: bool
    ) -> None:
        self._job, self._stage, self._units = job, stage, units
        self._rate = job.device.scale_out_gb_s
        self._template = Template()
        #: Issued messages by lane, and issued reductions.
        self._sends: dict[str, tuple[str, int]] = {}
        self._reductions: list[tuple[str, int]] = []
        self._segments = {
            (part, number, direction): layer_segments(job, unit, direction, electrical=electrical)
            for part, part_units in enumerate(units)
            for number, unit in enumerate(part_units)
            for direction in ("forward", "backward")
        }

    def program(self, order: Sequence[int]) -> Template:
        template, n, parts = self._template, self._job.micro_batches, self._job.parts
        template.begin()
        for entry in order:
            backward, rest = divmod(entry, n * parts)
            part, micro_batch = divmod(rest, n)
            self._run(part, "backward" if backward else "forward", micro_batch == n - 1)
        if self._job.parameters == "replicated" and self._job.gradients == "at_end":
            for part_units in self._units:
                for unit in reversed(part_units):
                    self._reduce(unit)
        if self._job.degrees.data > 1:
            for _ in range(self._job.small_reductions):
                self._wait_for_reductions()
                self._reductions.append(self._exchange("all_reduce", _NUMBER))
        for lane in list(self._sends):
            template.wait(self._sends.pop(lane))
        self._wait_for_reductions()
        if self._job.host is not None:
            template.compute(1e9 * constants_named(self._job.host.constants).step_s)
        template.end()
        return template

    def _issue(self, lane: str, kind: str, payload: float, sent: float) -> tuple[str, int]:
        return self._template.issue(lane, kind, sent / self._rate, payload, sent)

    def _wait_for_reductions(self) -> None:
        for operation in self._reductions:
            self._template.wait(operation)
        self._reductions.clear()

    def _run(self, part: int, direction: Direction, last: bool) -> None:
        """One pass: receive, go through the units, send."""
        stages, parts = self._job.degrees.pipeline, self._job.parts
        model_stage = part * stages + self._stage
        begins, ends = model_stage == 0, model_stage == stages * parts - 1
        forward = direction == "forward"
        if not (begins if forward else ends):
            lane = "from_before" if forward else "from_next"
            self._template.wait(self._hop(lane, "recv"))
        self._go_through(part, direction, last)
        if not (ends if forward else begins):
            lane = "to_next" if forward else "to_before"
            if lane in self._sends:
                self._template.wait(self._sends.pop(lane))
            self._sends[lane] = self._hop(lane, "send")

    def _hop(self, lane: str, kind: str) -> tuple[str, int]:
        if self._job.degrees.pipeline == 1:
            raise ValueError("a pipeline of one stage has no next stage")
        size = hop_bytes(self._job)
        return self._issue(lane, kind, size, size)

    def _go_through(self, part: int, direction: Direction, last: bool) -> None:
        numbers = range(len(self._units[part]))
        if direction == "backward":
            numbers = numbers[::-1]
        sharded = self._job.parameters == "sharded" and self._job.degrees.data > 1
        gathers = [self._units[part][number] for number in numbers] if sharded else []
        ahead = self._of_unit("all_gather", gathers.pop(0)) if gathers else None
        for number in numbers:
            if ahead is not None:
                now = ahead
                ahead = self._of_unit("all_gather", gathers.pop(0)) if gathers else None
                self._template.wait(now)
            for segment in self._segments[part, number, direction]:
                if segment.on_rail:
                    kind = "all_to_all" if segment.kind == "expert" else "all_gather"
                    payload, sent = segment.payload_bytes, segment.sent_bytes
                    self._template.wait(self._issue(segment.kind, kind, payload, sent))
                else:
                    self._template.compute(segment.lasts_ns, tensor=segment.kind != "compute")
                    self._template.tensor_bytes += segment.sent_bytes
            if direction == "backward" and last:
                self._after_backward(self._units[part][number])

    def _exchange(self, kind: Kind, size_bytes: float) -> tuple[str, int]:
        """Issue a collective over the replicas."""
        sent = ring_bytes(kind, size_bytes, self._job.degrees.data)
        return self._issue("data", kind, size_bytes, sent)

    def _of_unit(self, kind: Kind, unit: Unit) -> tuple[str, int]:
        return self._exchange(kind, unit.parameters * self._job.bytes_per_element)

    def _after_backward(self, unit: Unit) -> None:
        if self._job.parameters == "sharded":
            self._reduce(unit, "reduce_scatter")
        elif self._job.gradients != "at_end":
            self._reduce(unit)
            if self._job.gradients == "in_line":
                self._wait_for_reductions()

    def _reduce(self, unit: Unit, kind: Kind = "all_reduce") -> None:
        if self._job.degrees.data > 1:
            self._reductions.append(self._of_unit(kind, unit))


def job_ranks(job: StepJob, *, all_ranks: bool) -> int:
    """Ranks that are replayed."""
    return job.degrees.ranks // (1 if all_ranks else job.degrees.server)


def _grid(job: StepJob, *, all_ranks: bool) -> Array:
    """Numbers of the ranks: int[stages, data, context, server]."""
    degrees = job.degrees
    context = 1 if degrees.context_in_server else degrees.context
    shape = (degrees.pipeline, degrees.data, context, degrees.server if all_ranks else 1)
    return np.arange(np.prod(shape)).reshape(shape)


def _members(grid: Array, job: StepJob, lane: str, rank: int) -> tuple[int, ...]:
    """The ranks that an operation of a lane joins, for a rank."""
    stage, data, context, inside = (int(index) for index in np.unravel_index(rank, grid.shape))
    if lane in ("to_next", "from_next"):
        return rank, int(grid[(stage + 1) % len(grid), data, context, inside])
    if lane in ("from_before", "to_before"):
        return int(grid[stage - 1, data, context, inside]), rank
    if lane == "context":
        return tuple(grid[stage, data, :, inside].tolist())
    group = grid[stage, :, context, inside].tolist()
    if lane == "expert":
        servers = job.degrees.expert_servers
        first = data // servers * servers
        group = group[first : first + servers]
    return tuple(group)


def programs(
    job: StepJob,
    *,
    electrical: bool,
    iterations: int,
    all_ranks: bool,
    stage_templates: Sequence[Template] | None = None,
) -> Programs:
    """The programs of all ranks over a number of training steps.

    ``electrical``: packet switches join all ranks of a rail. ``all_ranks``: otherwise
    those of rail 0 alone. ``stage_templates`` stand in for those of the job.
    """
    grid = _grid(job, all_ranks=all_ranks)
    return lay_over_ranks(
        stage_templates or templates(job, electrical=electrical),
        np.repeat(np.arange(len(grid)), grid[0].size).tolist(),
        lambda lane, rank: _members(grid, job, lane, rank),
        iterations,
    )


def lay_over_ranks(
    stage_templates: Sequence[Template],
    stages: Sequence[int],
    members_of: Callable[[str, int], tuple[int, ...]],
    iterations: int = 1,
) -> Programs:
    """The programs of ranks of which rank r is of stage ``stages[r]``.

    ``members_of``: the ranks that an operation of a lane joins, for a rank; of a
    message the earlier stage first.
    """
    by_stage = [_columns(template, iterations) for template in stage_templates]
    channels: dict[str, int] = {}
    configurations: dict[Configuration, int] = {}
    columns: dict[str, list[Array]] = {name: [] for name in ("rank", *by_stage[0])}
    columns |= {"channel": [], "configuration": []}
    for rank, stage in enumerate(stages):
        stage_columns = by_stage[stage]
        channel = np.full(len(_LANES) + 1, -1, np.int64)
        configuration = channel.copy()
        for number in np.unique(stage_columns["lane"]):
            if number < 0:
                continue
            lane = _LANES[number]
            members = members_of(lane, rank)
            kind: Literal["pair", "ring"] = "pair" if PARALLELISMS[lane] == "PP" else "ring"
            name = f"{','.join(map(str, members))}:{_CHANNELS[lane]}"
            channel[number] = channels.setdefault(name, len(channels))
            needed = Configuration(kind, members)
            configuration[number] = configurations.setdefault(needed, len(configurations))
        columns["rank"].append(np.full(len(stage_columns["lane"]), rank))
        columns["channel"].append(channel[stage_columns["lane"]])
        columns["configuration"].append(configuration[stage_columns["lane"]])
        for name, values in stage_columns.items():
            columns[name].append(values)
    del columns["lane"]
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    return Programs.from_columns(joined, list(channels), list(configurations))


def _columns(template: Template, iterations: int) -> dict[str, Array]:
    """The moves of a stage as columns, over the iterations; lanes by number."""
    moves = template.moves
    once = {
        "does": [DOES.index(move.does) for move in moves],
        "gap_ns": [move.gap_ns for move in moves],
        "lane": [_LANES.index(move.lane) if move.lane else -1 for move in moves],
        "kind": [KINDS.index(move.kind) if move.kind else -1 for move in moves],
        "bytes": [move.payload_bytes for move in moves],
        "lasts_ns": [move.lasts_ns for move in moves],
    }
    repeated = {name: np.tile(np.array(values), iterations) for name, values in once.items()}
    number = np.array([move.number for move in moves])
    used = np.array([template.used[move.lane] if move.lane else 0 for move in moves])
    iteration = np.repeat(np.arange(iterations), len(moves))
    sequence = np.tile(number, iterations) + iteration * np.tile(used, iterations)
    return {**repeated, "iteration": iteration, "sequence": sequence}
