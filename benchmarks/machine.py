"""What a benchmark ran on, in one line."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path


def describe() -> str:
    """Cores, processor, Python, Numba and NumPy versions, and the load when asked:
    numbers taken on a busy machine say so.
    """
    busy = os.getloadavg()[0]
    return (
        f"{cores()} cores, {_processor()}, Python {platform.python_version()}, Numba"
        f" {version('numba')}, NumPy {version('numpy')}, load average {busy:.1f}"
    )


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kind() -> str:
    """The kind of this machine as a file's name: its processor and cores."""
    words = re.sub(r"\(.*?\)|processor|cpu|@.*", " ", _processor().lower())
    return f"{'_'.join(re.findall('[a-z0-9]+', words))}_{cores()}_cores"


def _processor() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "unknown",
    )
