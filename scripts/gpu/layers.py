"""Steps on decoder layers alone: their times and memory, and the fit of cost models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from .work import Findings, Work, environment, now_ms, wait_for

#: What the papers say of their cost models: FlexSP's at most, InfiniPipe's typically.
_FLEXSP_ERROR, _INFINIPIPE_ERROR = 0.06, 0.05
#: How often the slices are measured.
_TIMES = 3


def launch(work: Work) -> Findings:
    """Constants of the step model: products by size, memory traffic, launch times.

    Its form of a product of m x k by k x n is 2 m n k (1 + tile (1/m + 1/n + 1/k)) over
    the reached share of the peak. No pass of a layer is shorter than the host's time to
    launch it, which is that of a pass on a few tokens.
    """
    import numpy as np
    import torch

    from training.utilisation import peak_tflop_s

    found = work.findings()
    name = "cpu" if work.dry else torch.cuda.get_device_name()
    peak = peak_tflop_s(name, "bfloat16")
    rows, widths = (
        ((32, 64), (48, 96)) if work.dry else ((256, 1024, 4096, 16_384), (2048, 5504, 8192))
    )
    options: Any = {"dtype": torch.bfloat16, "device": work.device}
    edges, slowness = [], []  # of products: 1/m + 1/n + 1/k, and 1 / share
    for m in rows:
        for k in widths:
            for n in widths:
                left, right = torch.randn(m, k, **options), torch.randn(k, n, **options)
                ms = _repeated_ms(work, lambda left=left, right=right: left @ right)
                found.measured("product", ms, subject=f"{m} x {k} x {n}", unit="ms")
                if peak is not None:
                    share = 2 * m * k * n / (ms * 1e-3) / (peak * 1e12)
                    found.measured("share_of_the_peak", share, subject=f"{m} x {k} x {n}")
                    edges.append(1 / m + 1 / k + 1 / n)
                    slowness.append(1 / share)
    found.check("sizes", len(found.measurements), "at_least", len(rows) * len(widths) ** 2)
    largest = None
    if slowness:
        tile, least = np.polyfit(edges, slowness, 1)
        found.measured("matmul_share", 1 / least)
        found.measured("matmul_tile", tile / least)
        errors = np.abs(np.polyval((tile, least), edges) / slowness - 1)
        found.measured("product_fit_error", float(np.median(errors)))
        largest = 1 / min(slowness)
    # More than the peak is a wrong clock or a wrong peak.
    found.check("largest_share_of_the_peak", largest, "at_most", 1.0)
    source = torch.randn(2**12 if work.dry else 2**29, **options)
    target, small = torch.empty_like(source), torch.zeros(1, device=work.device)
    copied_ms = _repeated_ms(work, lambda: target.copy_(source))
    found.measured("memory", 2 * source.nbytes / copied_ms / 1e6, unit="GB/s")
    found.measured("small_kernel", _repeated_ms(work, lambda: small.add_(1), 500), unit="ms")
    few = {"contexts": [0], "degrees": [1], "checkpointing": [False]}
    few["lengths"] = [8, 16, 32, 64, 128]
    settings = work.resolved("profiles", "llama_1b") | few
    for row in _points(work, "launch", settings):
        for what in ("forward_ms", "backward_ms"):
            subject = f"{what.removesuffix('_ms')} of {row['part']}"
            found.check("pass_of_a_few_tokens", row[what], "at_least", 1e-6, subject=subject)
            found.measured(
                "pass_of_a_few_tokens", row[what], subject=subject, sample=row["tokens"], unit="ms"
            )
    return found


def _repeated_ms(work: Work, call: Callable[[], Any], repeats: int = 20) -> float:
    """The time of a call among many that are issued one after another."""
    for _ in range(3):
        call()
    wait_for(work)
    begin_ms = now_ms()
    for _ in range(repeats):
        call()
    wait_for(work)
    return (now_ms() - begin_ms) / repeats


def profile_1b(work: Work) -> Findings:
    """Layers of the 1B model: lengths, degrees, slices, recomputed and not."""
    return _profiled(work, "llama_1b")


def profile_7b(work: Work) -> Findings:
    """Layers of the 7B model."""
    return _profiled(work, "llama_7b")


def profile_13b(work: Work) -> Findings:
    """Layers of the 13B model."""
    return _profiled(work, "llama_13b")


def profile_30b(work: Work) -> Findings:
    """Layers of the 30B model."""
    return _profiled(work, "llama_30b")


def _points(work: Work, name: str, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Measure a profile in a process of its own; the rows of its table."""
    config = work.config(f"profile_{name}", {**settings, "device": work.device})
    points = work.out / "profiles" / f"{name}.json"
    points.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "training.profile"]
    # torch's profiler counts memory on a CPU, and says each time that it does.
    subprocess.run(
        [*command, "--config", str(config), "--out", str(points)],
        check=True,
        env=environment(KINETO_LOG_LEVEL="99"),
    )
    rows: list[dict[str, Any]] = json.loads(points.read_text())
    return rows


def _profiled(work: Work, name: str) -> Findings:
    """A profile, and how far its fits are off on the fifth that they have not seen."""
    from railx.performance.layer_profile import ProfileSettings, fit_profile, layer_points
    from railx.settings import load, to_dict

    found = work.findings()
    plain = work.resolved("profiles", name)
    settings: ProfileSettings = load(ProfileSettings, plain, "profile")
    rows = _points(work, name, plain)
    wanted = len(layer_points(settings))
    found.check("points", len(rows), "equal", wanted, subject=name)
    # FlexSP has no slices; InfiniPipe's model has them.
    whole = [row for row in rows if not row["context"]]
    for paper, used, allowed in (
        ("flexsp", whole, _FLEXSP_ERROR),
        ("infinipipe", rows, _INFINIPIPE_ERROR),
    ):
        fit = fit_profile(used, settings.held_out_seed)
        subject = f"{paper} {name}"
        # FlexSP states the most, InfiniPipe what is typical.
        error = fit.held_out_largest_error if paper == "flexsp" else fit.held_out_error
        found.check("held_out_time_error", error, "at_most", allowed, subject=subject, goal=True)
        found.check(
            "held_out_memory_error", fit.held_out_memory_error, "at_most", _INFINIPIPE_ERROR,
            subject=subject, goal=True,
        )  # fmt: skip
        for what, value in (
            ("median_time_error", fit.held_out_error),
            ("largest_time_error", fit.held_out_largest_error),
            ("median_memory_error", fit.held_out_memory_error),
        ):
            found.measured(what, value, subject=subject)
        found.details[paper] = to_dict(fit)
    again = _recomputing_error(rows)
    found.measured("recomputing_error", again, subject=name)
    found.check("recomputing_error", again, "at_most", 0.1, subject=name, goal=True)
    peaks = [row["peak_bytes"] for row in rows]
    found.check(
        "points_with_memory", sum(peak > 0 for peak in peaks), "equal", wanted, subject=name
    )
    found.measured("largest_peak", max(peaks), subject=name, unit="bytes")
    found.details["points"] = rows
    return found


def _recomputing_error(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """How far a recomputed layer is from a plain one and its forward pass once more."""

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return row["degree"], row["context"], row["tokens"]

    layer = [row for row in rows if row["part"] == "layer"]
    plain = {key(row): row for row in layer if not row["checkpointed"]}
    errors = [
        abs(
            (twin["forward_ms"] * 2 + twin["backward_ms"])
            / (row["forward_ms"] + row["backward_ms"])
            - 1
        )
        for row in layer
        if row["checkpointed"] and (twin := plain.get(key(row)))
    ]
    return median(errors) if errors else None


def slices(work: Work) -> Findings:
    """A layer of the 7B model on a sequence, whole and cut into slices."""
    found = work.findings()
    settings = work.resolved("profiles", "llama_7b_slices")
    longest = max(settings["lengths"])
    cuts = {length: longest // length for length in settings["lengths"] if length < longest}
    slower: dict[int, list[float]] = {count: [] for count in cuts.values()}
    for time in range(1 if work.dry else _TIMES):
        rows = {
            (row["context"], row["tokens"]): row
            for row in _points(work, f"slices_{time}", settings)
            if row["part"] == "layer"
        }
        whole = _ms(rows[0, longest])
        for length, count in cuts.items():
            parts = [rows[at, length] for at in range(0, longest, length)]
            slower[count].append(sum(map(_ms, parts)) / whole)
            found.measured(
                "time_over_whole", slower[count][-1], subject=f"{count} slices", sample=time
            )
        found.measured("whole", whole, subject=f"{longest} tokens", sample=time, unit="ms")
        found.details[f"points_{time}"] = list(rows.values())
    for count, values in slower.items():
        found.check(
            "time_over_whole", median(values), "at_least", 0.9, subject=f"{count} slices", goal=True
        )
    found.check("cuts", len(cuts), "at_least", 1)
    return found


def _ms(row: Mapping[str, Any]) -> float:
    return float(row["forward_ms"] + row["backward_ms"])
