"""The files of a training run: the table of iterations, the traces and the summary.

Rank 0 writes them when all is done.
"""

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
from training.loop import Block
from training.rails import Place
from training.settings import RunSettings, fabric_sweep
from training.trace import write_chrome_trace
from training.utilisation import used

__all__ = ["SCHEMA", "iteration_rows", "pass_rows", "summary", "write_results"]

SCHEMA = "railx.training/2"


_TEXT, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()
#: The table of passes.
_PASSES = pa.schema(
    [
        *((name, _TEXT) for name in ("run", "plan", "device")),
        *((name, _WHOLE) for name in ("iteration", "rank", "replica", "stage", "place")),
        *((name, _WHOLE) for name in ("position", "pipeline")),
        *(("kind", _TEXT), ("chunk", _WHOLE), ("start_ms", _REAL), ("end_ms", _REAL)),
        *((name, _WHOLE) for name in ("live_chunks", "predicted_live_chunks")),
        *((name, _WHOLE) for name in ("held_bytes", "peak_bytes", "predicted_held_bytes")),
        ("fidelity", _TEXT),
    ]
)


@dataclass(frozen=True)
class _Step:
    """One iteration of a block, over all ranks.

    The slowest rank's times and the mean rank's counts.
    """

    iteration_ms: float
    stall_ms: float
    wait_ms: float
    requests: float
    held: float
    reconfigurations: float
    loss: float
    gradient_norm: float


@dataclass(frozen=True)
class _Times:
    """A block in numbers: medians of times over its iterations, means of counts."""

    block: Block
    iteration_ms: float
    stall_ms: float
    wait_ms: float
    requests: float
    held: float
    reconfigurations: float


def write_results(
    folder: Path,
    settings: RunSettings,
    plan: Plan,
    place: Place,
    blocks: Sequence[Block],
    load_average: Sequence[float] | None,
    begun: int = 0,
) -> dict[str, Any]:
    """Write the results of a run into ``folder``; returns the summary.

    iterations.parquet, passes.parquet, trace.parquet, trace.json and result.json, the
    last one last. Traces are of the first repeat; the Chrome trace shows the timed
    iterations, the table of the trace the warm-up too.
    """
    summed = summary(settings, plan, place, blocks, load_average, begun)
    timed = begun + settings.training.warmup_iterations
    iterations = pa.Table.from_pylist(iteration_rows(settings, plan, place, blocks))
    # Where all values of a column are missing, nothing says of which type it is.
    for name, kind in (
        ("load_share", pa.float64()),
        ("peak_memory_bytes", pa.int64()),
        ("planning_ms", pa.float64()),
        ("planning_wait_ms", pa.float64()),
    ):
        column = iterations.column(name).cast(kind)
        iterations = iterations.set_column(iterations.schema.get_field_index(name), name, column)
    write_table(folder / "iterations.parquet", iterations)
    rows = pass_rows(settings, plan, place, blocks)
    write_table(folder / "passes.parquet", pa.Table.from_pylist(rows, schema=_PASSES))
    trace = _trace(blocks, place)
    write_table(
        folder / "trace.parquet",
        trace,
        metadata={"run": settings.name, "warmup_iterations": timed},
    )
    write_chrome_trace(folder / "trace.json", trace.filter(pc.field("iteration") >= timed))
    write_json(folder / "result.json", summed)
    return summed


def iteration_rows(
    settings: RunSettings, plan: Plan, place: Place, blocks: Sequence[Block]
) -> list[dict[str, Any]]:
    """One row for each block, timed iteration and rank; times in ms.

    A block that was run again has rows of its own under the same repeat.
    """
    run = {
        "run": settings.name,
        "plan": settings.plan_name,
        "parallelism": plan.kind,
        "device": place.device.type,
    }
    return [
        run
        | {key: row[key] for key in ("mode", "reconfiguration_latency_ms", "iteration")}
        | {"repeat": block.repeat}
        | row
        | {
            "load_share": block.load_share,
            "disturbed": block.disturbed,
            "fidelity": _fidelity(block.fabric.mode, place),
        }
        for block in blocks
        for row in sorted(block.rows, key=lambda row: (row["iteration"], row["rank"]))
    ]


def pass_rows(
    settings: RunSettings, plan: Plan, place: Place, blocks: Sequence[Block]
) -> list[dict[str, Any]]:
    """One row for each pass that was watched; none where the plan is no pipeline.

    Times are in ms since the first pass of any rank began.
    """
    block = next((block for block in blocks if block.passes), None)
    if block is None or block.passes is None:
        return []
    begin_ns = min(row["start_ns"] for row in block.passes)
    return [
        {"run": settings.name, "plan": settings.plan_name, "device": place.device.type}
        | row
        | {
            "start_ms": (row["start_ns"] - begin_ns) / 1e6,
            "end_ms": (row["end_ns"] - begin_ns) / 1e6,
            "fidelity": _fidelity(block.fabric.mode, place),
        }
        for row in block.passes
    ]


def summary(
    settings: RunSettings,
    plan: Plan,
    place: Place,
    blocks: Sequence[Block],
    load_average: Sequence[float] | None,
    begun: int = 0,
) -> dict[str, Any]:
    """The run in one object.

    What ran where, every block, the medians of each setting over its undisturbed
    repeats, and whether the losses of all blocks agree. Times are those of the slowest
    rank; requests, operations on circuits still held, and reconfigurations those of the
    mean rank; all per iteration. ``begun`` counts the steps of the checkpoint that
    every block began with.
    """
    first, training = blocks[0], settings.training
    difference = _loss_difference(blocks)
    times = [_times(block) for block in blocks]
    return {
        "schema": SCHEMA,
        "run": settings.name,
        "seed": settings.seed,
        "plan": settings.plan_name,
        "parallelism": plan.kind,
        "planner": plan.planner,
        "model": settings.model.name,
        "parameters": first.parameters,
        "ranks": place.ranks,
        "device": place.device.type,
        "device_name": torch.cuda.get_device_name(place.device)
        if place.device.type == "cuda"
        else "cpu",
        "backend": place.inner,
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
        "peak_live_chunks": _most(block.peak_live_chunks for block in blocks),
        "planned_peak_live_chunks": first.planned_peak_live_chunks,
        "held_bytes": _most_held(blocks, "held_bytes", place.ranks),
        "predicted_held_bytes": _most_held(blocks, "predicted_held_bytes", place.ranks),
        "blocks": [_block(one, place) for one in times],
        "settings": [
            _setting(fabric, times, place) | _used(settings, plan, fabric, times, place)
            for fabric in fabric_sweep(settings)
        ],
        "loss_difference": difference,
        "loss_tolerance": training.loss_tolerance,
        "losses_agree": difference <= training.loss_tolerance,
    }


def _block(times: _Times, place: Place) -> dict[str, Any]:
    block = times.block
    return {
        "mode": block.fabric.mode,
        "reconfiguration_latency_ms": block.fabric.reconfiguration_latency_ms,
        "repeat": block.repeat,
        "load_share": block.load_share,
        "disturbed": block.disturbed,
        "iteration_ms": times.iteration_ms,
        "stall_ms": times.stall_ms,
        "peak_live_chunks": block.peak_live_chunks,
        "planned_peak_live_chunks": block.planned_peak_live_chunks,
        "process_groups": block.process_groups,
        "group_creation_ms": block.group_creation_ms,
        **_planning([block]),
        "fidelity": _fidelity(block.fabric.mode, place),
    }


def _setting(fabric: FabricSettings, times: Sequence[_Times], place: Place) -> dict[str, Any]:
    """Medians over the undisturbed repeats; over all where every one was disturbed."""
    own = [one for one in times if one.block.fabric == fabric]
    kept = _undisturbed(own)
    steps = _steps(own[0].block)
    iteration_ms = median(one.iteration_ms for one in kept)
    return {
        "mode": fabric.mode,
        "reconfiguration_latency_ms": fabric.reconfiguration_latency_ms,
        "fidelity": _fidelity(fabric.mode, place),
        "iteration_ms": iteration_ms,
        "tokens_per_s": fmean(row["tokens"] for row in own[0].block.rows) / iteration_ms * 1e3,
        "stall_ms": median(one.stall_ms for one in kept),
        "wait_ms": median(one.wait_ms for one in kept),
        "requests": median(one.requests for one in kept),
        "held": median(one.held for one in kept),
        "reconfigurations": median(one.reconfigurations for one in kept),
        "iteration_over_electrical": median(_over_electrical(kept, times)),
        "repeats": sum(not one.block.disturbed for one in own),
        "set_aside": sum(one.block.disturbed for one in own),
        "process_groups": own[0].block.process_groups,
        "group_creation_ms": _median(one.block.group_creation_ms for one in kept),
        **_planning([one.block for one in kept]),
        "losses": [step.loss for step in steps],
        "gradient_norms": [step.gradient_norm for step in steps],
    }


def _planning(blocks: Sequence[Block]) -> dict[str, float | None]:
    """What planning beside training took and hid; None where the file was read.

    Means over the steps: of planning, and of the slowest rank's wait for it. What is
    hidden is the share of all planning for which nobody waited.
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
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _used(
    settings: RunSettings,
    plan: Plan,
    fabric: FabricSettings,
    times: Sequence[_Times],
    place: Place,
) -> dict[str, Any]:
    own = [one for one in times if one.block.fabric == fabric]
    return used(
        settings.model,
        plan,
        [row for one in own for row in one.block.rows],
        median(one.iteration_ms for one in _undisturbed(own)),
        place.device,
        # NCCL has a GPU for each rank; with gloo ranks share those of the machine.
        place.ranks if place.inner == "nccl" else min(place.ranks, torch.cuda.device_count()),
        settings.training.precision,
    )


def _over_electrical(kept: Sequence[_Times], times: Sequence[_Times]) -> list[float]:
    """Iteration times relative to the electrical ones of the same repeat."""
    ratios = []
    for one in kept:
        electrical = _undisturbed(
            [
                other
                for other in times
                if other.block.fabric.mode == "electrical"
                and other.block.repeat == one.block.repeat
            ]
        )
        ratios.append(one.iteration_ms / median(other.iteration_ms for other in electrical))
    return ratios


def _undisturbed(times: Sequence[_Times]) -> list[_Times]:
    """Those that were not disturbed; all where every one was."""
    return [one for one in times if not one.block.disturbed] or list(times)


def _times(block: Block) -> _Times:
    steps = _steps(block)
    return _Times(
        block=block,
        iteration_ms=median(step.iteration_ms for step in steps),
        stall_ms=median(step.stall_ms for step in steps),
        wait_ms=median(step.wait_ms for step in steps),
        requests=fmean(step.requests for step in steps),
        held=fmean(step.held for step in steps),
        reconfigurations=fmean(step.reconfigurations for step in steps),
    )


def _steps(block: Block) -> list[_Step]:
    iterations = sorted({row["iteration"] for row in block.rows})
    grouped = [
        [row for row in block.rows if row["iteration"] == iteration] for iteration in iterations
    ]
    return [
        _Step(
            iteration_ms=max(row["iteration_ms"] for row in rows),
            stall_ms=max(row["stall_ms"] for row in rows),
            wait_ms=max(row["wait_ms"] for row in rows),
            requests=fmean(row["requests"] for row in rows),
            held=fmean(row["held"] for row in rows),
            reconfigurations=fmean(row["reconfigurations"] for row in rows),
            loss=rows[0]["loss"],
            gradient_norm=rows[0]["gradient_norm"],
        )
        for rows in grouped
    ]


def _most(peaks: Iterable[list[int] | None]) -> list[int] | None:
    """The most of every rank over all blocks; None where nothing was counted."""
    counted = [peak for peak in peaks if peak is not None]
    return [max(rank) for rank in zip(*counted, strict=True)] if counted else None


def _most_held(blocks: Sequence[Block], column: str, ranks: int) -> list[int] | None:
    """The most that each rank held after a pass; None where none was watched.

    0 for a rank without a chunk.
    """
    rows = next((block.passes for block in blocks if block.passes), None)
    if rows is None:
        return None
    return [
        max((row[column] for row in rows if row["rank"] == rank), default=0)
        for rank in range(ranks)
    ]


def _loss_difference(blocks: Sequence[Block]) -> float:
    """The largest difference of any iteration's loss from the first block's.

    Relative to that.
    """
    losses = [[step.loss for step in _steps(block)] for block in blocks]
    return max(
        abs(other - first) / max(abs(first), 1e-30)
        for run in losses
        for first, other in zip(losses[0], run, strict=True)
    )


def _trace(blocks: Sequence[Block], place: Place) -> pa.Table:
    """The events of the first repeat, with the columns that tell the settings apart.

    Of a block that was run again, those of the last time.
    """
    traced = {block.fabric: block.trace for block in blocks if block.trace is not None}
    tables = []
    for fabric, events in traced.items():
        for name, values in (
            ("mode", pa.array([fabric.mode] * len(events), pa.string())),
            (
                "reconfiguration_latency_ms",
                pa.array([fabric.reconfiguration_latency_ms] * len(events), pa.float64()),
            ),
            ("fidelity", pa.array([_fidelity(fabric.mode, place)] * len(events), pa.string())),
        ):
            events = events.append_column(name, values)
        tables.append(events)
    return pa.concat_tables(tables)


def _fidelity(mode: str, place: Place) -> Fidelity:
    """Electrical switching is the machine as it is; light paths are emulated."""
    if mode != "electrical":
        return "emulated"
    return "measured_gpu" if place.device.type == "cuda" else "measured_cpu"
