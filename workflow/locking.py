"""Clear what a killed pipeline run left behind, and only that.

Snakemake marks a working folder as taken with files that outlive a killed process. A
lock of the operating system does not: whoever gets it knows that no other run is alive,
so marks that are still there are stale.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["hold_folder"]


def hold_folder(state: Path) -> int | None:
    """Take the folder for this process and remove stale marks under ``state``/locks.

    Returns the open descriptor that keeps the folder taken until the process ends, or
    None when another run holds it (Snakemake's own marks then stay and speak for
    themselves).
    """
    state.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(state / "pipeline.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    for mark in (state / "locks").glob("*.lock"):
        mark.unlink(missing_ok=True)
    return descriptor
