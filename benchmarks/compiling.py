"""How long compiled code takes to be ready."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from rows import record


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
