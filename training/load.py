"""How busy others kept the machine while a block of iterations ran.

What the kernel counts as busy over all cores, less what the processes of the training
used themselves. Where the kernel does not tell (no /proc), nothing is known and nothing
is guessed.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Reading", "load_average", "others_share", "read_processors"]

_PROC = Path("/proc")
#: user, nice, system, irq, softirq and steal; idle and iowait are left out, and guests
#: count as user already. What a hypervisor took away was busy for somebody else.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Reading:
    """Processor time so far, as one rank reads it.

    ``busy_s`` and ``cores`` are of its whole machine, None where the kernel does not
    tell; ``own_s`` is what this rank and the processes that it names have used.
    """

    machine: str
    wall_s: float
    own_s: float
    busy_s: float | None
    cores: int | None

    def since(self, earlier: Reading) -> Reading:
        """What passed between an earlier reading and this one."""
        known = self.busy_s is not None and earlier.busy_s is not None
        return Reading(
            self.machine,
            self.wall_s - earlier.wall_s,
            self.own_s - earlier.own_s,
            self.busy_s - earlier.busy_s if known else None,  # type: ignore[operator]
            self.cores if known else None,
        )


def read_processors(*helpers: int) -> Reading:
    """Processor time up to now of the machine, this process and its ``helpers``.

    They are process ids; one that has ended counts for nothing.
    """
    busy_s, cores = _busy()
    return Reading(
        machine=platform.node(),
        wall_s=time.monotonic(),
        own_s=time.process_time() + sum(_used_s(process) for process in helpers),
        busy_s=busy_s,
        cores=cores,
    )


def others_share(spans: Sequence[Reading]) -> float | None:
    """The share of all cores' time that others took, on the machine where it is most.

    ``spans`` holds what passed on each rank (:meth:`Reading.since`). None where a
    machine does not tell. Ticks of the kernel's clock may leave a little too much or
    too little, so the share is held between 0 and 1.
    """
    shares = []
    for machine in {span.machine for span in spans}:
        here = [span for span in spans if span.machine == machine]
        busy_s, cores, wall_s = here[0].busy_s, here[0].cores, here[0].wall_s
        if busy_s is None or cores is None or wall_s <= 0:
            return None
        others_s = busy_s - sum(span.own_s for span in here)
        shares.append(min(1.0, max(0.0, others_s / (cores * wall_s))))
    return max(shares, default=None)


def load_average() -> list[float] | None:
    """Processes that run or wait to, over 1, 5 and 15 minutes; None where unknown."""
    try:
        return list(os.getloadavg())
    except (AttributeError, OSError):
        return None


def _busy() -> tuple[float, int] | tuple[None, None]:
    try:
        lines = (_PROC / "stat").read_text().splitlines()
        ticks = [int(field) for field in lines[0].split()[1:]]
        busy_s = sum(ticks[place] for place in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None, None
    cores = sum(line.startswith("cpu") for line in lines) - 1
    return (busy_s, cores) if cores > 0 else (None, None)


def _used_s(process: int) -> float:
    """User and system time of a process."""
    try:
        # The name, in brackets, may hold anything.
        fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
