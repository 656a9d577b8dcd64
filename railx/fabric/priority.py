"""The scheduling priority of the controller beside the ranks.

In an emulation the controller shares their cores; in a cluster it has its own machine.
Where the system lacks such priorities, or does not grant them, nothing changes.
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
    # musl has the call without effect, other systems lack it.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def priority_of(process: int = 0) -> Priority:
    """How the system schedules a process; 0: this one."""
    with contextlib.suppress(OSError, AttributeError):
        if os.sched_getscheduler(process) == os.SCHED_RR:
            return "real_time"
    return "normal"
