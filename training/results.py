"""The files of a training run: the table of iterations, the traces and the summary.

Rank 0 writes them when all is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from railx.io import Fidelity, write_json, write_table
from railx.planning.plan import Plan
from training.loop import Place, SettingResult
from training.settings import RunSettings
from training.trace import write_chrome_trace

__all__ = ["SCHEMA", "iteration_rows", "summary", "write_results"]

SCHEMA = "railx.training/1"


@dataclass(frozen=True)
class _Step:
    """One iteration under one setting, over all ranks.

    The slowest rank's times and the mean rank's counts.
    """

    iteration_ms: float
    stall_ms: float
    wait_ms: float
    requests: float
    reconfigurations: float
    loss: float
    gradient_norm: float


def write_results(
    folder: Path, settings: RunSettings, plan: Plan, place: Place, results: Sequence[SettingResult]
) -> dict[str, Any]:
    """Write the results of a run into ``folder``; returns the summary.

    iterations.parquet, trace.parquet, trace.json and result.json, the last one last.
    The Chrome trace shows the timed iterations, the table of the trace the warm-up too.
    """
    summed = summary(settings, plan, place, results)
    write_table(folder / "iterations.parquet", iteration_rows(settings, plan, place, results))
    trace = _trace(results, place)
    write_table(
        folder / "trace.parquet",
        trace,
        metadata={"run": settings.name, "warmup_iterations": settings.training.warmup_iterations},
    )
    write_chrome_trace(
        folder / "trace.json",
        trace.filter(pc.field("iteration") >= settings.training.warmup_iterations),
    )
    write_json(folder / "result.json", summed)
    return summed


def iteration_rows(
    settings: RunSettings, plan: Plan, place: Place, results: Sequence[SettingResult]
) -> list[dict[str, Any]]:
    """One row for each setting, timed iteration and rank; times in ms."""
    run = {
        "run": settings.name,
        "plan": settings.plan_name,
        "parallelism": plan.kind,
        "device": place.device.type,
    }
    return [
        {**run, **row, "fidelity": _fidelity(result.fabric.mode, place)}
        for result in results
        for row in sorted(result.rows, key=lambda row: (row["iteration"], row["rank"]))
    ]


def summary(
    settings: RunSettings, plan: Plan, place: Place, results: Sequence[SettingResult]
) -> dict[str, Any]:
    """The run in one object.

    What ran where, the means of each setting, and whether the losses of all settings
    agree. Times of a setting are those of its slowest rank, requests and
    reconfigurations those of its mean rank, all per iteration.
    """
    first, training = results[0], settings.training
    difference = _loss_difference(results)
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
        "peak_live_chunks": first.peak_live_chunks,
        "planned_peak_live_chunks": first.planned_peak_live_chunks,
        "settings": [_setting(result, place) for result in results],
        "loss_difference": difference,
        "loss_tolerance": training.loss_tolerance,
        "losses_agree": difference <= training.loss_tolerance,
    }


def _setting(result: SettingResult, place: Place) -> dict[str, Any]:
    steps = _steps(result)
    iteration_ms = fmean(step.iteration_ms for step in steps)
    tokens = fmean(row["tokens"] for row in result.rows)
    return {
        "mode": result.fabric.mode,
        "reconfiguration_latency_ms": result.fabric.reconfiguration_latency_ms,
        "fidelity": _fidelity(result.fabric.mode, place),
        "iteration_ms": iteration_ms,
        "tokens_per_s": tokens / iteration_ms * 1e3,
        "stall_ms": fmean(step.stall_ms for step in steps),
        "wait_ms": fmean(step.wait_ms for step in steps),
        "requests": fmean(step.requests for step in steps),
        "reconfigurations": fmean(step.reconfigurations for step in steps),
        "losses": [step.loss for step in steps],
        "gradient_norms": [step.gradient_norm for step in steps],
    }


def _steps(result: SettingResult) -> list[_Step]:
    iterations = sorted({row["iteration"] for row in result.rows})
    grouped = [
        [row for row in result.rows if row["iteration"] == iteration] for iteration in iterations
    ]
    return [
        _Step(
            iteration_ms=max(row["iteration_ms"] for row in rows),
            stall_ms=max(row["stall_ms"] for row in rows),
            wait_ms=max(row["wait_ms"] for row in rows),
            requests=fmean(row["requests"] for row in rows),
            reconfigurations=fmean(row["reconfigurations"] for row in rows),
            loss=rows[0]["loss"],
            gradient_norm=rows[0]["gradient_norm"],
        )
        for rows in grouped
    ]


def _loss_difference(results: Sequence[SettingResult]) -> float:
    """The largest difference of any iteration's loss from the first setting's.

    Relative to that.
    """
    losses = [[step.loss for step in _steps(result)] for result in results]
    return max(
        abs(other - first) / max(abs(first), 1e-30)
        for run in losses
        for first, other in zip(losses[0], run, strict=True)
    )


def _trace(results: Sequence[SettingResult], place: Place) -> pa.Table:
    """All settings' events, with the columns that tell the settings apart."""
    tables = []
    for result in results:
        events, fabric = result.trace, result.fabric
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
