"""What a computation has allocated, on a CPU by torch's profiler and on a GPU by its
allocator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["Allocated", "allocations"]


@dataclass
class Allocated:
    """Bytes beyond those that were there before, once the computation has ended.

    ``peak_bytes`` is the most that was alive at once, ``left_bytes`` what still is;
    below zero where more was freed.
    """

    peak_bytes: int = 0
    left_bytes: int = 0


@contextmanager
def allocations(device: torch.device) -> Iterator[Allocated]:
    """Count what is allocated inside; only one such block at a time."""
    counted = Allocated()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield counted
        torch.cuda.synchronize(device)
        counted.peak_bytes = torch.cuda.max_memory_allocated(device) - before
        counted.left_bytes = torch.cuda.memory_allocated(device) - before
        return
    recording: Any = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with recording:
        yield counted
    events = [
        (event.start_ns(), event.nbytes())
        for event in recording.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    for _, size in sorted(events, key=lambda event: event[0]):
        counted.left_bytes += size
        counted.peak_bytes = max(counted.peak_bytes, counted.left_bytes)
