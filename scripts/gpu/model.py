"""Steps of the whole model on one rank: how fast it trains, what a step consists of."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from statistics import fmean
from typing import Any

from .ranks import short
from .work import Findings, Skipped, Work, one_rank, wait_for

#: The goals on an H100 or H200.
_MFU = {"eager": 0.40, "compiled": 0.45}
#: The timed steps: each part goes through the batches of the plan once.
_PARTS, _BATCHES = 3, 32
#: How far the step model may be off.
_STEP_MODEL_ERROR = 0.08


def eager(work: Work) -> Findings:
    """The whole model on one rank, 100 steps: tokens/s, MFU, peak memory, losses."""
    return _alone(work, "eager", compiled=False)


def compiled(work: Work) -> Findings:
    """As ``eager`` with compiled layers; Skipped without a C compiler."""
    named = [os.environ.get("CC"), "cc", "gcc", "clang"]
    if not any(name and shutil.which(name) for name in named):
        raise Skipped("no C compiler is there (CC, cc, gcc or clang), which torch.compile calls")
    return _alone(work, "compiled", compiled=True)


def _alone(work: Work, name: str, *, compiled: bool) -> Findings:
    from railx.io import read_rows
    from training.utilisation import peak_tflop_s

    found = work.findings()
    settings = work.settings("alone")
    settings["training"] |= {
        "compile": compiled,
        "repeats": 1,
        "most_extra_repeats": 0,
        "warmup_iterations": 2 if work.dry else 4,
        "iterations": 4 if work.dry else _PARTS * _BATCHES,
        "on_demand_latencies_ms": [],
        "provisioned_latencies_ms": [],
    }
    result = work.train(name, settings)
    (setting,) = result["settings"]
    losses = setting["losses"]
    tenth = max(len(losses) // 10, 1)
    found.check("losses_that_are_numbers", sum(map(math.isfinite, losses)), "equal", len(losses))
    fell = fmean(losses[-tenth:]) / fmean(losses[:tenth])
    found.check("last_loss_over_first", fell, "at_most", 0.999999)
    found.check("mfu", setting["mfu"], "at_least", _MFU[name], subject=name, goal=True)
    steps_ms = [
        row["iteration_ms"] for row in read_rows(work.out / "runs" / name / "iterations.parquet")
    ]
    size = len(steps_ms) // _PARTS
    parts_ms = [fmean(steps_ms[part * size : (part + 1) * size]) for part in range(_PARTS)]
    peak = peak_tflop_s(result["device_name"], result["precision"])
    for sample, part_ms in enumerate(parts_ms if peak is not None else ()):
        # Each part has every batch once, and so the mean operations of a step.
        mfu = setting["model_tflop"] / (part_ms / 1e3) / peak
        found.measured("mfu", mfu, subject=name, sample=sample)
    if not compiled:
        _compare(work, found, parts_ms)
    found.measured("tokens_per_s", setting["tokens_per_s"], subject=name, unit="tokens/s")
    found.measured("iteration", setting["iteration_ms"], subject=name, unit="ms")
    found.measured("peak_memory", setting["peak_memory_bytes"], subject=name, unit="bytes")
    found.measured("model_operations", setting["model_tflop"], subject=name, unit="TFLOP")
    for step, loss in enumerate(losses):
        found.measured("loss", loss, subject=name, sample=step)
    found.details = short(result)
    return found


def _compare(work: Work, found: Findings, parts_ms: list[float]) -> None:
    """The step model's prediction in the manifest beside the parts of a run."""
    import torch

    predicted = json.loads((work.folder / "manifest.json").read_text()).get("step_model_ms", {})
    name = "" if work.dry else torch.cuda.get_device_name()
    device = next((key for key in predicted if name.startswith(key)), None)
    errors = [] if device is None else [abs(predicted[device] / ms - 1) for ms in parts_ms]
    worst = max(errors, default=None)
    found.check("step_model_error", worst, "at_most", _STEP_MODEL_ERROR, goal=True)
    for sample, error in enumerate(errors):
        found.measured("step_model_error", error, sample=sample)
    if device is not None:
        found.measured("step_model", predicted[device], unit="ms", fidelity="analytic")


def kernels(work: Work) -> Findings:
    """One step under torch's profiler: kernels and waits of the host per layer."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from railx.planning.format.files import read_plan
    from training.data import plan_lengths, read_sequences
    from training.engine import Engine
    from training.settings import load_run_settings
    from training.timeline import Timeline

    found = work.findings()
    settings = load_run_settings(work.settings("alone"))
    plan = read_plan(settings.plan)
    sequences = read_sequences(settings.corpus, plan_lengths(plan), settings.model.vocabulary)
    with one_rank(work, "gloo"):
        engine = Engine(
            settings, plan, sequences, device=torch.device(work.device), timeline=Timeline()
        )
        for step in range(2):
            engine.step(plan.batches[0], step)
        wait_for(work)
        activities = [ProfilerActivity.CPU]
        activities += [] if work.dry else [ProfilerActivity.CUDA]
        with profile(activities=activities) as recorded:
            engine.step(plan.batches[0], 2)
            wait_for(work)
    batch: Any = plan.batches[0]
    passes = settings.model.layers * len(batch.micro_batches)
    names: Counter[str] = Counter()
    busy_us: Counter[str] = Counter()
    waits = operations = 0
    for event in recorded.events() or []:
        if str(event.device_type).endswith("CUDA"):
            names[event.name] += 1
            busy_us[event.name] += int(event.device_time_total)
        else:
            operations += event.name.startswith("aten::")
            waits += "Synchronize" in event.name
    per_layer = None if work.dry else names.total() / passes
    found.check("operations_seen", operations, "at_least", passes)
    found.check("kernels_of_a_layer", per_layer, "at_least", 1)
    # The profiler itself waits at the end of what it looks at.
    waited = None if work.dry else waits / passes
    found.check("waits_of_the_host_of_a_layer", waited, "at_most", 0.25, goal=True)
    found.measured("kernels_of_a_layer", per_layer)
    found.measured("waits_of_the_host", None if work.dry else waits)
    busy_ms = None if work.dry else busy_us.total() / 1e3
    found.measured("kernels_of_a_step", busy_ms, unit="ms")
    found.details = {
        "layers_times_micro_batches": passes,
        "kernels": names.total(),
        "longest": [
            {"kernel": name, "calls": names[name], "ms": time_us / 1e3}
            for name, time_us in busy_us.most_common(40)
        ],
    }
    return found
