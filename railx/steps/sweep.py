"""Replays of generated jobs over latencies, modes, circuit rules and bandwidths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from railx.fabric.settings import Mode
from railx.replay.engine import Step, replay
from railx.steps.programs import job_layout, job_ranks, programs, templates
from railx.steps.settings import StepJob, StepSettings
from railx.steps.stage_bits import StageBits
from railx.steps.windows import all_phases, per_pipeline, traffic, windows

__all__ = ["phase_rows", "time_rows", "traffic_rows", "window_rows"]

_MODES: tuple[Mode, ...] = ("on_demand", "provisioned")


@dataclass(frozen=True)
class _Setting:
    """What a job is replayed under; no rule with packet switches."""

    rule: str
    mode: Mode
    latency_ms: float


def job_head(name: str, variant: str, job: StepJob) -> dict[str, Any]:
    """What every table says of a job."""
    degrees = job.degrees
    return {
        "step": name,
        "job": variant,
        "model": job.model.name,
        "device": job.device.name,
        "gpus": degrees.ranks,
        "data": degrees.data,
        "pipeline": degrees.pipeline,
        "tensor": degrees.tensor,
        "expert": degrees.expert,
        "gradients": job.gradients if job.parameters == "replicated" else "sharded",
    }


def time_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """A row for each job, bandwidth, rule, mode and latency.

    ``step_ms`` is the slowest rank's step and ``electrical_ms`` that with packet
    switches at the same bandwidth. ``compute_ms`` and ``tensor_ms`` (collectives in the
    server) are means over the ranks, ``stall_ms`` (waiting for light) the most of any.
    """
    sweep = settings.sweep
    for variant, job in settings.jobs().items():
        yield from _rows(name, variant, job, settings, sweep.latencies_ms)
        for rate in sweep.bandwidths_gb_s:
            slower = replace(job, device=replace(job.device, scale_out_gb_s=rate))
            if rate != job.device.scale_out_gb_s:
                yield from _rows(name, variant, slower, settings, sweep.bandwidth_latencies_ms)


def _rows(
    name: str,
    variant: str,
    job: StepJob,
    settings: StepSettings,
    latencies_ms: Sequence[float],
) -> Iterator[dict[str, Any]]:
    sweep = settings.sweep
    wanted = [
        _Setting("", "electrical", 0.0),
        *(
            _Setting(rule, mode, latency_ms)
            for rule in sweep.rules
            for mode in _MODES
            for latency_ms in latencies_ms
        ),
    ]
    made = {
        electrical: programs(
            job, electrical=electrical, iterations=sweep.iterations, whole=sweep.whole
        )
        for electrical in (True, False)
    }
    stages = templates(job, electrical=False)
    tensor_ms = fmean(sum(move.tensor_ns for move in one.moves) for one in stages) / 1e6
    gaps_ms = fmean(sum(move.gap_ns for move in one.moves) for one in stages) / 1e6
    electrical_ms = 0.0
    for setting in wanted:
        found = _replayed(job, made[setting.mode == "electrical"], settings, setting)
        if setting.mode == "electrical":
            electrical_ms = found["step_ms"]
        yield {
            **job_head(name, variant, job),
            "scale_out_gb_s": job.device.scale_out_gb_s,
            "ranks_replayed": job_ranks(job, whole=sweep.whole),
            "rule": setting.rule or "electrical",
            "mode": setting.mode,
            "reconfiguration_latency_ms": setting.latency_ms,
            "step_ms": found["step_ms"],
            "electrical_ms": electrical_ms,
            "added_ms": found["step_ms"] - electrical_ms,
            "compute_ms": gaps_ms - tensor_ms,
            "tensor_ms": tensor_ms,
            "utilisation": (gaps_ms - tensor_ms) / found["step_ms"],
            "stall_ms": found["stall_ms"],
            "reconfigurations": found["reconfigurations"],
            "fidelity": "replay",
        }


def _replayed(
    job: StepJob,
    made: Mapping[int, Sequence[Step]],
    settings: StepSettings,
    setting: _Setting,
) -> dict[str, float]:
    sweep = settings.sweep
    ranks = job_ranks(job, whole=sweep.whole)
    layout: Any = job_layout(job, whole=sweep.whole)
    if setting.rule == "stage_bits":
        layout = StageBits(layout.gpus_per_server, ranks // job.degrees.pipeline)
    latency_ns = round(setting.latency_ms * 1e6)
    rows = [
        row
        for row in replay(made, layout, setting.mode, latency_ns)
        if row.iteration == sweep.iterations - 1
    ]
    return {
        "step_ms": max(row.duration_ns for row in rows) / 1e6,
        "stall_ms": max(row.stall_ns for row in rows) / 1e6,
        "reconfigurations": fmean(row.reconfigurations for row in rows),
    }


def window_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """The windows of every job (:func:`railx.steps.windows.windows`)."""
    for variant, job in settings.jobs().items():
        for row in windows(job):
            yield {**job_head(name, variant, job), **row, "fidelity": "analytic"}


def phase_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """The phases of every job and stage, in the order of the program."""
    for variant, job in settings.jobs().items():
        for stage, runs in enumerate(all_phases(job)):
            for number, (parallelism, operations) in enumerate(runs):
                yield {
                    **job_head(name, variant, job),
                    "stage": stage,
                    "phase": number,
                    "parallelism": parallelism,
                    "operations": operations,
                    "fidelity": "analytic",
                }


def traffic_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """Bytes that the ranks of a rail send, and those along one pipeline."""
    for variant, job in settings.jobs().items():
        for scope, found in (("rail", traffic(job)), ("pipeline", per_pipeline(job))):
            for parallelism, size in found.items():
                yield {
                    **job_head(name, variant, job),
                    "scope": scope,
                    "parallelism": parallelism,
                    "sent_gb": size / 1e9,
                    "fidelity": "analytic",
                }
