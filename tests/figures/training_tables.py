"""Tables of training runs for the figures that read them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.builders import write_result


def write_planned(results: Path, rng: np.random.Generator) -> list[Path]:
    """Two runs that plan while training; the second waits for a tenth of it. One whose
    batches come from the file.
    """
    paths = []
    for run, planning_ms, wait_ms in (
        ("flexsp_stdlib", 20.0, 0.2),
        ("pipeline_stdlib", 40.0, 4.0),
        ("static_stdlib", None, None),
    ):
        rows = [
            {
                "repeat": repeat,
                "iteration": iteration,
                "rank": rank,
                "iteration_ms": 300 + rng.uniform(0, 30),
                "planning_ms": planning_ms,
                "planning_wait_ms": wait_ms if rank else 0.0,
                "disturbed": repeat == 2,
            }
            for repeat in range(3)
            for iteration in range(1, 4)
            for rank in range(2)
        ]
        paths.append(
            write_result(
                results,
                "training.iterations",
                rows,
                run,
                run=run,
                plan=run,
                mode="electrical",
                reconfiguration_latency_ms=0.0,
                fidelity="measured_cpu",
            )
        )
    return paths


def write_passes(results: Path) -> list[Path]:
    """Two stages that hold two chunks and one; a run without pipelines has no rows."""
    mib = 2**20
    rows = [
        {
            "rank": stage,
            "stage": stage,
            "position": position,
            "kind": "forward" if live > before else "backward",
            "chunk": position // 2,
            "live_chunks": live,
            "predicted_live_chunks": live,
            "held_bytes": live * 3 * mib + mib,
            "peak_bytes": live * 4 * mib + mib,
            "predicted_held_bytes": live * 3 * mib + mib,
        }
        for stage, window in ((0, [0, 1, 2, 1, 0]), (1, [0, 1, 0, 1, 0]))
        for position, (before, live) in enumerate(pairwise(window))
    ]
    return [
        write_result(
            results,
            "training.passes",
            own,
            run,
            run=run,
            plan=run,
            device="cpu",
            iteration=0,
            replica=0,
            place=0,
            pipeline=0,
            fidelity="measured_cpu",
        )
        for run, own in (("pipeline_stdlib", rows), ("flexsp_stdlib", []))
    ]


def write_live(results: Path) -> list[Path]:
    """Two programs over three latencies, the first with a restarted controller."""
    paths = []
    for program, ranks, base_ms in (("dp2_pp2_tp2", 8, 400.0), ("dp2_pp2_tp4", 16, 900.0)):
        settings = [("electrical", 0.0, False)]
        settings += [
            (mode, latency_ms, False)
            for mode in ("on_demand", "provisioned")
            for latency_ms in (0.0, 100.0, 1000.0)
        ]
        settings += [("provisioned", 100.0, True)] if ranks == 8 else []
        rows = []
        for mode, latency_ms, restarted in settings:
            windows_ms = 0.0 if mode == "on_demand" else 60.0
            stall_ms = 0.0 if mode == "electrical" else 6 * max(0.0, latency_ms - windows_ms)
            rows.append(
                {
                    "mode": mode,
                    "reconfiguration_latency_ms": latency_ms,
                    "controller_restarted": restarted,
                    "ranks": ranks,
                    "iteration_ms": base_ms + 1.03 * stall_ms + 200.0 * restarted,
                    "predicted_iteration_ms": base_ms + stall_ms,
                    "all_stalls_ms": 4.1 * stall_ms,
                    "all_predicted_stalls_ms": 4.0 * stall_ms,
                    "fidelity": "measured_cpu" if mode == "electrical" else "emulated",
                }
            )
        paths.append(write_result(results, "live.settings", rows, program, program=program))
    return paths
