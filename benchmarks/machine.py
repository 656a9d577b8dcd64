"""What a benchmark ran on, in one line."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

__all__ = ["describe"]


def describe() -> str:
    """Cores, processor, Python, Numba and NumPy versions, and the load when asked:
    numbers taken on a busy machine say so.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = os.getloadavg()[0]
    return (
        f"{cores} cores, {_processor()}, Python {platform.python_version()}, Numba"
        f" {version('numba')}, NumPy {version('numpy')}, load average {busy:.1f}"
    )


def _processor() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "unknown",
    )
