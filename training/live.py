"""Training with torch's own parallelisms on the rails: ``python -m training.live
--config resolved.json --out DIR``.

The program is plain PyTorch: FSDP2 over the replicas of a stage, tensor parallelism by
DTensor inside a server, torch's ``Schedule1F1B`` between stages, independent of the
network. Every rank runs it over electrical rails and in both optical modes at each
reconfiguration latency. A further block may kill and restart the controller.

Every block starts from the same seed, so that losses must agree. A barrier on a gloo
group that the fabric does not see starts each iteration. Provisioned blocks announce
circuits by the schedule of the electrical block, which runs first.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from railx.errors import UserError
from railx.fabric import CircuitSchedule, Controller, FabricError, FabricSettings
from railx.fabric.settings import EmulatedSwitchSettings, JournalSettings
from railx.io import read_json, write_json
from railx.places import check_writable
from railx.settings import load, to_dict
from railx_torch import backend
from railx_torch.trace import Recorder
from training.live_program import Program
from training.live_settings import LiveBlock, LiveSettings, journal_path, live_blocks
from training.load import Reading, others_share, read_processors
from training.rails import RankContext, gather_all, labelled, median_ms, on_rails
from training.ranks import UNUSABLE, launch_ranks

#: A block of a few iterations writes less than 1 MiB.
_JOURNAL_MIB = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.live",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, help="resolved settings, JSON")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for iterations, trace and result"
    )
    options = parser.parse_args(arguments)
    try:
        check_writable(options.out, options.out)
        settings: LiveSettings = load(LiveSettings, read_json(options.config))
        options.out.mkdir(parents=True, exist_ok=True)
    except (UserError, OSError) as error:
        _say(error)
        return UNUSABLE
    failure = launch_ranks(
        _rank,
        settings.ranks,
        (to_dict(settings), str(options.out)),
        preload=["training.live_program", "training.rails"],
        expected_errors={UserError: UNUSABLE, FabricError: UNUSABLE},
    )
    if failure is not None:
        sys.stderr.write(failure.trace)
        _say(failure.message)
        return failure.code
    return 0


def _say(message: object) -> None:
    print(f"training.live: error: {message}", file=sys.stderr, flush=True)


def _rank(plain: dict[str, Any], out: str) -> None:
    settings: LiveSettings = load(LiveSettings, plain)
    torch.set_num_threads(1)
    # FSDP2 warns of outputs that are views; this program has no in-place operations.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    store, rank, ranks = next(iter(rendezvous("env://")))
    store.set_timeout(timedelta(seconds=settings.fabric.timeout_s))
    context = RankContext(rank, ranks, store, torch.device("cpu"), "gloo")
    schedule: CircuitSchedule | None = None
    rows: list[dict[str, Any]] = []
    traces: list[pa.Table] = []
    blocks = live_blocks(settings)
    for number, block in enumerate(blocks):
        recorder = Recorder(rank)
        with (
            tempfile.TemporaryDirectory(prefix="railx-", dir=out) as scratch,
            on_rails(
                _fabric(block, Path(scratch), journal_path(Path(out), number)),
                number,
                context,
                recorder,
                block.fabric.timeout_s,
            ) as (control, controller),
        ):
            rank_rows, span = _block(settings, block, context, control, schedule, controller)
            priority = None if controller is None else controller.priority
            schedule = schedule or backend.recorded_schedule()
            gathered = gather_all(context, control, (rank_rows, recorder.table(), span))
        if gathered is not None:
            spans = [item[2] for item in gathered]
            share = None if None in spans else others_share(spans)
            columns = _block_columns(block)
            beside = {"load_share": share, "controller_priority": priority}
            block_rows = [columns | row | beside for item in gathered for row in item[0]]
            rows += block_rows
            traces += [labelled(item[1], columns) for item in gathered]
            _progress(block_rows, number + 1, len(blocks), block)
    if rank == 0:
        pq.write_table(pa.concat_tables(traces), Path(out) / "trace.parquet")
        write_json(Path(out) / "rows.json", rows)


def _fabric(block: LiveBlock, scratch: Path, journal: Path) -> FabricSettings:
    """A block's fabric with a journal, and light that outlives its controller."""
    fabric = block.fabric
    if fabric.journal is None:
        fabric = replace(fabric, journal=JournalSettings(str(journal), _JOURNAL_MIB))
    if not block.controller_restarted or not isinstance(fabric.switch, EmulatedSwitchSettings):
        return fabric
    return replace(fabric, switch=replace(fabric.switch, state_file=str(scratch / "light.json")))


def _block(
    settings: LiveSettings,
    block: LiveBlock,
    context: RankContext,
    control: dist.ProcessGroup,
    schedule: CircuitSchedule | None,
    controller: Controller | None,
) -> tuple[list[dict[str, Any]], Reading]:
    """A row per timed iteration of this rank, and the processor time of them all."""
    if block.fabric.mode == "provisioned":
        backend.use_schedule(schedule)
    program = Program(settings)
    helpers = () if controller is None else controller.processes
    rows: list[dict[str, Any]] = []
    gc.collect()
    gc.freeze()
    begin = read_processors(*helpers)
    restart = settings.warmup_iterations + settings.iterations // 2
    iteration_ms = 0.0
    for iteration in range(settings.warmup_iterations + settings.iterations):
        dist.barrier(control)
        if iteration == settings.warmup_iterations:
            begin = read_processors(*helpers)
            dist.barrier(control)
        backend.reset_statistics()
        backend.begin_iteration(iteration)
        killer = None
        if block.controller_restarted and controller is not None and iteration == restart:
            # In the middle of the iteration, by the time of the last one.
            killer = threading.Timer(iteration_ms / 2000, controller.restart)
            killer.start()
        loss = program.step(iteration)
        iteration_ms = backend.end_iteration() / 1e6
        if killer is not None:
            killer.join()
        counts = backend.statistics()
        losses: list[float | None] = [None] * context.ranks
        dist.all_gather_object(losses, loss, group=control)
        reported = [item for item in losses if item is not None]
        mean_loss = sum(reported) / len(reported)
        if not math.isfinite(mean_loss):
            raise UserError(
                f"learning_rate: got loss {mean_loss:.4g} in step {iteration + 1} with"
                f" {settings.learning_rate:g}; allowed: a rate with which it stays finite"
            )
        if iteration >= settings.warmup_iterations:
            rows.append(
                {
                    "iteration": iteration,
                    "rank": context.rank,
                    "iteration_ms": iteration_ms,
                    "stall_ms": counts.stall_ns / 1e6,
                    "wait_ms": counts.wait_ns / 1e6,
                    "requests": counts.requests,
                    "held": counts.held,
                    "reconfigurations": counts.reconfigurations,
                    "phase_changes": counts.phase_changes,
                    "mispredictions": counts.mispredictions,
                    "loss": mean_loss,
                }
            )
    # Frozen, the program would never be freed.
    gc.unfreeze()
    return rows, read_processors(*helpers).since(begin)


def _block_columns(block: LiveBlock) -> dict[str, Any]:
    """The columns that identify the block in tables, and the fidelity of its times."""
    mode = block.fabric.mode
    return {
        "mode": mode,
        "reconfiguration_latency_ms": block.fabric.reconfiguration_latency_ms,
        "controller_restarted": block.controller_restarted,
        "fidelity": "measured_cpu" if mode == "electrical" else "emulated",
    }


def _progress(rows: Sequence[dict[str, Any]], number: int, of: int, block: LiveBlock) -> None:
    print(
        f"[{number}/{of}] {block.fabric.mode}, {block.fabric.reconfiguration_latency_ms:g} ms"
        f"{', controller restarted' if block.controller_restarted else ''}:"
        f" {median_ms(rows):.0f} ms per iteration, loss {rows[-1]['loss']:.4f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
