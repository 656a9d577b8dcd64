"""When the controller of a recorded run switched, and for whom, by its journal.

A stall by the controller's account is latency less window, and three delays more: the
switch's own, that of the news that the switch may begin, and (with the other sign) that
of the last question.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from railx.fabric.circuits import Circuit, Configuration, Layout
from railx.fabric.core import GrantAction, SwitchAction
from railx.fabric.journal import replay_journal
from railx.replay.changes import Change

__all__ = ["Delays", "Switching", "delays_of", "switchings"]


@dataclass(frozen=True)
class Switching:
    """Circuits that came up for an operation, on the controller's clock.

    ``begun_ns`` and ``up_ns`` are those of the command that was through last. All
    members had asked, and the ports were free, by ``asked_ns``.
    """

    configuration: Configuration
    begun_ns: int
    up_ns: int
    asked_ns: int
    granted_ns: int


@dataclass(frozen=True)
class Delays:
    """What a stall has beside latency and window.

    * ``switch_ns``: the command took longer than its latency.
    * ``begin_ns``: it came later than ports were free and all had announced or asked.
    * ``question_ns``: the last question was heard later than its rank stood there.
    """

    switch_ns: int
    begin_ns: int
    question_ns: int


def switchings(path: str | Path, layout: Layout) -> list[Switching]:
    """Every grant of a journal that circuits came up for, in order.

    Raises :class:`railx.fabric.journal.JournalError` where the file is no journal.
    """
    replayed = replay_journal(path)
    lines = Path(path).read_text(encoding="utf-8").splitlines()[1:]
    events = [event for event in map(json.loads, lines) if "event" in event]
    commands: dict[int, tuple[int, tuple[Circuit, ...]]] = {}
    up: dict[Circuit, tuple[int, int]] = {}
    grants: dict[tuple[int, Configuration], Switching] = {}
    for event, actions in zip(events, replayed.actions, strict=False):
        if event["event"] == "switched":
            command, now_ns = event["args"]
            begun_ns, circuits = commands.pop(command)
            up |= dict.fromkeys(circuits, (now_ns, begun_ns))
        for action in actions:
            if isinstance(action, SwitchAction):
                commands[action.command] = event["args"][-1], action.connect
            elif isinstance(action, GrantAction) and action.reconfigured:
                up_ns, begun_ns = max(up[item] for item in layout.circuits(action.configuration))
                grants[action.granted_ns, action.configuration] = Switching(
                    action.configuration,
                    begun_ns,
                    up_ns,
                    action.granted_ns - action.stall_ns,
                    action.granted_ns,
                )
    return list(grants.values())


def delays_of(
    changes: Iterable[Change], journal: Iterable[Switching], latency_ns: int
) -> list[Delays | None]:
    """The delays of the changes of a run; None where the journal has no switching."""
    by_configuration: dict[Configuration, list[Switching]] = defaultdict(list)
    for switching in journal:
        by_configuration[switching.configuration].append(switching)
    delays: list[Delays | None] = []
    for change in changes:
        before = [
            switching
            for switching in by_configuration[change.configuration]
            if switching.granted_ns <= change.began_ns
        ]
        if not before:
            delays.append(None)
            continue
        last = max(before, key=lambda switching: switching.granted_ns)
        delays.append(
            Delays(
                last.up_ns - last.begun_ns - latency_ns,
                last.begun_ns - change.opened_ns,
                last.asked_ns - max(change.arrived_ns, change.opened_ns),
            )
        )
    return delays
