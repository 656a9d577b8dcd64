"""One rank of a training run: the same training under every fabric setting.

A block is one setting in one repeat; each is timed, and the first repeat is traced.
Notable:

* every block creates its process group of the backend ``railx``, and its model and
  optimizer from the same seed. So the losses must agree, and only times may differ;
* a barrier on a gloo group that the fabric does not see starts each iteration. Losses
  and norms are summed over this group after the clock has stopped: the measured time is
  that of training;
* electrical switching runs first; the order of its operations is the schedule by which
  provisioned switching announces circuits;
* a block during which other processes used the machine is marked as disturbed and run
  again at the end of its repeat, as long as the launch has extra blocks left. Its rows
  stay in the results;
* a finished block is stored at once, and checkpoints are written between two steps, off
  the clock. A killed run continues with the first unfinished block, from that block's
  last checkpoint. The times of such a block come from two launches, so it is marked as
  disturbed;
* where batches are planned while the one before is trained, a rank waits for its plan
  and creates new process groups off the clock; rows have the waiting time.
"""

from __future__ import annotations

import gc
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor

from railx.errors import UserError
from railx.fabric import CircuitSchedule, Configuration, Controller, FabricSettings
from railx.planning.format.files import read_plan
from railx.planning.format.plan import Plan
from railx.planning.format.schedule import peak_live_chunks
from railx_torch import backend
from railx_torch.trace import Recorder, join_traces
from training.attention import Kernel
from training.checkpoint import (
    Checkpoint,
    check_checkpoint,
    load_checkpoint,
    save_checkpoint,
    trained,
)
from training.data import Sequences, plan_lengths, read_sequences
from training.engine import Engine
from training.load import Reading, others_share, read_processors
from training.pipeline import PipelineParallel
from training.pipeline_memory import PassLog
from training.planning import Planning, check_planning, planning_ahead
from training.rails import RankContext, gather_all, on_rails
from training.settings import RunSettings, check_plan, check_positions, fabric_rounds
from training.timeline import Timeline
from training.unfinished import Unfinished, read_part, write_part
from training.utilisation import peak_memory_bytes, reset_peak_memory

#: A schedule as JSON: iteration -> kind and members of each operation.
_Schedule = dict[str, list[list[Any]]]


@dataclass(frozen=True)
class Block:
    """The results of one fabric setting in one repeat, gathered on rank 0.

    ``rows`` has a row per timed iteration and rank, ``trace`` the events (None after
    the first repeat). The first block has ``schedules``, the circuits of each rank's
    operations, and with pipelines ``passes``, the memory after each pass of the last
    warm-up step. ``process_groups`` counts the groups of sequence parallelism, created
    in ``group_creation_ms`` (time of the slowest rank); None with pipelines.
    ``load_share`` is the processor time of other processes as a share of all cores'
    time; None without /proc, and for a block of two launches.
    """

    fabric: FabricSettings
    repeat: int
    load_share: float | None
    disturbed: bool
    rows: list[dict[str, Any]]
    trace: pa.Table | None
    attention: Kernel
    parameters: int
    peak_live_chunks: list[int] | None
    planned_peak_live_chunks: list[int] | None
    schedules: list[_Schedule] | None = None
    passes: list[dict[str, Any]] | None = None
    process_groups: int | None = None
    group_creation_ms: float | None = None


@dataclass(frozen=True)
class _Launch:
    """The constants of all blocks of a launch on this rank."""

    settings: RunSettings
    plan: Plan
    sequences: Sequences
    context: RankContext
    trained: Mapping[str, Any]
    unfinished: Unfinished
    resumed: Checkpoint | None
    planning: Planning | None = None

    @property
    def begun(self) -> int:
        """The step that blocks begin with."""
        return 0 if self.resumed is None else self.resumed.step

    @property
    def end(self) -> int:
        """The step behind the last one."""
        training = self.settings.training
        return training.warmup_iterations + training.iterations


@dataclass(frozen=True)
class _Earlier:
    """The state that an earlier launch left, on every rank.

    ``disturbed`` has a flag per finished block, ``schedule`` the circuits of this
    rank's operations in the first one, ``step`` is the step of the next block's
    checkpoint (0: none). ``blocks`` is empty except on rank 0.
    """

    disturbed: list[bool]
    schedule: CircuitSchedule | None
    step: int
    blocks: list[tuple[dict[str, Any], pa.Table | None]]


def train(
    settings: RunSettings,
    context: RankContext,
    unfinished: Unfinished,
    resumed: Checkpoint | None = None,
) -> Iterator[Block]:
    """Train under every fabric of the sweep, in every repeat.

    Yields the gathered blocks on rank 0, nothing on other ranks; blocks of an earlier
    launch come first. ``unfinished`` stores finished blocks, all blocks begin with the
    checkpoint ``resumed``. Raises SettingsError, PlanError or ValueError (one line
    each) before training where plan, corpus, model, ranks, device or checkpoint do not
    fit together, and SettingsError where the controller cannot bind its address.
    """
    plan = read_plan(settings.plan)
    check_plan(plan, settings.model, context.ranks, settings.training)
    check_planning(settings, plan)
    lengths = plan_lengths(plan)
    check_positions(settings.model, max(lengths.values()))
    sequences = read_sequences(settings.corpus, lengths, settings.model.vocabulary)
    if resumed is not None:
        check_checkpoint(resumed, settings, plan, sequences)
    torch.set_num_threads(settings.training.threads_per_rank)
    description = trained(settings, plan, sequences)
    with planning_ahead(settings, plan, context.rank) as planning:
        launch = _Launch(
            settings, plan, sequences, context, description, unfinished, resumed, planning
        )
        yield from _blocks(launch)


def _blocks(launch: _Launch) -> Iterator[Block]:
    settings, context = launch.settings, launch.context
    earlier = _earlier(launch)
    schedule = earlier.schedule
    number, extra = 0, settings.training.most_extra_repeats
    for repeat, order in enumerate(fabric_rounds(settings)):
        waiting = deque(order)
        while waiting:
            fabric = waiting.popleft()
            block = None
            if number < len(earlier.disturbed):
                disturbed = earlier.disturbed[number]
                if earlier.blocks:
                    facts, trace = earlier.blocks[number]
                    block = Block(**{**facts, "fabric": fabric, "trace": trace})
            else:
                goes_on = earlier.step if number == len(earlier.disturbed) else 0
                block, recorded = _trained(launch, fabric, repeat, number, schedule, goes_on)
                if schedule is None:
                    schedule = recorded
                disturbed = _broadcast_disturbed(context, number, block)
            if disturbed and extra:
                extra -= 1
                waiting.append(fabric)
            number += 1
            if block is not None:
                yield block


def _trained(
    launch: _Launch,
    fabric: FabricSettings,
    repeat: int,
    number: int,
    schedule: CircuitSchedule | None,
    goes_on: int,
) -> tuple[Block | None, CircuitSchedule]:
    """One block, gathered and stored on rank 0, and the schedule of this rank.

    ``goes_on`` is the step of the block's checkpoint by an earlier launch, or 0.
    """
    settings, plan, context = launch.settings, launch.plan, launch.context
    recorder = Recorder(context.rank, device=context.device.type)
    first = goes_on or launch.begun
    # A block whose last step has a checkpoint takes no batch; the next block would take
    # the answer.
    if launch.planning is not None and first < launch.end:
        launch.planning.ask(first)
    with on_rails(fabric, number, context, recorder, settings.training.timeout_s) as (
        control,
        controller,
    ):
        backend.use_schedule(schedule if fabric.mode == "provisioned" else None)
        engine = Engine(
            settings, plan, launch.sequences, device=context.device, timeline=Timeline(recorder)
        )
        start = launch.unfinished.checkpoint() if goes_on else launch.resumed
        if start is not None:
            load_checkpoint(start, engine, control)
        before = read_part(start.folder) if goes_on and start is not None else None
        log = engine.pass_log() if number == 0 and not goes_on else None
        warm = launch.begun + settings.training.warmup_iterations - 1

        def gather(rows: Sequence[dict[str, Any]], span: Reading | None) -> Block | None:
            trace = recorder.table() if repeat == 0 else None
            needed = _plain(backend.recorded_schedule()) if number == 0 else None
            groups = engine.groups
            group_counts = (None, None) if groups is None else (len(groups), groups.creation_ms)
            item = (
                *(rows, span, trace, *_peaks(settings, plan, engine)),
                *(engine.parameters, needed, *group_counts, _passes(log, context.rank, warm)),
            )
            gathered = gather_all(context, control, item)
            if gathered is None:
                return None
            return _after(before, _merge(settings, fabric, repeat, gathered, engine.kernel))

        def save(step: int, rows: Sequence[dict[str, Any]]) -> None:
            so_far = gather(rows, None)

            def also(folder: Path) -> None:
                assert so_far is not None
                write_part(folder, _facts(so_far), so_far.trace)

            if context.rank == 0:
                launch.unfinished.begin()
            save_checkpoint(
                launch.unfinished.folder,
                engine,
                block=number,
                step=step,
                trained=launch.trained,
                control=control,
                also=also,
            )

        rows, span = _iterations(
            launch, fabric, engine, control, controller, goes_on, save, {warm: log}
        )
        recorded = backend.recorded_schedule()
        if before is not None and number == 0:
            # All ranks see the checkpoint.
            earlier = _schedule(before[0]["schedules"][context.rank])
            recorded = CircuitSchedule({**earlier.iterations, **recorded.iterations})
        block = gather(rows, span)
        if block is not None:
            launch.unfinished.keep(number, _facts(block), block.trace)
    return block, recorded


def _broadcast_disturbed(context: RankContext, number: int, block: Block | None) -> bool:
    """Whether block ``number`` was disturbed; rank 0 broadcasts it."""
    key = f"disturbed/{number}"
    if block is not None:
        context.store.set(key, str(int(block.disturbed)))
    return bool(context.store.get(key) == b"1")


def _iterations(
    launch: _Launch,
    fabric: FabricSettings,
    engine: Engine,
    control: dist.ProcessGroup,
    controller: Controller | None,
    goes_on: int,
    save: Callable[[int, Sequence[dict[str, Any]]], None],
    logs: Mapping[int, PassLog | None],
) -> tuple[list[dict[str, Any]], Reading]:
    """Warm-up and timed iterations on this rank.

    Returns a row per timed iteration (without the columns of the run) and the processor
    time of all timed iterations. A resumed block has no second warm-up. ``save`` takes
    the number of finished steps and the rows, ``logs`` has observers by iteration.
    """
    settings, plan, planning = launch.settings, launch.plan, launch.planning
    context = launch.context
    rows: list[dict[str, Any]] = []
    warmup = launch.begun + settings.training.warmup_iterations
    every = settings.training.checkpoint_every
    # The work of controller and planner is part of training.
    helpers = (
        *(() if controller is None else controller.processes),
        *(() if planning is None else planning.processes),
    )
    # A full collection with torch loaded takes longer than an iteration; freeze the
    # objects that live as long as the block.
    gc.collect()
    gc.freeze()
    begin = read_processors(*helpers)
    for iteration in range(goes_on or launch.begun, launch.end):
        batch = plan.batches[iteration % len(plan.batches)]
        planning_ms, waited_ms = None, None
        if planning is not None:
            following = iteration + 1 if iteration + 1 < launch.end else None
            planned = planning.take(iteration, following, control)
            batch, planning_ms, waited_ms = planned.batch, planned.planning_ms, planned.waited_ms
            engine.prepare(batch)
        engine.forget()
        _synchronize(context.device)
        dist.barrier(control)
        if iteration == warmup:
            begin = read_processors(*helpers)
            dist.barrier(control)
        backend.reset_statistics()
        reset_peak_memory(context.device)
        backend.begin_iteration(iteration)
        stepped = engine.step(batch, iteration, logs.get(iteration))
        _synchronize(context.device)
        iteration_ms = backend.end_iteration() / 1e6
        statistics = backend.statistics()
        loss, squared_norm = _added_up(control, stepped.loss, stepped.squared_norm)
        if not math.isfinite(loss + squared_norm):
            raise UserError(
                f"training.optimizer: got loss {loss:.4g} and gradient norm {squared_norm**0.5:.4g}"
                f" in step {iteration + 1}; allowed: settings with which both stay finite, as a"
                " lower learning_rate"
            )
        if iteration >= warmup:
            rows.append(
                {
                    "mode": fabric.mode,
                    "reconfiguration_latency_ms": fabric.reconfiguration_latency_ms,
                    "iteration": iteration,
                    "rank": context.rank,
                    "iteration_ms": iteration_ms,
                    "stall_ms": statistics.stall_ns / 1e6,
                    "wait_ms": statistics.wait_ns / 1e6,
                    "requests": statistics.requests,
                    "held": statistics.held,
                    "reconfigurations": statistics.reconfigurations,
                    "loss": loss,
                    "gradient_norm": squared_norm**0.5,
                    "tokens": batch.tokens,
                    "peak_memory_bytes": peak_memory_bytes(context.device),
                    "planning_ms": planning_ms,
                    "planning_wait_ms": waited_ms,
                }
            )
        if every and (iteration + 1) % every == 0:
            save(iteration + 1, rows)
    # Frozen objects are never freed where they refer to each other, as parameters and
    # their hooks do.
    gc.unfreeze()
    return rows, read_processors(*helpers).since(begin)


def _added_up(control: dist.ProcessGroup, *parts: Tensor) -> list[float]:
    sums = torch.stack([part.detach().to("cpu", torch.float64) for part in parts])
    dist.all_reduce(sums, group=control)
    return [float(value) for value in sums]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peaks(settings: RunSettings, plan: Plan, engine: Engine) -> tuple[int | None, int | None]:
    """The most live chunks here, counted and planned; None without a pipeline."""
    runner = engine.runner
    if not isinstance(runner, PipelineParallel):
        return None, None
    training = settings.training
    planned = (
        peak_live_chunks(pipeline, runner.stage)
        for batch in plan.pipeline_batches()[: training.warmup_iterations + training.iterations]
        for pipeline in batch.pipelines
        if pipeline.replica == runner.replica
    )
    return runner.peak_live_chunks, max(planned, default=0)


def _passes(log: PassLog | None, rank: int, iteration: int) -> list[dict[str, Any]] | None:
    """A row for each recorded pass of this rank; None without a log."""
    if log is None:
        return None
    runner = log.runner
    where = {"iteration": iteration, "rank": rank, "replica": runner.replica}
    where |= {"stage": runner.stage, "place": runner.sequence_rank}
    return [
        where | {"position": position} | asdict(record)
        for position, record in enumerate(log.operations())
    ]


def _merge(
    settings: RunSettings,
    fabric: FabricSettings,
    repeat: int,
    gathered: Sequence[tuple[Any, ...]],
    kernel: Kernel,
) -> Block:
    rows, spans, traces, peaks, planned, owned, needed, groups, times, passes = zip(
        *gathered, strict=True
    )
    share = None if None in spans else others_share(spans)
    return Block(
        fabric=fabric,
        repeat=repeat,
        load_share=share,
        disturbed=share is not None and share > settings.training.disturbed_share,
        rows=[row for rank_rows in rows for row in rank_rows],
        trace=None if repeat else pa.concat_tables(traces),
        attention=kernel,
        parameters=sum(owned),
        peak_live_chunks=None if None in peaks else list(peaks),
        planned_peak_live_chunks=None if None in planned else list(planned),
        schedules=None if None in needed else list(needed),
        passes=None if None in passes else [row for rank_rows in passes for row in rank_rows],
        process_groups=groups[0],
        group_creation_ms=None if None in times else max(times),
    )


# ---- resuming a run


def _earlier(launch: _Launch) -> _Earlier:
    """Read the state of an earlier launch on rank 0 and broadcast it."""
    context, blocks = launch.context, []
    if context.rank == 0:
        blocks = list(launch.unfinished.blocks())
        last = launch.unfinished.checkpoint()
        step = last.step if last is not None and last.block == len(blocks) else 0
        needed = blocks[0][0]["schedules"] if blocks else None
        for rank in range(context.ranks):
            message = {
                "disturbed": [facts["disturbed"] for facts, _ in blocks],
                "schedule": needed[rank] if needed else None,
                "step": step,
            }
            context.store.set(f"earlier/{rank}", json.dumps(message))
    message = json.loads(context.store.get(f"earlier/{context.rank}"))
    schedule = None if message["schedule"] is None else _schedule(message["schedule"])
    return _Earlier(message["disturbed"], schedule, message["step"], blocks)


def _facts(block: Block) -> dict[str, Any]:
    """A block as JSON, without its trace."""
    return {
        field.name: asdict(block.fabric) if field.name == "fabric" else getattr(block, field.name)
        for field in fields(block)
        if field.name != "trace"
    }


def _after(before: tuple[dict[str, Any], pa.Table | None] | None, block: Block) -> Block:
    """A block joined with its part from an earlier launch, marked as disturbed."""
    if before is None:
        return block
    facts, trace = before
    peaks = [
        max(pair)
        for pair in zip(facts["peak_live_chunks"] or (), block.peak_live_chunks or (), strict=True)
    ]
    schedules = [
        {**earlier, **later}
        for earlier, later in zip(facts["schedules"] or (), block.schedules or (), strict=True)
    ]
    both = trace is not None and block.trace is not None
    return replace(
        block,
        load_share=None,
        disturbed=True,
        rows=[*facts["rows"], *block.rows],
        trace=join_traces(trace, block.trace) if both else None,
        peak_live_chunks=peaks or None,
        schedules=schedules or None,
        passes=facts["passes"],
    )


def _plain(schedule: CircuitSchedule) -> _Schedule:
    return {
        str(iteration): [
            [configuration.kind, list(configuration.members)] for configuration in operations
        ]
        for iteration, operations in schedule.iterations.items()
    }


def _schedule(plain: _Schedule) -> CircuitSchedule:
    return CircuitSchedule(
        {
            int(iteration): tuple(Configuration(kind, tuple(members)) for kind, members in circuits)
            for iteration, circuits in plain.items()
        }
    )
