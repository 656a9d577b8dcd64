"""The processor time that other processes took while a block of iterations ran.

Busy time of all cores as the kernel counts it, less the time of the training's own
processes. None on systems without /proc.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
#: user, nice, system, irq, softirq and steal; idle and iowait are left out, and guests
#: are part of user. Steal is time that a hypervisor gave to other guests.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Reading:
    """Processor time so far, read by one rank.

    ``busy_s`` and ``cores`` describe the whole machine, None without /proc; ``used_s``
    is the processor time of this rank and its helper processes.
    """

    machine: str
    wall_s: float
    used_s: float
    busy_s: float | None
    cores: int | None

    def since(self, earlier: Reading) -> Reading:
        """The difference between this reading and an earlier one."""
        available = self.busy_s is not None and earlier.busy_s is not None
        return Reading(
            self.machine,
            self.wall_s - earlier.wall_s,
            self.used_s - earlier.used_s,
            self.busy_s - earlier.busy_s if available else None,  # type: ignore[operator]
            self.cores if available else None,
        )


def read_processors(*helpers: int) -> Reading:
    """Processor time of machine, process and ``helpers`` (ids; 0: have ended)."""
    busy_s, cores = _busy()
    return Reading(
        machine=platform.node(),
        wall_s=time.monotonic(),
        used_s=time.process_time() + sum(_used_s(process) for process in helpers),
        busy_s=busy_s,
        cores=cores,
    )


def others_share(spans: Sequence[Reading]) -> float | None:
    """The share of all cores' time that other processes took, maximum over machines.

    ``spans``: the difference of two readings of each rank (:meth:`Reading.since`). None
    where a machine has no /proc; clamped to 0 .. 1, as the kernel counts in ticks.
    """
    shares = []
    for machine in {span.machine for span in spans}:
        here = [span for span in spans if span.machine == machine]
        busy_s, cores, wall_s = here[0].busy_s, here[0].cores, here[0].wall_s
        if busy_s is None or cores is None or wall_s <= 0:
            return None
        others_s = busy_s - sum(span.used_s for span in here)
        shares.append(min(1.0, max(0.0, others_s / (cores * wall_s))))
    return max(shares, default=None)


def load_average() -> list[float] | None:
    """Load averages over 1, 5 and 15 minutes; None where the system has none."""
    try:
        return list(os.getloadavg())
    except (AttributeError, OSError):
        return None


def _busy() -> tuple[float, int] | tuple[None, None]:
    try:
        lines = (_PROC / "stat").read_text().splitlines()
        ticks = [int(field) for field in lines[0].split()[1:]]
        busy_s = sum(ticks[column] for column in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None, None
    cores = sum(line.startswith("cpu") for line in lines) - 1
    return (busy_s, cores) if cores > 0 else (None, None)


def _used_s(process: int) -> float:
    try:
        # The name, in brackets, may hold anything.
        fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
