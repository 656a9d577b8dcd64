"""What every benchmark writes beside what it prints: its numbers, one a row.

A benchmark calls :func:`record` where it prints; ``benchmarks/run.py`` names the file
that the rows go to. Run by hand, nothing is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

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
