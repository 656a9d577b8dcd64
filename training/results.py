"""The files of a run, written by rank 0 at its end: iterations, traces, summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from railx.fabric import FabricSettings
from railx.io import Fidelity, write_json, write_table
from railx.planning.format.plan import Plan
from railx_torch.trace import write_chrome_trace
from training.loop import Block
from training.rails import RankContext, labelled
from training.settings import RunSettings, fabric_sweep
from training.utilisation import used

SCHEMA = "railx.training/2"
_TEXT, _INTEGER, _REAL = pa.string(), pa.int64(), pa.float64()
#: The table of passes.
_PASSES = pa.schema(
    [
        *((name, _TEXT) for name in ("run", "plan", "device")),
        *((name, _INTEGER) for name in ("iteration", "rank", "replica", "stage", "place")),
        *((name, _INTEGER) for name in ("position", "pipeline")),
        *(("kind", _TEXT), ("chunk", _INTEGER), ("start_ms", _REAL), ("end_ms", _REAL)),
        *((name, _INTEGER) for name in ("live_chunks", "predicted_live_chunks")),
        *((name, _INTEGER) for name in ("held_bytes", "peak_bytes", "predicted_held_bytes")),
        ("fidelity", _TEXT),
    ]
)

#: Times of an iteration, the slowest rank's, and counts, the mean of the ranks.
_TIMES, _COUNTS = ("iteration_ms", "stall_ms", "wait_ms"), ("requests", "held", "reconfigurations")


@dataclass(frozen=True)
class _BlockTimes:
    """A block, with medians of times and rates and means of counts over iterations."""

    block: Block
    columns: dict[str, float]


def write_results(
    folder: Path,
    settings: RunSettings,
    plan: Plan,
    context: RankContext,
    blocks: Sequence[Block],
    load_average: Sequence[float] | None,
    begun: int = 0,
) -> dict[str, Any]:
    """Write the results of a run into ``folder``; returns the summary.

    iterations.parquet, passes.parquet, trace.parquet, trace.json, and at the end
    result.json. Traces cover the first repeat; the Chrome trace has the timed
    iterations, the trace table the warm-up too.
    """
    summed = summary(settings, plan, context, blocks, load_average, begun)
    timed = begun + settings.training.warmup_iterations
    iterations = pa.Table.from_pylist(iteration_rows(settings, plan, context, blocks))
    # Arrow cannot infer the type of a column without values.
    reals = dict.fromkeys(("load_share", "planning_ms", "planning_wait_ms"), _REAL)
    for name, kind in (reals | {"peak_memory_bytes": _INTEGER}).items():
        column = iterations.column(name).cast(kind)
        iterations = iterations.set_column(iterations.schema.get_field_index(name), name, column)
    write_table(folder / "iterations.parquet", iterations)
    rows = pass_rows(settings, context, blocks)
    write_table(folder / "passes.parquet", pa.Table.from_pylist(rows, schema=_PASSES))
    trace = _trace(blocks, context)
    write_table(
        folder / "trace.parquet", trace, metadata={"run": settings.name, "warmup_iterations": timed}
    )
    write_chrome_trace(folder / "trace.json", trace.filter(pc.field("iteration") >= timed))
    write_json(folder / "result.json", summed)
    return summed


def iteration_rows(
    settings: RunSettings, plan: Plan, context: RankContext, blocks: Sequence[Block]
) -> list[dict[str, Any]]:
    """A row for each block, again if run again, timed iteration and rank, in ms."""
    run = {
        "run": settings.name,
        "plan": settings.plan_name,
        "parallelism": plan.kind,
        "device": context.device.type,
    }
    return [
        run
        | {key: row[key] for key in ("mode", "reconfiguration_latency_ms", "iteration")}
        | {"repeat": block.repeat}
        | row
        | {
            "load_share": block.load_share,
            "disturbed": block.disturbed,
            "fidelity": _fidelity(block.fabric.mode, context),
        }
        for block in blocks
        for row in sorted(block.rows, key=lambda row: (row["iteration"], row["rank"]))
    ]


def pass_rows(
    settings: RunSettings, context: RankContext, blocks: Sequence[Block]
) -> list[dict[str, Any]]:
    """A row for each recorded pass of a pipeline, in ms since the first began."""
    block = next((block for block in blocks if block.passes), None)
    if block is None or block.passes is None:
        return []
    begin_ns = min(row["start_ns"] for row in block.passes)
    return [
        {"run": settings.name, "plan": settings.plan_name, "device": context.device.type}
        | row
        | {
            "start_ms": (row["start_ns"] - begin_ns) / 1e6,
            "end_ms": (row["end_ns"] - begin_ns) / 1e6,
            "fidelity": _fidelity(block.fabric.mode, context),
        }
        for row in block.passes
    ]


def summary(
    settings: RunSettings,
    plan: Plan,
    context: RankContext,
    blocks: Sequence[Block],
    load_average: Sequence[float] | None,
    begun: int = 0,
) -> dict[str, Any]:
    """The summary of the run as a JSON object.

    Provenance, all blocks, medians of each fabric setting over its undisturbed repeats,
    and whether the losses of all blocks agree. Times are maxima over ranks; requests,
    operations on held circuits and reconfigurations are means over ranks; all per
    iteration. ``begun`` is the step of the checkpoint that blocks began with.
    """
    first, training = blocks[0], settings.training
    difference = _loss_difference(blocks)
    block_times = [_times(block) for block in blocks]
    return {
        "schema": SCHEMA,
        "run": settings.name,
        "seed": settings.seed,
        "plan": settings.plan_name,
        "parallelism": plan.kind,
        "planner": plan.planner,
        "model": settings.model.name,
        "parameters": first.parameters,
        "ranks": context.ranks,
        "device": context.device.type,
        "device_name": torch.cuda.get_device_name(context.device)
        if context.device.type == "cuda"
        else "cpu",
        "backend": context.inner,
        "torch": torch.__version__,
        "precision": training.precision,
        "attention": first.attention,
        "warmup_iterations": training.warmup_iterations,
        "iterations": training.iterations,
        "planning": training.planning,
        "begun_at_step": begun,
        "repeats": training.repeats,
        "load_average_at_start": load_average,
        "disturbed_share": training.disturbed_share,
        "set_aside": sum(block.disturbed for block in blocks),
        "peak_live_chunks": _peak(block.peak_live_chunks for block in blocks),
        "planned_peak_live_chunks": first.planned_peak_live_chunks,
        "held_bytes": _peak_bytes(blocks, "held_bytes", context.ranks),
        "predicted_held_bytes": _peak_bytes(blocks, "predicted_held_bytes", context.ranks),
        "blocks": [_block(times, context) for times in block_times],
        "settings": [
            _setting(settings, plan, fabric, block_times, context)
            for fabric in fabric_sweep(settings)
        ],
        "loss_difference": difference,
        "loss_tolerance": training.loss_tolerance,
        "losses_agree": difference <= training.loss_tolerance,
    }


def _block(times: _BlockTimes, context: RankContext) -> dict[str, Any]:
    block = times.block
    return {
        "mode": block.fabric.mode,
        "reconfiguration_latency_ms": block.fabric.reconfiguration_latency_ms,
        "repeat": block.repeat,
        "load_share": block.load_share,
        "disturbed": block.disturbed,
        **{name: times.columns[name] for name in ("iteration_ms", "stall_ms")},
        "peak_live_chunks": block.peak_live_chunks,
        "planned_peak_live_chunks": block.planned_peak_live_chunks,
        "process_groups": block.process_groups,
        "group_creation_ms": block.group_creation_ms,
        **_planning([block]),
        "fidelity": _fidelity(block.fabric.mode, context),
    }


def _setting(
    settings: RunSettings,
    plan: Plan,
    fabric: FabricSettings,
    block_times: Sequence[_BlockTimes],
    context: RankContext,
) -> dict[str, Any]:
    """Medians over the undisturbed repeats; over all where none is undisturbed."""
    repeats = [times for times in block_times if times.block.fabric == fabric]
    undisturbed = _undisturbed(repeats)
    steps = _steps(repeats[0].block)
    columns = {
        name: median(times.columns[name] for times in undisturbed)
        for name in undisturbed[0].columns
    }
    rows = [row for times in repeats for row in times.block.rows]
    timed = [step for times in undisturbed for step in _steps(times.block)]
    # NCCL: one GPU per rank; gloo: ranks share the GPUs of the machine.
    gpus = context.ranks if context.inner == "nccl" else torch.cuda.device_count()
    devices, precision = min(context.ranks, gpus), settings.training.precision
    return {
        "mode": fabric.mode,
        "reconfiguration_latency_ms": fabric.reconfiguration_latency_ms,
        "fidelity": _fidelity(fabric.mode, context),
        **columns,
        "iteration_over_electrical": median(_over_electrical(undisturbed, block_times)),
        "repeats": sum(not times.block.disturbed for times in repeats),
        "set_aside": sum(times.block.disturbed for times in repeats),
        "process_groups": repeats[0].block.process_groups,
        "group_creation_ms": _median(times.block.group_creation_ms for times in undisturbed),
        **_planning([times.block for times in undisturbed]),
        "losses": [step["loss"] for step in steps],
        "gradient_norms": [step["gradient_norm"] for step in steps],
        **used(settings.model, plan, rows, timed, context.device, devices, precision),
    }


def _planning(blocks: Sequence[Block]) -> dict[str, float | None]:
    """Times of planning during training; None with planning "file".

    Means over the steps of the planning time and of the slowest rank's wait for it, and
    the share of the planning time that overlaps with training.
    """
    steps: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for number, block in enumerate(blocks):
        for row in block.rows:
            steps.setdefault((number, row["iteration"]), []).append(row)
    names = ("planning_ms", "planning_wait_ms", "planning_hidden_share")
    if any(rows[0]["planning_ms"] is None for rows in steps.values()):
        return dict.fromkeys(names)
    planning_ms = fmean(rows[0]["planning_ms"] for rows in steps.values())
    waited_ms = fmean(max(row["planning_wait_ms"] for row in rows) for rows in steps.values())
    return dict(
        zip(names, (planning_ms, waited_ms, max(0.0, 1 - waited_ms / planning_ms)), strict=True)
    )


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None


def _over_electrical(
    repeats: Sequence[_BlockTimes], block_times: Sequence[_BlockTimes]
) -> list[float]:
    """Iteration times relative to the electrical ones of the same repeat."""
    ratios = []
    for times in repeats:
        electrical = _undisturbed(
            [
                other
                for other in block_times
                if other.block.fabric.mode == "electrical"
                and other.block.repeat == times.block.repeat
            ]
        )
        others_ms = median(other.columns["iteration_ms"] for other in electrical)
        ratios.append(times.columns["iteration_ms"] / others_ms)
    return ratios


def _undisturbed(block_times: Sequence[_BlockTimes]) -> list[_BlockTimes]:
    return [times for times in block_times if not times.block.disturbed] or list(block_times)


def _times(block: Block) -> _BlockTimes:
    steps = _steps(block)
    first, *others = _TIMES
    names = first, "tokens_per_s", *others
    times = {name: median(step[name] for step in steps) for name in names}
    counts = {name: fmean(step[name] for step in steps) for name in _COUNTS}
    return _BlockTimes(block, times | counts)


def _steps(block: Block) -> list[dict[str, float]]:
    iterations = sorted({row["iteration"] for row in block.rows})
    grouped = [
        [row for row in block.rows if row["iteration"] == iteration] for iteration in iterations
    ]
    return [
        {name: max(row[name] for row in rows) for name in _TIMES}
        | {name: fmean(row[name] for row in rows) for name in _COUNTS}
        | {name: rows[0][name] for name in ("iteration", "loss", "gradient_norm")}
        | {"tokens_per_s": rows[0]["tokens"] / max(row["iteration_ms"] for row in rows) * 1e3}
        for rows in grouped
    ]


def _peak(peaks: Iterable[list[int] | None]) -> list[int] | None:
    counted = [peak for peak in peaks if peak is not None]
    return [max(rank) for rank in zip(*counted, strict=True)] if counted else None


def _peak_bytes(blocks: Sequence[Block], column: str, ranks: int) -> list[int] | None:
    """The most of ``column``, 0 without a chunk, by rank; None without passes."""
    rows = next((block.passes for block in blocks if block.passes), None)
    if rows is None:
        return None
    return [
        max((row[column] for row in rows if row["rank"] == rank), default=0)
        for rank in range(ranks)
    ]


def _loss_difference(blocks: Sequence[Block]) -> float:
    """The largest relative difference of an iteration's loss from the first block's."""
    losses = [[step["loss"] for step in _steps(block)] for block in blocks]
    return max(
        abs(other - first) / max(abs(first), 1e-30)
        for run in losses
        for first, other in zip(losses[0], run, strict=True)
    )


def _trace(blocks: Sequence[Block], context: RankContext) -> pa.Table:
    """Events of the first repeat, of a block's last run, with the setting."""
    traced = {block.fabric: block.trace for block in blocks if block.trace is not None}
    tables = []
    for fabric, events in traced.items():
        latency_ms = float(fabric.reconfiguration_latency_ms)
        columns = {"mode": fabric.mode, "reconfiguration_latency_ms": latency_ms}
        tables.append(labelled(events, columns | {"fidelity": _fidelity(fabric.mode, context)}))
    return pa.concat_tables(tables)


def _fidelity(mode: str, context: RankContext) -> Fidelity:
    """Electrical switching is measured; light paths are emulated."""
    if mode != "electrical":
        return "emulated"
    return "measured_gpu" if context.device.type == "cuda" else "measured_cpu"
