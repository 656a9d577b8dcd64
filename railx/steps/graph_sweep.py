"""Published graphs on the published simulator over latencies, modes and bandwidths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from railx.progress import counted
from railx.replay.graph_pricing import COUNTS
from railx.steps.published_graphs import Links, PublishedStep
from railx.steps.published_run import PublishedRun, announced, split_links, stage_times
from railx.steps.settings import StepJob, StepSettings


def graph_time_rows(step: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """A row for each job, count, bandwidth, mode and latency.

    Times are those of the rank that ends last; ``exposed_ms``: time in which it does
    not compute, as the artifact counts. ``added_ms``: over the same mode at latency 0.
    Mode ``static_split``: electrical, on bandwidth that is split once for all.
    """
    if settings.published is None:
        return
    of_degrees = {job.degrees: (name, job) for name, job in reversed(settings.jobs().items())}
    pairs = [(*named, counts) for named in of_degrees.values() for counts in COUNTS]
    for name, job, counts in counted(pairs, "published graphs"):
        for gb_s, latencies_ms in _points(settings, job).items():
            zero_ms: dict[str, float] = {}
            runs = _runs(_step(settings, job), job, counts, gb_s, latencies_ms)
            for mode, latency_ms, run in runs:
                rank = run.last_rank
                step_ms, compute_ms = run.ended_ns[rank] / 1e6, run.compute_ns(rank) / 1e6
                zero_ms.setdefault(mode, step_ms)
                yield {
                    "step": step,
                    "job": name,
                    "layer": settings.published,
                    "gpus": job.degrees.ranks,
                    "counts": counts,
                    "scale_out_gb_s": gb_s,
                    "mode": mode,
                    "reconfiguration_latency_ms": latency_ms,
                    "step_ms": step_ms,
                    "electrical_ms": zero_ms["electrical"],
                    "added_ms": step_ms - zero_ms[mode],
                    "compute_ms": compute_ms,
                    "exposed_ms": step_ms - compute_ms,
                    "switches": run.circuits.commands if run.circuits else 0,
                    "fidelity": "replay",
                }


def _runs(
    step: PublishedStep, job: StepJob, counts: str, gb_s: float, latencies_ms: tuple[float, ...]
) -> Iterator[tuple[str, float, PublishedRun]]:
    """Mode, latency and run; first the electrical one."""
    up = job.device.scale_up_gb_s

    def stages(links_gb_s: Mapping[Links, float]) -> Any:
        return stage_times(step, job.device, links_gb_s, COUNTS[counts])

    full = stages({"data": gb_s, "tensor": up, "pipeline": gb_s})
    yield "electrical", 0.0, PublishedRun(step, full)
    yield "static_split", 0.0, PublishedRun(step, stages(split_links(step, up, gb_s)))
    for latency_ms in sorted({0.0, *latencies_ms}):
        latency_ns = round(latency_ms * 1e6)
        on_demand = PublishedRun(step, full, latency_ns)
        yield "on_demand", latency_ms, on_demand
        yield "provisioned", latency_ms, PublishedRun(step, full, latency_ns, announced(on_demand))


def _points(settings: StepSettings, job: StepJob) -> dict[float, tuple[float, ...]]:
    """The latencies by the bandwidth of rails."""
    sweep = settings.sweep
    points = dict.fromkeys(sweep.bandwidths_gb_s, sweep.bandwidth_latencies_ms)
    return {**points, job.device.scale_out_gb_s: sweep.latencies_ms}


def _step(settings: StepSettings, job: StepJob) -> PublishedStep:
    degrees = job.degrees
    assert settings.published is not None
    return PublishedStep(
        data=degrees.data,
        tensor=degrees.tensor,
        pipeline=degrees.pipeline,
        layer=settings.published,
        batch=degrees.data * job.micro_batches * job.micro_batch_sequences,
        length=job.sequence_tokens,
        layers=job.model.layers,
        hidden=job.model.hidden,
    )
