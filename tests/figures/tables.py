"""Small tables for the figures that draw published numbers beside ours, generated steps
and training runs.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from railx.io import write_json
from tests.builders import choice, write_result
from workflow.config import choices

Row = dict[str, Any]


def claim(name: str, ours: float | None, verdict: str, **more: Any) -> Row:
    """A published claim of ratio 1, with its verdict."""
    return {
        "claim": name,
        "kind": "published",
        "headline": False,
        "paper": "opus",
        "sentence": "Sentence.",
        "published": 1.0,
        "ours": ours,
        "comparison": "ratio",
        "tolerance": 0.1,
        "fidelity": None if ours is None else "analytic",
        "verdict": verdict,
        **more,
    }


def write_claims(results: Path) -> Path:
    """Claims of every verdict and comparison, with and without a ratio."""
    flexsp: Row = {"paper": "flexsp"}
    rows = [
        claim("opus_cost", 1.07, "reproduced", headline=True, comparison="at_least"),
        claim("opus_power", 0.6, "not reproduced", headline=True, comparison="at_most"),
        claim("opus_slope", 8.0, "direction only", low=7.0, high=9.0, fidelity="emulated"),
        claim("opus_trend", 1.9, "reproduced", comparison="trend"),
        claim("opus_overhead", 1.2, "undecided", fidelity="emulated"),
        claim("opus_testbed", None, "not here", headline=True),
        claim("flexsp_speedup", 1.02, "direction only", headline=True, **flexsp),
        *(claim(f"flexsp_same_{i}", 1.0, "reproduced", **flexsp) for i in range(7)),
        claim("flexsp_zero", 0.0, "reproduced", published=0.0, comparison="exact", **flexsp),
        claim("flexsp_check", 1.0, "reproduced", kind="check", **flexsp),
    ]
    return write_result(results, "evidence.claims", rows)


def plan_rows(plan: str, planner: str, seconds: float, degree: int, gb_s: float) -> list[Row]:
    """Two iterations of one micro-batch, costed with 2 MiB a token over ``gb_s``."""
    tokens = 64_000
    return [
        {
            "plan": plan,
            "planner": planner,
            "corpus": "wikipedia",
            "devices": 64,
            "kind": "sequence_parallel",
            "iteration": iteration,
            "micro_batch": 0,
            "degree": degree,
            "tokens": tokens,
            "predicted_ms": 1e3 * seconds,
            "predicted_all_to_all_ms": 2.0 * tokens / degree / gb_s,
        }
        for iteration in range(2)
    ]


def write_plans(results: Path) -> list[Path]:
    """Plans for the published case of Wikipedia's lengths."""
    return [
        write_result(results, "plan.groups", rows, str(rows[0]["plan"]), fidelity="analytic")
        for rows in (
            plan_rows("static_7b_192k_wikipedia", "static", 8.0, 64, 4.87),
            plan_rows("flexsp_7b_192k_wikipedia", "flexsp", 5.0, 8, 96.5),
        )
    ]


def write_baselines(results: Path) -> list[Path]:
    """Plans of several planners for two corpora."""
    seconds = {"static": 8.0, "static_per_batch": 6.0, "megatron": 9.0, "byte_scale": 5.0}
    return [
        write_result(
            results,
            "plan.groups",
            [row | {"corpus": corpus} for row in plan_rows(plan, planner, each, 64, 4.87)],
            plan,
            fidelity="analytic",
        )
        for corpus in ("wikipedia", "github_like")
        for planner, each in (seconds | {"flexsp": 4.0}).items()
        for plan in [f"{planner}_7b_192k_{corpus.removesuffix('_like')}"]
    ]


def write_underlays(results: Path) -> list[Path]:
    """Two plans on the cluster's own bandwidths, and on two networks at three rates."""
    paths = []
    for network, times in (
        ("published", (16.0, 24.0)),
        ("rails", (15.0, 21.0)),
        ("tree", (19, 22)),
    ):
        rates = [("equal_rate", 6.25), ("equal_rate", 50.0), ("equal_cost", 6.25)]
        bases = [("own", None)] if network == "published" else rates
        rows = [
            {
                "plan": f"{plan}_7b_384k_commoncrawl",
                "planner": plan.split("_")[0],
                "basis": basis,
                "outside_gb_s": rate,
                "made_for": made_for,
                "iteration": iteration,
                "iteration_ms": 1e3 * seconds + 500 * (made_for == "cluster"),
                "degree": degree,
                "device_ms": 64e3 * seconds * share,
                "share": share,
            }
            for basis, rate in bases
            for plan, seconds in zip(("flexsp", "static_per_batch"), times, strict=True)
            for made_for in (("cluster",) if basis == "own" else ("cluster", "network"))
            for iteration in range(2)
            for degree, share in ((1, 0.3), (8, 0.4), (64, 0.25), (0, 0.05))
        ]
        named = {"network": network, "label": network, "fidelity": "analytic"}
        paths.append(write_result(results, "underlay.mix", rows, network, **named))
    return paths


def write_pipelines(results: Path) -> dict[str, list[Path]]:
    """A pipeline of two stages, and the plans of the same batches."""
    plans = write_plans(results / "with_pipeline")
    chunks = [
        {"iteration": iteration, "group": chunk, "tokens": 32_000}
        for iteration in range(2)
        for chunk in range(2)
    ]
    groups = write_result(
        results / "with_pipeline",
        "plan.groups",
        chunks,
        "pipeline_7b_192k_wikipedia",
        plan="pipeline_7b_192k_wikipedia",
        planner="pipeline",
        corpus="wikipedia",
        devices=8,
        kind="pipeline",
        micro_batch=0,
        predicted_ms=1000.0,
        fidelity="analytic",
    )
    # Each stage works for 3 s of 4 s.
    schedule = [
        {"iteration": iteration, "stage": stage, "start_ms": start, "end_ms": start + 3000.0}
        for iteration in range(2)
        for stage, start in ((0, 0.0), (1, 1000.0))
    ]
    passes = write_result(
        results / "with_pipeline",
        "plan.schedule",
        schedule,
        "pipeline_7b_192k_wikipedia",
        plan="pipeline_7b_192k_wikipedia",
        pipeline=0,
        replica=0,
        chunk=0,
        kind="forward",
        fidelity="analytic",
    )
    return {"groups": [*plans, groups], "schedule": [passes]}


def write_iterations_of_plans(results: Path) -> dict[str, list[Path]]:
    """Every plan of the figures of iteration parts, two batches of 10 s each.

    Groups: two of 4 of 8 ranks, one of which waits for 2 s; 3 s are all-to-all and 1 s
    is ZeRO-3's. Pipelines: two stages that run 6 s of chunks, of which 1 s is
    all-to-all, recompute 2 s, wait for 1 s, and then gather for 1 s.
    """
    shipped = [choice("figure", name) for name in choices("figure")]
    panels = [one["panels"] for one in shipped if one["figure"] == "iteration_parts"]
    plans = {plan for one in panels for some in one.values() for plan in some}
    found: dict[str, list[Path]] = {"groups": [], "schedule": [], "summary": []}
    for plan in sorted(plans):
        pipelined = not plan.startswith(("flexsp", "deepspeed", "joint"))
        head = {"plan": plan, "devices": 8, "predicted_other_ms": 0.0, "micro_batch": 0}
        head |= {"kind": "pipeline" if pipelined else "sequence_parallel", "fidelity": "analytic"}
        times = [(8, 6000.0, 1000.0)] if pipelined else [(4, 10_000.0, 3000.0), (4, 8000.0, 3000.0)]
        rows = [
            {"iteration": iteration, "degree": degree, "predicted_ms": time_ms}
            | {"predicted_all_to_all_ms": exchange_ms}
            for iteration in range(2)
            for degree, time_ms, exchange_ms in times
        ]
        found["groups"].append(write_result(results, "plan.groups", rows, plan, **head))
        schedule = [
            {"iteration": iteration, "stage": stage, "start_ms": start, "end_ms": start + 8000.0}
            for iteration in range(2 if pipelined else 0)
            for stage, start in ((0, 0.0), (1, 1000.0))
        ]
        found["schedule"].append(
            write_result(results, "plan.schedule", schedule, plan, plan=plan, replica=0)
        )
        summary = results / "plan" / plan / "summary.json"
        write_json(summary, {"plan": plan, "predicted_sharding_ms": 1000.0})
        found["summary"].append(summary)
    return found


#: Step: device, GPUs, electrical ms, switches of a step, and jobs with their gradients.
STEPS: dict[str, tuple[str, int, float, int, dict[str, str]]] = {
    "h200_128": ("H200", 128, 23_000, 6, {"overlapped": "overlapped", "in_line": "in_line"}),
    "gb200_512": ("GB200", 512, 5_300, 6, {"overlapped": "overlapped", "at_end": "at_end"}),
    "smoke": ("H200", 8, 134_000, 2, {"overlapped": "overlapped"}),
    "perlmutter_llama": ("A100", 16, 6_100, 6, {"llama16": "sharded", "llama64": "sharded"}),
    "scaling_h200": ("H200", 64, 47_000, 6, {"gpus_64": "overlapped", "gpus_512": "overlapped"}),
    "frontier": ("H200", 2048, 190_000, 6, {"gpus_2048": "overlapped", "gpus_4096": "overlapped"}),
    "experts_h200": ("H200", 256, 400, 24, {"expert_8": "in_line", "expert_64": "in_line"}),
}


def write_generated(results: Path) -> dict[str, list[Path]]:
    """Times, graphs, windows and timelines of all of them."""
    return {
        "times": [_times(results, name) for name in STEPS],
        "graphs": [_graphs(results, name) for name in ("h200_128", "gb200_512")],
        "windows": [_windows(results)],
        "timeline": [
            _timeline(results, name) for name in ("h200_128", "gb200_512", "perlmutter_llama")
        ],
    }


def _job(step: str, job: str) -> Row:
    device, gpus, _, _, jobs = STEPS[step]
    own = int(job.partition("gpus_")[2] or job.partition("llama")[2] or gpus)
    expert = int(job.partition("expert_")[2] or 1)
    head = {"step": step, "job": job, "device": device, "gpus": own, "expert": expert}
    return {**head, "gradients": jobs[job]}


def _times(results: Path, step: str) -> Path:
    _, _, alone_ms, switches, jobs = STEPS[step]
    rows = []
    for job in jobs:
        head = _job(step, job)
        # The second job of a step is half as long.
        whole = alone_ms / (1 + list(jobs).index(job))
        bandwidths = (50.0, 12.5, 200.0) if step in ("h200_128", "gb200_512") else (50.0,)
        for rate in bandwidths:
            electrical = whole + 5_000 / rate
            settings = [("electrical", "electrical", 0.0)]
            settings += [
                (rule, mode, latency)
                for rule in ("circuits", "stage_bits")
                for mode in ("on_demand", "provisioned")
                for latency in (0.0, 0.5, 1.0, 10.0, 100.0, 1000.0)
            ]
            for rule, mode, latency in settings:
                share = {"electrical": 0.0, "on_demand": 1.0, "provisioned": 0.6}[mode]
                step_ms = electrical + share * switches * latency
                rows.append(
                    {
                        **head,
                        "scale_out_gb_s": rate,
                        "rule": rule,
                        "mode": mode,
                        "reconfiguration_latency_ms": latency,
                        "step_ms": step_ms,
                        "electrical_ms": electrical,
                        "utilisation": 0.1 * whole / step_ms,
                    }
                )
    return write_result(results, "steps.times", rows, step, fidelity="replay")


def _graphs(results: Path, step: str) -> Path:
    rows = [
        {
            "step": step,
            "job": "overlapped",
            "counts": counts,
            "scale_out_gb_s": 50.0,
            "mode": mode,
            "reconfiguration_latency_ms": latency,
            "added_ms": 10 * latency,
        }
        for counts in ("published", "hardware")
        for mode in ("electrical", "on_demand", "provisioned")
        for latency in (0.0, 10.0, 100.0, 1000.0)
    ]
    return write_result(results, "steps.graphs", rows, step, fidelity="replay")


def _windows(results: Path) -> Path:
    lengths = {
        ("PP->EP", "forward"): (64, 6.9033, 5.7889, 14.7045),
        ("EP->PP", "forward"): (64, 0.7837, 0.7837, 0.7837),
        ("PP->EP", "backward"): (64, 1.5675, 1.5675, 1.5675),
        ("EP->PP", "backward"): (64, 13.8066, 11.5777, 29.409),
    }
    names = ("count", "mean_ms", "min_ms", "max_ms")
    rows = [
        {"transition": transition, "direction": direction, **dict(zip(names, own, strict=True))}
        for (transition, direction), own in lengths.items()
    ]
    common: Row = {"step": "deepseek_236b", "within_layer": False, "fidelity": "analytic"}
    return write_result(results, "steps.windows", rows, "deepseek_236b", **common)


def _timeline(results: Path, step: str) -> Path:
    rows = [
        {**_job(step, job), "transition": transition, "window_ms": window_ms}
        for job in STEPS[step][-1]
        for transition, window_ms in (("PP->DP", 157.0), ("DP->PP", -5.5), ("PP->DP", 0.0))
    ]
    return write_result(results, "steps.timeline", rows, step, fidelity="replay")


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
