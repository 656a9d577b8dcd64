"""Both times of a training run: on the wall as measured, and on a cluster.

Cluster time is the replay of the electrical recording, with each rank's computation by
its busy clock and communication by a topology's table. ``recorded`` is the recording
itself: its electrical replay reproduces the wall times, and its other modes add
switches to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from railx.fabric.circuits import Layout
from railx.fabric.settings import Mode
from railx.io import read_json
from railx.performance.layer_profile import ProfileFit
from railx.planning.format.files import read_plan
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from railx.planning.format.schedule import operations, stage_layers
from railx.progress import counted
from railx.replay.graph_pricing import price_of
from railx.replay.recording import Passes, cluster_programs, recorded_programs
from railx.replay.run import Prepared, prepare, replay_programs
from railx.replay.settings import ReplaySettings
from railx.settings import SettingsError, load


def passes_of_run(plan: Path, profile: Path, trace: Iterable[Mapping[str, Any]]) -> Passes:
    """What ranks compute, by plan and fit; SettingsError where the fit is another's."""
    fit: ProfileFit = load(ProfileFit, read_json(profile), "profile")
    followed = read_plan(plan)
    model = followed.settings["model"]
    if fit.model != model["name"]:
        raise SettingsError(
            "replay.profile",
            f"got a profile of {fit.model}; allowed: of {model['name']}, the model of the run",
        )
    return profiled_passes(followed, fit, model["layers"], {row["iteration"] for row in trace})


def profiled_passes(plan: Plan, fit: ProfileFit, layers: int, iterations: Iterable[int]) -> Passes:
    """The passes of every rank of a plan for a model of so many ``layers``.

    Iteration i runs batch i of the plan, which begins anew after its last. Embedding,
    head and loss count on the last stage of a pipeline; a recomputed layer takes its
    forward pass once more in the backward pass.
    """
    passes: dict[tuple[int, int], Sequence[tuple[str, float]]] = {}
    passes_in = _in_groups if plan.kind == "sequence_parallel" else _in_pipelines
    for iteration in iterations:
        number = iteration % len(plan.batches)
        for rank in range(plan.devices):
            passes[rank, iteration] = list(passes_in(plan, number, rank, fit, layers))
    return passes


def _in_groups(
    plan: Plan, number: int, rank: int, fit: ProfileFit, layers: int
) -> Iterator[tuple[str, float]]:
    for micro_batch in plan.sequence_parallel_batches()[number].micro_batches:
        for group in micro_batch.groups:
            if rank in group.ranks:
                slices = [(0, length) for length in group.lengths]
                layer_ms = fit.layer_ms(slices, group.degree)
                pass_ms = layers * layer_ms + fit.ends_ms(group.tokens, group.degree)
                yield "forward", fit.forward_share * pass_ms
                yield "backward", (1 - fit.forward_share) * pass_ms


def _in_pipelines(
    plan: Plan, number: int, rank: int, fit: ProfileFit, layers: int
) -> Iterator[tuple[str, float]]:
    for pipeline in plan.pipeline_batches()[number].pipelines:
        if rank in pipeline.ranks:
            stage = pipeline.ranks.index(rank) // pipeline.degree
            for op in operations(pipeline, stage):
                forward_ms, backward_ms = _chunk_ms(pipeline, op.chunk, stage, fit, layers)
                yield op.kind, forward_ms if op.kind == "forward" else backward_ms


def _chunk_ms(
    pipeline: Pipeline, number: int, stage: int, fit: ProfileFit, layers: int
) -> tuple[float, float]:
    chunk = pipeline.chunks[number]
    layer_ms = fit.layer_ms([(part.start, part.tokens) for part in chunk.slices], pipeline.degree)
    pass_ms = len(stage_layers(layers, pipeline.stages)[stage]) * layer_ms
    if stage == pipeline.stages - 1:
        pass_ms += fit.ends_ms(chunk.tokens, pipeline.degree)
    recomputed = chunk.recomputed_layers(stage)
    forward_ms = fit.forward_share * pass_ms
    return forward_ms, pass_ms - forward_ms + recomputed * fit.forward_share * layer_ms


#: The name of the replay with the recording's own times.
RECORDED = "recorded"

_Row = Mapping[str, Any]


def cluster_time(
    trace: Sequence[_Row],
    tables: Mapping[str, Iterable[_Row]],
    settings: ReplaySettings,
    layout: Layout,
    warmup: int,
    *,
    shared_device: bool = False,
    passes: Passes | None = None,
) -> list[dict[str, Any]]:
    """One row for each topology, fabric setting and timed iteration of a run.

    ``trace`` are the events of a run under all its fabric settings, ``tables`` the
    bandwidth tables by topology, ``passes`` what a profile says that ranks compute
    (None: as long as they were busy). Columns: topology (``recorded``: the recording as
    it was), compute (``measured`` or ``profile``), mode, reconfiguration_latency_ms,
    iteration, wall_ms (None where the setting was not run), cluster_ms, both of the
    slowest rank; of the mean rank: compute_ms,
    communication_ms, hidden_share (of communication; None without any), stall_ms,
    wait_ms, requests, reconfigurations. ``shared_device``: ranks shared a GPU, whose
    clock then tells no rank's own time: without a profile ``recorded`` alone is there.
    """
    wall = _wall(trace)
    electrical = [event for event in trace if event["mode"] == "electrical"]
    programs = {RECORDED: recorded_programs(electrical)}
    if passes is not None or not shared_device:
        for topology, table in tables.items():
            rows = [row for row in table if row["fidelity"] == settings.fidelity]
            programs[topology] = cluster_programs(
                electrical, price_of(rows), passes, shared_device=shared_device
            )
    computed = "measured" if passes is None else "profile"
    sweep: dict[Mode, tuple[float, ...]] = {
        "electrical": (0.0,),
        "on_demand": settings.on_demand_latencies_ms,
        "provisioned": settings.provisioned_latencies_ms,
    }
    return [
        {"topology": topology, "compute": "measured" if topology == RECORDED else computed} | row
        for topology, steps in counted(programs.items(), "topologies")
        for prepared in [prepare(steps, layout)]
        for mode, latencies_ms in sweep.items()
        for latency_ms in latencies_ms
        for row in _replayed(topology, prepared, mode, latency_ms, settings, warmup, wall)
    ]


def summarised(rows: Iterable[_Row]) -> list[dict[str, Any]]:
    """Medians over the iterations of each topology and fabric setting."""
    groups: dict[tuple[Any, ...], list[_Row]] = defaultdict(list)
    keys = ("topology", "compute", "mode", "reconfiguration_latency_ms")
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    values = ("wall_ms", "cluster_ms", "compute_ms", "communication_ms", "hidden_share")
    return [
        dict(zip(keys, setting, strict=True))
        | {name: _median([row[name] for row in group]) for name in (*values, "stall_ms")}
        | {"iterations": len(group)}
        for setting, group in groups.items()
    ]


def _median(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None


def _wall(trace: Iterable[_Row]) -> dict[tuple[str, float, int], float]:
    """The slowest rank's wall time of each iteration by fabric setting, in ms."""
    wall_ms: dict[tuple[str, float, int], float] = defaultdict(float)
    for event in trace:
        if event["kind"] == "iteration":
            key = (event["mode"], event["reconfiguration_latency_ms"], event["iteration"])
            wall_ms[key] = max(wall_ms[key], (event["end_ns"] - event["start_ns"]) / 1e6)
    return dict(wall_ms)


def _replayed(
    topology: str,
    prepared: Prepared,
    mode: Mode,
    latency_ms: float,
    settings: ReplaySettings,
    warmup: int,
    wall: Mapping[tuple[str, float, int], float],
) -> Iterable[dict[str, Any]]:
    table = replay_programs(
        prepared,
        mode,
        round(latency_ms * 1e6),
        keep_leases=settings.leases == "held",
        message_ns=round(settings.message_ms * 1e6),
    ).table
    for iteration in sorted(set(table["iteration"].tolist())):
        if iteration < warmup:
            continue
        ranks = table["iteration"] == iteration
        mean = {name: fmean(values[ranks].tolist()) for name, values in table.items()}
        communication_ns = mean["communication_ns"]
        yield {
            "topology": topology,
            "mode": mode,
            "reconfiguration_latency_ms": latency_ms,
            "iteration": iteration,
            "wall_ms": wall.get((mode, latency_ms, iteration)),
            "cluster_ms": int((table["end_ns"] - table["begin_ns"])[ranks].max()) / 1e6,
            "compute_ms": mean["compute_ns"] / 1e6,
            "communication_ms": communication_ns / 1e6,
            "hidden_share": mean["hidden_ns"] / communication_ns if communication_ns else None,
            **{f"{name}_ms": mean[f"{name}_ns"] / 1e6 for name in ("stall", "wait")},
            **{name: mean[name] for name in ("requests", "reconfigurations")},
        }
