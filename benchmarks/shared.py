"""What benchmarks share: their numbers and tables, the machine, the compilation's time.

A benchmark calls :func:`record` where it prints; ``benchmarks/run.py`` names the file
that the rows go to, one a number. Run by hand, nothing is written.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

#: The variable of the environment that names the file.
FILE = "RAILX_BENCHMARK_ROWS"
Better = Literal["less", "more"]
#: What a number was read from: ``none`` for what is the same in every run,
#: ``processor`` for processor time, ``wall`` for a clock that runs on while others
#: work, ``memory`` for peak memory.
Clock = Literal["none", "processor", "wall", "memory"]


def record(name: str, value: float, unit: str, *, better: Better = "less", clock: Clock) -> None:
    """Write a number down where a file is named."""
    file = os.environ.get(FILE)
    if file:
        row = {"name": name, "value": float(value), "unit": unit, "better": better, "clock": clock}
        with Path(file).open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a stored table (CSV); none where it is not there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Store a table, whole or not at all."""
    beside = path.with_suffix(".tmp")
    with beside.open("w", newline="", encoding="utf-8") as lines:
        table = csv.DictWriter(lines, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    beside.replace(path)


def describe() -> str:
    """What a benchmark ran on, in one line: cores, processor, Python, Numba and NumPy
    versions, and the load when asked: numbers taken on a busy machine say so.
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


def first_call(run: Callable[[], object]) -> float:
    """Seconds of the first run in this process, import of the compiler included, less
    those of the second.
    """
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds[0] - seconds[1]


def compile_times(script: str) -> tuple[float, float]:
    """Seconds that ``script --first-call`` prints in a fresh process: with an empty
    cache of compiled code, then with a full one.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, script, "--first-call"]
        seconds = [
            float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
            for _ in range(2)
        ]
    record("first call, empty cache", seconds[0], "s", clock="wall")
    record("first call, full cache", seconds[1], "s", clock="wall")
    return seconds[0], seconds[1]
