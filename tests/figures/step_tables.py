"""Small tables of generated steps for the figures that draw them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.builders import write_result

Row = dict[str, Any]

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
