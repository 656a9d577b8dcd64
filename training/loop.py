"""One rank of a training run: the same training under every fabric setting.

A block is one setting in one repeat; each is timed, and the first repeat is traced.
Notable:

* every block starts anew: a process group of the backend ``railx``, the model and the
  optimizer from the same seed. So the losses must agree, and only times may differ;
* iterations begin together, held by a gloo group that the fabric does not see. Losses
  and norms are added up over it after the clock has stopped: what is measured is the
  training alone;
* electrical switching runs first; what it needed in which order is the schedule that
  provisioned switching asks ahead by;
* a block during which others kept the machine busy is marked and run again at the end
  of its repeat, as long as the launch has extra blocks left. It is kept all the same.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from railx.fabric import CircuitSchedule, Controller, FabricSettings, launch_controller
from railx.planning.plan import Plan, read_plan
from railx.planning.schedule import peak_live_chunks
from training import backend
from training.attention import Kernel
from training.data import plan_lengths, read_sequences
from training.engine import Engine
from training.load import Reading, others_share, read_processors
from training.pipeline import PipelineParallel
from training.settings import (
    RunSettings,
    check_plan,
    check_positions,
    fabric_rounds,
)
from training.timeline import Timeline
from training.trace import Recorder
from training.utilisation import peak_memory_bytes, reset_peak_memory

__all__ = ["Block", "Place", "train"]


@dataclass(frozen=True)
class Place:
    """Where this process stands.

    Its rank of ``ranks``, the store that all share, its device and the backend below
    ``railx``.
    """

    rank: int
    ranks: int
    store: Store
    device: torch.device
    inner: Literal["gloo", "nccl"]


@dataclass(frozen=True)
class Block:
    """What all ranks saw under one fabric setting in one repeat (gathered on rank 0).

    A row for each timed iteration and rank, and the trace (None after the first
    repeat). ``load_share`` is the processor time that others took meanwhile, as a share
    of all cores' time; None where the machine does not tell.
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


def train(settings: RunSettings, place: Place) -> Iterator[Block]:
    """Train under every fabric of the sweep, in every repeat.

    Yields each gathered block on rank 0, nothing on other ranks. Raises SettingsError,
    PlanError or ValueError (one line each) before anything is trained where plan,
    corpus, model, ranks or device do not fit together, and SettingsError where the
    address of the fabric's controller cannot be had.
    """
    plan = read_plan(settings.plan)
    check_plan(plan, settings.model, place.ranks)
    lengths = plan_lengths(plan)
    check_positions(settings.model, max(lengths.values()))
    sequences = read_sequences(settings.corpus, lengths, settings.model.vocabulary)
    torch.set_num_threads(settings.training.threads_per_rank)
    schedule: CircuitSchedule | None = None
    number, extra = 0, settings.training.most_extra_repeats
    for repeat, order in enumerate(fabric_rounds(settings)):
        waiting = deque(order)
        while waiting:
            fabric = waiting.popleft()
            recorder = Recorder(place.rank, device=place.device.type)
            with _fabric(fabric, number, place, recorder, settings.training.timeout_s) as (
                control,
                controller,
            ):
                backend.use_schedule(schedule if fabric.mode == "provisioned" else None)
                engine = Engine(
                    settings, plan, sequences, device=place.device, timeline=Timeline(recorder)
                )
                rows, span = _iterations(settings, plan, fabric, place, engine, control, controller)
                if schedule is None:
                    schedule = backend.recorded_schedule()
                trace = recorder.table() if repeat == 0 else None
                gathered = _gather(
                    place,
                    control,
                    (rows, span, trace, *_peaks(settings, plan, engine), engine.parameters),
                )
            block = None
            if gathered is not None:
                block = _merge(settings, fabric, repeat, gathered, engine.kernel)
            if _told(place, number, block) and extra:
                extra -= 1
                waiting.append(fabric)
            number += 1
            if block is not None:
                yield block


def _told(place: Place, number: int, block: Block | None) -> bool:
    """Whether block ``number`` was disturbed; rank 0 has it and tells the others."""
    key = f"disturbed/{number}"
    if block is not None:
        place.store.set(key, str(int(block.disturbed)))
    return bool(place.store.get(key) == b"1")


@contextmanager
def _fabric(
    fabric: FabricSettings, number: int, place: Place, recorder: Recorder, timeout_s: float
) -> Iterator[tuple[dist.ProcessGroup, Controller | None]]:
    """The process group ``railx`` over ``fabric`` for the length of the block.

    Yields the control group, which the fabric never sees, and on rank 0 the controller.
    """
    with launch_controller(fabric, place.ranks) if place.rank == 0 else nullcontext() as controller:
        key = f"controller/{number}"
        if controller is not None:
            place.store.set(key, controller.address or "")
        address = place.store.get(key).decode() or None
        backend.configure(
            backend.BackendOptions(place.inner, address, fabric.mode, fabric.gpus_per_server),
            recorder,
        )
        dist.init_process_group(
            "railx",
            store=PrefixStore(f"block/{number}", place.store),
            rank=place.rank,
            world_size=place.ranks,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            control = dist.new_group(backend="gloo")
            assert isinstance(control, dist.ProcessGroup)
            yield control, controller
            # Nobody leaves while others still talk to it or to its controller.
            dist.barrier(control)
        finally:
            dist.destroy_process_group()


def _iterations(
    settings: RunSettings,
    plan: Plan,
    fabric: FabricSettings,
    place: Place,
    engine: Engine,
    control: dist.ProcessGroup,
    controller: Controller | None,
) -> tuple[list[dict[str, Any]], Reading]:
    """Warm-up and timed iterations on this rank.

    A row for each timed one (the table of the run without what names the run), and the
    processor time that passed while they ran.
    """
    rows = []
    warmup = settings.training.warmup_iterations
    # What the controller does is the training's own work.
    helpers = () if controller is None else controller.processes
    # A full collection with torch loaded stops a rank for longer than an iteration may
    # last; what is set up by now stays.
    gc.collect()
    gc.freeze()
    begin = read_processors(*helpers)
    for iteration in range(warmup + settings.training.iterations):
        batch = plan.batches[iteration % len(plan.batches)]
        engine.forget()
        _synchronize(place.device)
        dist.barrier(control)
        if iteration == warmup:
            begin = read_processors(*helpers)
            dist.barrier(control)
        backend.reset_statistics()
        reset_peak_memory(place.device)
        backend.begin_iteration(iteration)
        stepped = engine.step(batch, iteration)
        _synchronize(place.device)
        iteration_ms = backend.end_iteration() / 1e6
        statistics = backend.statistics()
        whole_loss, squared_norm = _added_up(control, stepped.loss, stepped.squared_norm)
        if iteration >= warmup:
            rows.append(
                {
                    "mode": fabric.mode,
                    "reconfiguration_latency_ms": fabric.reconfiguration_latency_ms,
                    "iteration": iteration,
                    "rank": place.rank,
                    "iteration_ms": iteration_ms,
                    "stall_ms": statistics.stall_ns / 1e6,
                    "wait_ms": statistics.wait_ns / 1e6,
                    "requests": statistics.requests,
                    "held": statistics.held,
                    "reconfigurations": statistics.reconfigurations,
                    "loss": whole_loss,
                    "gradient_norm": squared_norm**0.5,
                    "tokens": batch.tokens,
                    "peak_memory_bytes": peak_memory_bytes(place.device),
                }
            )
    return rows, read_processors(*helpers).since(begin)


def _added_up(control: dist.ProcessGroup, *parts: Tensor) -> list[float]:
    """The sums over all ranks of scalar parts, over the control group."""
    sums = torch.stack([part.detach().to("cpu", torch.float64) for part in parts])
    dist.all_reduce(sums, group=control)
    return [float(value) for value in sums]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peaks(settings: RunSettings, plan: Plan, engine: Engine) -> tuple[int | None, int | None]:
    """The most chunks alive at once on this stage, as counted and as planned.

    None where the plan is no pipeline.
    """
    runner = engine.runner
    if not isinstance(runner, PipelineParallel):
        return None, None
    run = plan.pipeline_batches()[
        : settings.training.warmup_iterations + settings.training.iterations
    ]
    own = [
        pipeline
        for batch in run
        for pipeline in batch.pipelines
        if pipeline.replica == runner.replica
    ]
    return runner.peak_live_chunks, max(
        (peak_live_chunks(pipeline, runner.stage) for pipeline in own), default=0
    )


def _gather(
    place: Place, control: dist.ProcessGroup, item: tuple[Any, ...]
) -> list[tuple[Any, ...]] | None:
    """Every rank's ``item`` in rank order on rank 0, None elsewhere."""
    gathered: list[Any] | None = [None] * place.ranks if place.rank == 0 else None
    dist.gather_object(item, gathered, dst=0, group=control)
    return gathered


def _merge(
    settings: RunSettings,
    fabric: FabricSettings,
    repeat: int,
    gathered: Sequence[tuple[Any, ...]],
    kernel: Kernel,
) -> Block:
    rows, spans, traces, peaks, planned, owned = zip(*gathered, strict=True)
    share = others_share(spans)
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
    )
