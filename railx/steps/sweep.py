"""Replays of generated jobs over latencies, modes, circuit rules and bandwidths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from railx.fabric.settings import Mode
from railx.progress import counted
from railx.replay.formula import stall_ms
from railx.replay.run import Prepared, Replayed, prepare, replay_programs
from railx.replay.wiring import CircuitModel
from railx.steps.programs import (
    PARALLELISMS_OF_CHANNELS,
    job_layout,
    job_ranks,
    programs,
    templates,
)
from railx.steps.settings import StepJob, StepSettings
from railx.steps.stage_bits import StageBits
from railx.steps.windows import all_phases, per_pipeline, traffic, windows

__all__ = [
    "circuit_model",
    "phase_rows",
    "time_rows",
    "timeline_rows",
    "timeline_windows",
    "traffic_rows",
    "window_rows",
]

#: The rule where packet switches join everything.
_PACKETS = "electrical"
_MODES: tuple[Mode, ...] = ("on_demand", "provisioned")


@dataclass(frozen=True)
class _Setting:
    """What a job is replayed under."""

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
    switches at the same bandwidth. ``formula_ms`` is the latter and the paper's sum of
    max(0, L - W) over the windows of the rank where it is most, N L on demand.
    ``compute_ms`` and ``tensor_ms`` (collectives in the server) are means over the
    ranks, ``stall_ms`` (waiting for light) the most of any.
    """
    sweep = settings.sweep
    for variant, job in counted(settings.jobs().items(), "jobs"):
        yield from _rows(name, variant, job, settings, sweep.latencies_ms)
        for rate in counted(sweep.bandwidths_gb_s, "bandwidths"):
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
    cases = [
        _Setting(_PACKETS, "electrical", 0.0),
        *(
            _Setting(rule, mode, latency_ms)
            for rule in sweep.rules
            for mode in _MODES
            for latency_ms in latencies_ms
        ),
    ]
    prepared = {rule: _prepared(job, rule, settings) for rule in (_PACKETS, *sweep.rules)}
    stages = templates(job, electrical=False)
    tensor_ms = fmean(sum(move.tensor_ns for move in template.moves) for template in stages) / 1e6
    gaps_ms = fmean(sum(move.gap_ns for move in template.moves) for template in stages) / 1e6
    electrical_ms = 0.0
    timeline = timeline_windows(
        prepared[_PACKETS],
        replay_programs(prepared[_PACKETS], None, "electrical", 0),
        sweep.iterations - 1,
    )
    for setting in cases:
        result = _replayed(prepared[setting.rule], sweep.iterations, setting)
        if setting.mode == "electrical":
            electrical_ms = result["step_ms"]
        yield {
            **job_head(name, variant, job),
            "scale_out_gb_s": job.device.scale_out_gb_s,
            "ranks_replayed": job_ranks(job, all_ranks=sweep.whole),
            "rule": setting.rule,
            "mode": setting.mode,
            "reconfiguration_latency_ms": setting.latency_ms,
            "step_ms": result["step_ms"],
            "electrical_ms": electrical_ms,
            "added_ms": result["step_ms"] - electrical_ms,
            "compute_ms": gaps_ms - tensor_ms,
            "tensor_ms": tensor_ms,
            "utilisation": (gaps_ms - tensor_ms) / result["step_ms"],
            "formula_ms": electrical_ms + _by_formula(timeline.values(), setting),
            "stall_ms": result["stall_ms"],
            "reconfigurations": result["reconfigurations"],
            "fidelity": "replay",
        }


def circuit_model(job: StepJob, rule: str, *, all_ranks: bool) -> CircuitModel:
    """Which circuits operations need by a rule."""
    layout = job_layout(job, all_ranks=all_ranks)
    if rule != "stage_bits":
        return layout
    ranks = job_ranks(job, all_ranks=all_ranks)
    return StageBits(layout.gpus_per_server, ranks // job.degrees.pipeline)


def _by_formula(timeline: Iterable[Sequence[Window]], setting: _Setting) -> float:
    """What switching adds by the paper's formula, on the rank where it is most."""
    if setting.mode == "electrical":
        return 0.0
    hidden = setting.mode == "provisioned"
    return max(
        (
            stall_ms(
                setting.latency_ms, [window.window_ms if hidden else 0.0 for window in windows]
            )
            for windows in timeline
        ),
        default=0.0,
    )


def _prepared(job: StepJob, rule: str, settings: StepSettings) -> Prepared:
    all_ranks = settings.sweep.whole
    generated = programs(
        job,
        electrical=rule == _PACKETS,
        iterations=settings.sweep.iterations,
        all_ranks=all_ranks,
    )
    return prepare(generated, circuit_model(job, rule, all_ranks=all_ranks))


def _replayed(prepared: Prepared, iterations: int, setting: _Setting) -> dict[str, float]:
    latency_ns = round(setting.latency_ms * 1e6)
    table = replay_programs(prepared, None, setting.mode, latency_ns).table
    last = table["iteration"] == iterations - 1
    return {
        "step_ms": float((table["end_ns"] - table["begin_ns"])[last].max()) / 1e6,
        "stall_ms": float(table["stall_ns"][last].max()) / 1e6,
        "reconfigurations": float(table["reconfigurations"][last].mean()),
    }


@dataclass(frozen=True)
class Window:
    """Between two operations of unlike parallelisms of one rank, negative where they
    overlap.
    """

    transition: str
    window_ms: float


def timeline_windows(
    prepared: Prepared, replayed: Replayed, iteration: int
) -> dict[int, list[Window]]:
    """The windows of every rank in an iteration of a replay, in their order."""
    columns = prepared.programs.columns
    rows = np.flatnonzero((replayed.started_ns >= 0) & (columns["iteration"] == iteration))
    lanes = [
        PARALLELISMS_OF_CHANNELS[name.partition(":")[2]] for name in prepared.programs.channels
    ]
    windows: dict[int, list[Window]] = {}
    ranks = columns["rank"][rows]
    for rank in np.unique(ranks).tolist():
        rank_rows = rows[ranks == rank]
        rank_rows = rank_rows[np.argsort(replayed.started_ns[rank_rows], kind="stable")]
        last, ended_ns = "", 0
        windows[rank] = []
        for row in rank_rows.tolist():
            now, started_ns = lanes[columns["channel"][row]], int(replayed.started_ns[row])
            if last and now != last:
                idle_ms = (started_ns - ended_ns) / 1e6
                windows[rank].append(Window(f"{last}->{now}", idle_ms))
                ended_ns = 0
            last, ended_ns = now, max(ended_ns, int(replayed.ended_ns[row]))
    return windows


def timeline_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """The windows of the first replica of every stage, electrically switched."""
    sweep = settings.sweep
    for variant, job in settings.jobs().items():
        prepared = _prepared(job, _PACKETS, settings)
        windows = timeline_windows(
            prepared, replay_programs(prepared, None, "electrical", 0), sweep.iterations - 1
        )
        ranks = job_ranks(job, all_ranks=sweep.whole) // job.degrees.pipeline
        for stage in range(job.degrees.pipeline):
            for number, window in enumerate(windows.get(stage * ranks, ())):
                yield {
                    **job_head(name, variant, job),
                    "stage": stage,
                    "window": number,
                    "transition": window.transition,
                    "window_ms": window.window_ms,
                    "fidelity": "replay",
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
        for scope, sent_bytes in (("rail", traffic(job)), ("pipeline", per_pipeline(job))):
            for parallelism, size in sent_bytes.items():
                yield {
                    **job_head(name, variant, job),
                    "scope": scope,
                    "parallelism": parallelism,
                    "sent_gb": size / 1e9,
                    "fidelity": "analytic",
                }
