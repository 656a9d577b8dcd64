"""Arrays of the replay as objects: programs step by step, and decisions one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from railx.fabric.settings import Mode
from railx.replay.kernels import state
from railx.replay.programs import DOES, KINDS, Programs
from railx.replay.run import Prepared, _carried_out, _settings
from tests.replay.programs import ReplayedOperation, Step

__all__ = ["Logged", "decisions", "steps_of"]

_ISSUE, _SEND = DOES.index("issue"), KINDS.index("send")


@dataclass(frozen=True)
class Logged:
    """A decision of the controller: a grant of an operation, or a switch command.

    ``what`` is the operation's key, or the rail with the circuits that come up.
    """

    time_ns: int
    decision: Literal["grant", "switch"]
    what: tuple[Any, ...]


def decisions(
    prepared: Prepared, mode: Mode, latency_ns: int, *, keep_leases: bool, message_ns: int = 0
) -> list[Logged]:
    """The decisions in a replay by the compiled engine, in order."""
    counters = _settings(mode, latency_ns, keep_leases=keep_leases, message_ns=message_ns)
    count = int(_carried_out(prepared, counters).n[state.LOGGED])
    decided: list[Logged] = []
    for time_ns, decision, what in _carried_out(prepared, counters, count).log.tolist():
        if decision == state.LOG_GRANT:
            name = prepared.programs.channels[prepared.channels[what]]
            decided.append(Logged(time_ns, "grant", (name, int(prepared.sequences[what]))))
        elif decision == state.LOG_SWITCH:
            decided.append(Logged(time_ns, "switch", (prepared.rails[what],)))
        else:
            last = decided.pop()
            decided.append(Logged(last.time_ns, "switch", (*last.what, prepared.circuits[what])))
    return decided


def steps_of(programs: Programs) -> dict[int, list[Step]]:
    """The same programs as objects, by rank."""
    columns = {name: values.tolist() for name, values in programs.columns.items()}
    members: dict[tuple[int, int], list[int]] = {}
    for number in np.flatnonzero(programs.columns["does"] == _ISSUE).tolist():
        key = columns["channel"][number], columns["sequence"][number]
        members.setdefault(key, []).append(number)
    operations = {
        (channel, sequence): ReplayedOperation(
            (programs.channels[channel], sequence),
            programs.configurations[columns["configuration"][numbers[0]]],
            {columns["rank"][n]: columns["lasts_ns"][n] for n in numbers},
            frozenset(columns["rank"][n] for n in numbers if columns["alone"][n]),
            kind="" if columns["kind"][numbers[0]] < 0 else KINDS[columns["kind"][numbers[0]]],
            sender=next((columns["rank"][n] for n in numbers if columns["kind"][n] == _SEND), None),
        )
        for (channel, sequence), numbers in members.items()
    }
    steps: dict[int, list[Step]] = {rank: [] for rank in range(programs.ranks)}
    for number, rank in enumerate(columns["rank"]):
        key = columns["channel"][number], columns["sequence"][number]
        steps[rank].append(
            Step(
                columns["iteration"][number],
                DOES[columns["does"][number]],
                columns["gap_ns"][number],
                operations.get(key),
                columns["pickup_ns"][number],
                columns["resume_ns"][number],
            )
        )
    return steps
