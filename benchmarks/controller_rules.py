"""What one source of the controller's rules would cost: an event of the core against a
call into compiled code.

Measured in November 2026: an event of the core takes 4.9 us and a compiled one 0.18 us,
so that a replay by the core takes 27 times as long. Calling compiled code from the core
takes 4.1 us for nothing: its state is 35 arrays. It also loads 101 MiB instead of 21.

The job: 64 ranks in rings of eight along two axes in turn, so that every ring switches
all its ports. ``python benchmarks/controller_rules.py`` prints microseconds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque

import numba
import numpy as np
from shared import describe, record

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import SwitchAction
from railx.replay.programs import DOES, Programs
from railx.replay.run import prepare, replay_programs

SIDE, ITERATIONS, CALLS = 8, 40, 20_000


def rings() -> list[list[Configuration]]:
    """The rings of each axis."""
    places = range(SIDE)
    rows = [Configuration("ring", tuple(SIDE * row + place for place in places)) for row in places]
    columns = [
        Configuration("ring", tuple(SIDE * row + place for row in places)) for place in places
    ]
    return [rows, columns]


def core_event_s() -> float:
    """Processor seconds of one event of the core."""
    core, events, axes = ControllerCore(Layout(1), SIDE * SIDE), 0, rings()
    start = time.process_time()
    for iteration in range(ITERATIONS):
        for axis, groups in enumerate(axes):
            for number, group in enumerate(groups):
                key = f"{axis}.{number}", iteration
                actions = deque[object]()
                for rank in group.members:
                    actions += core.ask(rank, iteration, key, group, 0)
                    events += 1
                while actions:
                    action = actions.popleft()
                    if isinstance(action, SwitchAction):
                        actions += core.switched(action.command, 0)
                        events += 1
                for rank in group.members:
                    core.release(rank, key, 0)
                    events += 1
    return (time.process_time() - start) / events


def programs() -> Programs:
    """The same operations as programs of ranks."""
    begin, issue, wait, end = map(DOES.index, ("begin", "issue", "wait", "end"))
    names = [
        f"{axis}.{number}" for axis, groups in enumerate(rings()) for number in range(len(groups))
    ]
    configurations = [group for groups in rings() for group in groups]
    steps: dict[int, list[tuple[int, ...]]] = {rank: [] for rank in range(SIDE * SIDE)}
    for iteration in range(ITERATIONS):
        for rank in steps:
            steps[rank].append((rank, iteration, begin, 0, -1, -1, -1, 0))
        for number, group in enumerate(configurations):
            operation = number, iteration, number
            for rank in group.members:
                steps[rank].append((rank, iteration, issue, 100, *operation, 1000))
                steps[rank].append((rank, iteration, wait, 0, *operation, 0))
        for rank in steps:
            steps[rank].append((rank, iteration, end, 0, -1, -1, -1, 0))
    columns = np.array([row for rows in steps.values() for row in rows]).T
    fields = ("rank", "iteration", "does", "gap_ns", "channel", "sequence", "configuration")
    named = dict(zip((*fields, "lasts_ns"), columns, strict=True))
    return Programs.from_columns(named, names, configurations)


@numba.njit
def _nothing(state):  # type: ignore[no-untyped-def]
    return state.n[0]


def main() -> None:
    """Print and record the numbers."""
    print(describe())
    prepared = prepare(programs(), Layout(1))
    replay_programs(prepared, "on_demand", 100)
    _nothing(prepared.state)
    start = time.process_time()
    events = replay_programs(prepared, "on_demand", 100).events
    compiled_s = (time.process_time() - start) / events
    start = time.process_time()
    for _ in range(CALLS):
        _nothing(prepared.state)
    call_s = (time.process_time() - start) / CALLS
    numbers = {"event of the core": core_event_s(), "compiled event": compiled_s}
    numbers["empty call with the compiled state"] = call_s
    for name, seconds in numbers.items():
        print(f"{name}: {1e6 * seconds:.2f} us")
        record(name, 1e6 * seconds, "us", clock="processor")
    for module in ("railx.fabric.core", "railx.replay.kernels.ranks"):
        code = f"import {module}; print(open('/proc/self/status').read())"
        run = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        resident = next(line for line in run.stdout.splitlines() if line.startswith("VmRSS"))
        memory_mib = int(resident.split()[1]) / 1024
        print(f"memory after import of {module}: {memory_mib:.0f} MiB")
        record(f"memory with {module}", memory_mib, "MiB", clock="memory")


if __name__ == "__main__":
    main()
