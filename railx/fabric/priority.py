"""When the system runs the controller beside the ranks: before them, where it may.

It shares their cores in an emulation and has a machine of its own in a cluster. A
system without such priorities, or one that does not grant them, changes nothing.
"""

from __future__ import annotations

import contextlib
import os

from railx.fabric.settings import Priority

__all__ = ["go_first", "priority_of"]


def go_first() -> None:
    """Run this process before those of normal priority.

    Threads that are started later inherit it.
    """
    # musl knows the call and does not carry it out, other systems do not know it.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def priority_of(process: int = 0) -> Priority:
    """How the system schedules a process; 0: this one."""
    with contextlib.suppress(OSError, AttributeError):
        if os.sched_getscheduler(process) == os.SCHED_RR:
            return "real_time"
    return "normal"
