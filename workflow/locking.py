"""Clear what a killed pipeline run left behind, and only that.

Snakemake marks a working folder as taken with files that outlive a killed process. A
lock of the operating system, which filelock takes, does not: whoever gets it knows that
no other run is alive, so marks that are still there are stale.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["hold_folder"]

#: Taken until the process ends: a lock that nobody refers to is given back.
_LOCKS: list[FileLock] = []


def hold_folder(state: Path) -> FileLock | None:
    """Take the folder until this process ends.

    Stale marks under ``state``/locks are removed. Returns the lock, or None when
    another run holds the folder (Snakemake's own marks then stay and speak for
    themselves).
    """
    state.mkdir(parents=True, exist_ok=True)
    lock = FileLock(state / "pipeline.lock", mode=0o666)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    _LOCKS.append(lock)
    for mark in (state / "locks").glob("*.lock"):
        mark.unlink(missing_ok=True)
    return lock
