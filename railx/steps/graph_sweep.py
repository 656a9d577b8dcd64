"""Replays of published graphs over latencies, modes and bandwidths, at both counts.

Each step of a ring takes ``HOP_NS`` beside its bytes. Circuits follow the bits of
stages, as the published controller's do, and a rank carries out one collective at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from railx.fabric.settings import Mode
from railx.progress import counted
from railx.replay.graph_networks import placed, places_by_traffic
from railx.replay.graph_order import in_order_of_start
from railx.replay.graph_pricing import COUNTS, DeviceRates, node_ns
from railx.replay.graph_run import PreparedGraph, prepare_graph, replay_graph
from railx.replay.graph_runs import TwoRates
from railx.steps.published_graphs import PublishedStep, published_graphs
from railx.steps.settings import StepJob, StepSettings
from railx.steps.stage_bits import StageBits

__all__ = ["HOP_NS", "graph_time_rows"]

#: What a step of a ring takes beside its bytes in the artifact (opusfabric/Opus,
#: simulation/reconfig_backend): a collective is cut in 4 parts, one after the other
#: (examples/stg-template/system.json, preferred-dataset-splits and
#: active-chunks-per-dimension at 74885c2), and each message keeps its link for twice
#: the latency of 936.25 ns (examples/*/network.yml, network/Link.cpp at 795ee5b).
HOP_NS = 4 * 2 * 936.25
_ELECTRICAL: tuple[Mode, float] = ("electrical", 0.0)


def graph_time_rows(step: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """A row for each job, count, bandwidth, mode and latency.

    Times are those of the rank that ends last. ``exposed_ms``: communication in which
    it computes nothing; ``waiting_ms``: the rest of the step.
    """
    if settings.published is None:
        return
    of_degrees = {job.degrees: (name, job) for name, job in reversed(settings.jobs().items())}
    pairs = [(*each, counts) for each in of_degrees.values() for counts in COUNTS]
    for name, job, counts in counted(pairs, "published graphs"):
        for gb_s, latencies_ms in _points(settings, job).items():
            prepared = _prepared(settings, job, counts, gb_s)
            electrical_ms = replay_graph(prepared).step_ns / 1e6
            modes: tuple[Mode, ...] = ("on_demand", "provisioned")
            for mode, latency_ms in [_ELECTRICAL, *product(modes, latencies_ms)]:
                replayed = replay_graph(prepared, mode, round(latency_ms * 1e6))
                rank, step_ms = replayed.last_rank, replayed.step_ns / 1e6
                compute_ms = replayed.compute_ns(rank) / 1e6
                exposed_ms = sum(replayed.exposed_ns(rank).values()) / 1e6
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
                    "electrical_ms": electrical_ms,
                    "added_ms": step_ms - electrical_ms,
                    "compute_ms": compute_ms,
                    "exposed_ms": exposed_ms,
                    "waiting_ms": step_ms - compute_ms - exposed_ms,
                    "switches": replayed.commands,
                    "fidelity": "replay",
                }


def _points(settings: StepSettings, job: StepJob) -> dict[float, tuple[float, ...]]:
    """The latencies by the bandwidth of rails."""
    sweep = settings.sweep
    points = dict.fromkeys(sweep.bandwidths_gb_s, sweep.bandwidth_latencies_ms)
    return {**points, job.device.scale_out_gb_s: sweep.latencies_ms}


def _prepared(settings: StepSettings, job: StepJob, counts: str, gb_s: float) -> PreparedGraph:
    degrees, device = job.degrees, job.device
    assert settings.published is not None
    graphs = published_graphs(
        PublishedStep(
            data=degrees.data,
            tensor=degrees.tensor,
            pipeline=degrees.pipeline,
            layer=settings.published,
            batch=degrees.data * job.micro_batches * job.micro_batch_sequences,
            length=job.sequence_tokens,
            layers=job.model.layers,
            hidden=job.model.hidden,
        )
    )
    graphs = placed(graphs, places_by_traffic(graphs, degrees.tensor))
    network = TwoRates("rails", degrees.tensor, device.scale_up_gb_s, gb_s, HOP_NS)
    rates = DeviceRates(device.peak_tflops, device.memory_gb_s)
    lasts_ns = node_ns(graphs, rates, network.priced(graphs), COUNTS[counts])
    graphs, lasts_ns = in_order_of_start(graphs, lasts_ns, one_collective=True)
    bits = StageBits(degrees.tensor, degrees.data * degrees.tensor)
    return prepare_graph(graphs, lasts_ns, bits, one_collective=True)
