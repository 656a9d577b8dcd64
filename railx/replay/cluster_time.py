"""Both times of a training run: on the wall as measured, and on a cluster.

Cluster time is the replay of the electrical recording, with each rank's computation by
its busy clock and communication by a topology's table. ``recorded`` is the recording
itself: its electrical replay reproduces the wall times, and its other modes add
switches to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from railx.fabric.circuits import Layout
from railx.fabric.settings import Mode
from railx.progress import counted
from railx.replay.engine import ReplayedIteration, Step
from railx.replay.passes import Passes
from railx.replay.pricing import price_of
from railx.replay.programs import Programs
from railx.replay.recording import cluster_programs, recorded_programs
from railx.replay.run import Prepared, prepare, replay_programs
from railx.replay.settings import ReplaySettings

__all__ = ["RECORDED", "cluster_time", "summarised"]

#: The name of the replay with the recording's own times.
RECORDED = "recorded"

_Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Setting:
    mode: Mode
    latency_ms: float
    keep_leases: bool
    message_ms: float


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
    programs: dict[str, dict[int, list[Step]]] = {RECORDED: recorded_programs(electrical)}
    if passes is not None or not shared_device:
        for topology, table in tables.items():
            rows = [row for row in table if row["fidelity"] == settings.fidelity]
            programs[topology] = cluster_programs(
                electrical, price_of(rows), passes, shared_device=shared_device
            )
    computed = "measured" if passes is None else "profile"
    return [
        {"topology": topology, "compute": "measured" if topology == RECORDED else computed} | row
        for topology, steps in counted(programs.items(), "topologies")
        for prepared in [prepare(Programs.from_steps(steps), layout)]
        for setting in _sweep(settings)
        for row in _replayed(topology, prepared, setting, warmup, wall)
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


def _sweep(settings: ReplaySettings) -> list[_Setting]:
    modes: list[tuple[Mode, tuple[float, ...]]] = [
        ("electrical", (0.0,)),
        ("on_demand", settings.on_demand_latencies_ms),
        ("provisioned", settings.provisioned_latencies_ms),
    ]
    return [
        _Setting(mode, latency_ms, settings.leases == "held", settings.message_ms)
        for mode, latencies_ms in modes
        for latency_ms in latencies_ms
    ]


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
    setting: _Setting,
    warmup: int,
    wall: Mapping[tuple[str, float, int], float],
) -> Iterable[dict[str, Any]]:
    by_iteration: dict[int, list[ReplayedIteration]] = defaultdict(list)
    replayed = replay_programs(
        prepared,
        None,
        setting.mode,
        round(setting.latency_ms * 1e6),
        keep_leases=setting.keep_leases,
        message_ns=round(setting.message_ms * 1e6),
    )
    for row in replayed.rows():
        by_iteration[row.iteration].append(row)
    for iteration, ranks in sorted(by_iteration.items()):
        if iteration < warmup:
            continue
        communication_ns = fmean(row.communication_ns for row in ranks)
        yield {
            "topology": topology,
            "mode": setting.mode,
            "reconfiguration_latency_ms": setting.latency_ms,
            "iteration": iteration,
            "wall_ms": wall.get((setting.mode, setting.latency_ms, iteration)),
            "cluster_ms": max(row.duration_ns for row in ranks) / 1e6,
            "compute_ms": fmean(row.compute_ns for row in ranks) / 1e6,
            "communication_ms": communication_ns / 1e6,
            "hidden_share": fmean(row.hidden_ns for row in ranks) / communication_ns
            if communication_ns
            else None,
            "stall_ms": fmean(row.stall_ns for row in ranks) / 1e6,
            "wait_ms": fmean(row.wait_ns for row in ranks) / 1e6,
            "requests": fmean(row.requests for row in ranks),
            "reconfigurations": fmean(row.reconfigurations for row in ranks),
        }
