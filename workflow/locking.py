"""Clear what a killed pipeline run left behind, and only that.

Snakemake marks a working folder as taken with files that outlive a killed process. A
lock of the operating system, which filelock takes, does not: whoever gets it knows that
no other run is alive, so marks that are still there are stale.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["hold_folder"]


def hold_folder(state: Path) -> FileLock | None:
    """Take the folder for this process and remove stale marks under ``state``/locks.

    Returns the lock, which keeps the folder taken as long as it is referred to and the
    process lives, or None when another run holds it (Snakemake's own marks then stay
    and speak for themselves).
    """
    state.mkdir(parents=True, exist_ok=True)
    lock = FileLock(state / "pipeline.lock", mode=0o666)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    for mark in (state / "locks").glob("*.lock"):
        mark.unlink(missing_ok=True)
    return lock
