"""Utilisation of a device: model FLOPs of a step, MFU, and peak memory.

Model FLOPs are those of the forward pass and twice as many backward, of full sequences
under a causal mask; recomputed layers are not counted. MFU needs a device and precision
with a published peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import torch

from railx.performance.decoder import ModelSettings, forward_flops
from railx.planning.format.plan import PipelineBatch, Plan, SequenceParallelBatch, sequence_lengths

#: Dense bfloat16 operations (10^12 a second) by the beginning of a device's name, from
#: NVIDIA's data sheets (H100 and H200: the numbers with sparsity, halved). The longest
#: beginning counts.
PEAK_TFLOP_S: dict[str, float] = {
    "NVIDIA H200": 989.4,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA A100": 312.0,
    "NVIDIA A800": 312.0,
}

#: Forward, and the gradients of inputs and of weights.
_FORWARD_AND_BACKWARD = 3


def batch_flops(model: ModelSettings, batch: SequenceParallelBatch | PipelineBatch) -> int:
    """Model FLOPs of a training step on the full batch, over all ranks."""
    return _FORWARD_AND_BACKWARD * sum(
        forward_flops(model, length) for _, length in sequence_lengths(batch)
    )


def peak_tflop_s(device_name: str, precision: str) -> float | None:
    """The published peak of a device; None where it is not in the table."""
    if precision != "bfloat16":
        return None
    names = [name for name in PEAK_TFLOP_S if device_name.startswith(name)]
    return PEAK_TFLOP_S[max(names, key=len)] if names else None


def reset_peak_memory(device: torch.device) -> None:
    """Reset the maximum of :func:`peak_memory_bytes`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int | None:
    """The maximum of allocated tensor bytes of this process; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def used(
    model: ModelSettings,
    plan: Plan,
    rows: Sequence[Mapping[str, Any]],
    timed: Sequence[Mapping[str, Any]],
    device: torch.device,
    devices: int,
    precision: str,
) -> dict[str, Any]:
    """FLOPs, MFU and memory of a fabric setting: columns of the table of settings.

    The mean FLOPs, the median MFU of the ``timed`` iterations over all devices, of
    which one that is shared counts once, and the maximum of memory over all ``rows``.
    """
    flops = {
        iteration: batch_flops(model, plan.batches[iteration % len(plan.batches)])
        for iteration in {row["iteration"] for row in rows}
    }
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    peaks = [row["peak_memory_bytes"] for row in rows if row["peak_memory_bytes"] is not None]
    tflop_s = median(flops[step["iteration"]] / step["iteration_ms"] / 1e9 for step in timed)
    peak = peak_tflop_s(name, precision)
    return {
        "model_tflop": fmean(flops.values()) / 1e12,
        "mfu": None if peak is None else tflop_s / (peak * devices),
        "peak_memory_bytes": max(peaks, default=None),
    }
