"""Where a recorded run changed circuits, and the idle time before each change.

The window of a change (photonic rails, Opus, arXiv 2602.12521, fig. 4) is how long the
switch could be at work before anybody waits for it: from the moment at which all ports
are free and everyone has announced or asked, to the moment at which the last member
stands before the operation. A reconfiguration latency L then stalls it for max(0, L -
window).

A rank announces circuits, not operations: what it needs next is known when nothing is
under way on it any more, also where several operations in a row need the same circuits
(a pipeline stage sends and receives at once) and the first to begin is not the first
that it issued.

:func:`switchings` reads from the controller's journal when it switched, and for which
operation. A stall by its account is latency less window, and three delays more: the
switch's own, the message that the switch may begin, and (with the other sign) the last
question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from railx.fabric.circuits import Circuit, Configuration, Layout, Port
from railx.fabric.decisions.state import GrantAction, SwitchAction
from railx.fabric.holdings import OperationKey
from railx.fabric.journal import replay_journal


def stall_ms(latency_ms: float, windows_ms: Iterable[float]) -> float:
    """Time lost to switching: the sum of max(0, L - W), where W below 0 counts as 0."""
    return sum(max(0.0, latency_ms - max(window_ms, 0.0)) for window_ms in windows_ms)


_Event = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """An operation whose circuits were not up when it came.

    * ``key``: channel and number of the operation.
    * ``iteration``: that of the member which came last to it.
    * ``opened_ns``: the first moment at which the switch could begin (announced or
      asked by all members, ports free).
    * ``arrived_ns``: the last member's arrival, at the first of the operations that all
      stand before on these circuits.
    * ``began_ns``: when the last member had its circuits.
    * ``stall_ns``: waiting for light, by the controller's account, of the member that
      waited longest.
    """

    key: OperationKey
    configuration: Configuration
    iteration: int
    opened_ns: int
    arrived_ns: int
    began_ns: int
    stall_ns: int

    @property
    def window_ns(self) -> int:
        """From one moment to the other; 0 where the members arrived before."""
        return max(0, self.arrived_ns - self.opened_ns)


@dataclass
class _RecordedOperation:
    key: OperationKey
    configuration: Configuration
    events: list[_Event]

    def last_ns(self, moment: str) -> int:
        """When the last member issued, started or ended it."""
        return max(int(event[f"{moment}_ns"]) for event in self.events)


#: A rank's part of an operation.
_Part = tuple[_RecordedOperation, _Event]


def circuit_changes(events: Iterable[_Event], layout: Layout, *, announced: bool) -> list[Change]:
    """The changes of one run's trace in the order in which they began.

    ``events`` are rows of a trace (columns of ``railx_torch.trace.SCHEMA``).
    ``announced``: ranks say what they need next when the operation before it in the
    iteration has ended; otherwise they only ask when they stand before it. The first
    operation of each port is no change.
    """
    operations, stalls = _read(events)
    before = _previous(operations)
    last: dict[Port, tuple[Circuit, int]] = {}
    changes = []
    ordered = sorted(operations, key=lambda item: (item.last_ns("start"), item.key))
    for index, operation in enumerate(ordered):
        circuits = layout.circuits(operation.configuration)
        ports = [(port, circuit) for circuit in circuits for port in circuit.ports]
        used = [last[port][1] for port, _ in ports if port in last]
        if used and any(last[port][0] != circuit for port, circuit in ports if port in last):
            announced_ns = [
                before[event["rank"], operation.key] if announced else int(event["issued_ns"])
                for event in operation.events
            ]
            changes.append(
                Change(
                    operation.key,
                    operation.configuration,
                    max(event["iteration"] for event in operation.events),
                    max(*used, *announced_ns),
                    _arrived(ordered[index:], layout),
                    operation.last_ns("start"),
                    _stall(operation, stalls),
                )
            )
        for port, circuit in ports:
            ended_ns = operation.last_ns("end")
            if port in last and last[port][0] == circuit:
                ended_ns = max(ended_ns, last[port][1])
            last[port] = circuit, ended_ns
    return changes


def _read(
    events: Iterable[_Event],
) -> tuple[list[_RecordedOperation], dict[tuple[int, str], list[_Event]]]:
    """Operations that need circuits, and the waits for light by rank and phase."""
    operations: dict[OperationKey, _RecordedOperation] = {}
    stalls: dict[tuple[int, str], list[_Event]] = defaultdict(list)
    for event in events:
        kind, _, members = event["phase"].partition(" ")
        if kind not in ("pair", "ring"):
            continue
        if event["kind"] == "reconfiguration":
            stalls[event["rank"], event["phase"]].append(event)
            continue
        key = event["channel"], event["sequence"]
        if key not in operations:
            ranks = tuple(int(member) for member in members.split(","))
            operations[key] = _RecordedOperation(key, Configuration(kind, ranks), [])
        operations[key].events.append(event)
    complete = [
        item for item in operations.values() if len(item.events) == len(item.configuration.members)
    ]
    return complete, stalls


def _arrived(operations: Sequence[_RecordedOperation], layout: Layout) -> int:
    """When all members of the first operation first stood before one on its circuits.

    Only those count that it shares its circuits with before they move again.
    """
    first = operations[0]
    arrived_ns = first.last_ns("issued")
    for operation in operations[1:]:
        if operation.configuration == first.configuration:
            arrived_ns = min(arrived_ns, operation.last_ns("issued"))
        elif layout.conflict(operation.configuration, first.configuration):
            break
    return arrived_ns


def _previous(operations: Iterable[_RecordedOperation]) -> dict[tuple[int, OperationKey], int]:
    """When a rank had made known that an operation's circuits are its next ones.

    It announces them when an operation has ended, none is under way, and none was asked
    for that comes first (as :meth:`railx_torch.session.Session` does). Without that it
    is known when the rank asks for the first operation on them.
    """
    programs: dict[tuple[int, int], list[_Part]] = defaultdict(list)
    for operation in operations:
        for event in operation.events:
            programs[event["rank"], event["iteration"]].append((operation, event))
    announced: dict[tuple[int, OperationKey], int] = {}
    for (rank, _), program in programs.items():
        program.sort(key=lambda part: (part[1]["issued_ns"], part[0].key))
        first = 0
        for index, (operation, _) in enumerate(program):
            if operation.configuration != program[first][0].configuration:
                first = index
            issued_ns = int(program[first][1]["issued_ns"])
            announced[rank, operation.key] = _announced_ns(program[:first], issued_ns)
    return announced


def _announced_ns(earlier: Sequence[_Part], issued_ns: int) -> int:
    """When a rank announced what it issued at ``issued_ns``; that moment where not.

    ``earlier``: what it had issued before, for other circuits.
    """
    began_ns = [event["start_ns"] for _, event in earlier]
    begun = [n for n, start_ns in enumerate(began_ns) if start_ns <= issued_ns]
    ended_ns = max((int(earlier[n][1]["end_ns"]) for n in begun), default=issued_ns)
    passed = max((n for n in begun if earlier[n][0].configuration.kind == "ring"), default=0)
    waits = any(start_ns > issued_ns for start_ns in began_ns[passed:])
    return issued_ns if waits else min(ended_ns, issued_ns)


def _stall(operation: _RecordedOperation, stalls: Mapping[tuple[int, str], list[_Event]]) -> int:
    """The longest wait for light that ended as the operation began."""
    longest = 0
    for event in operation.events:
        waits = stalls.get((event["rank"], operation.configuration.name), ())
        ended = [item for item in waits if item["end_ns"] <= event["start_ns"]]
        last = max(ended, key=lambda item: item["end_ns"], default=None)
        if last is not None and last["end_ns"] >= operation.last_ns("issued"):
            longest = max(longest, last["end_ns"] - last["start_ns"])
    return longest


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
    """A journal's grants that circuits came up for; JournalError where it is none."""
    replayed = replay_journal(path)
    commands: dict[int, tuple[int, tuple[Circuit, ...]]] = {}
    up: dict[Circuit, tuple[int, int]] = {}
    grants: dict[tuple[int, Configuration], Switching] = {}
    for event, actions in zip(replayed.lines, replayed.actions, strict=True):
        if event["event"] == "switched":
            command, now_ns = event["args"]
            begun_ns, circuits = commands.pop(command)
            up |= dict.fromkeys(circuits, (now_ns, begun_ns))
        for action in actions:
            if isinstance(action, SwitchAction):
                commands[action.command] = event["args"][-1], action.connect
            elif isinstance(action, GrantAction) and action.reconfigured:
                needs, granted_ns = action.configuration, action.granted_ns
                up_ns, begun_ns = max(up[item] for item in layout.circuits(needs))
                asked_ns = granted_ns - action.stall_ns
                grants[granted_ns, needs] = Switching(needs, begun_ns, up_ns, asked_ns, granted_ns)
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
        alike = by_configuration[change.configuration]
        before = [item for item in alike if item.granted_ns <= change.began_ns]
        last = max(before, key=lambda switching: switching.granted_ns, default=None)
        if last is None:
            delays.append(None)
            continue
        switch_ns = last.up_ns - last.begun_ns - latency_ns
        question_ns = last.asked_ns - max(change.arrived_ns, change.opened_ns)
        delays.append(Delays(switch_ns, last.begun_ns - change.opened_ns, question_ns))
    return delays


_Row = dict[str, Any]
#: What tells the blocks of a program apart.
_BLOCK = ("mode", "reconfiguration_latency_ms", "controller_restarted")


def _blocks(rows: list[_Row]) -> dict[tuple[Any, ...], list[_Row]]:
    blocks: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        blocks.setdefault(tuple(row[key] for key in _BLOCK), []).append(row)
    return blocks


def change_rows(
    trace: list[_Row], layout: Layout, journals: Mapping[tuple[Any, ...], list[Any]]
) -> list[_Row]:
    """A row for each change of circuits: its window, both stalls, what lies between."""
    rows = []
    for block, events in _blocks(trace).items():
        mode, latency_ms, _ = block
        if mode == "electrical":
            continue
        changes = circuit_changes(events, layout, announced=mode == "provisioned")
        delays = delays_of(changes, journals.get(block, ()), round(latency_ms * 1e6))
        for change, delay in zip(changes, delays, strict=True):
            window_ms = change.window_ns / 1e6
            rows.append(
                dict(zip(_BLOCK, block, strict=True))
                | {
                    "iteration": change.iteration,
                    "circuits": change.configuration.name,
                    "window_ms": window_ms,
                    "predicted_stall_ms": max(0.0, latency_ms - window_ms),
                    "stall_ms": change.stall_ns / 1e6,
                    "switch_delay_ms": delay and delay.switch_ns / 1e6,
                    "begin_delay_ms": delay and delay.begin_ns / 1e6,
                    "question_delay_ms": delay and delay.question_ns / 1e6,
                    "fidelity": "emulated",
                }
            )
    return rows


def setting_rows(name: str, ranks: int, iterations: list[_Row], changes: list[_Row]) -> list[_Row]:
    """A row for each block: medians over its iterations, the slowest rank of each."""
    measured_blocks, switched_blocks = _blocks(iterations), _blocks(changes)
    times_ms: dict[tuple[Any, ...], tuple[float, float]] = {}
    for block, measured in measured_blocks.items():
        numbers = {row["iteration"] for row in measured}
        predicted = _predicted(switched_blocks.get(block, []), numbers)
        times_ms[block] = median(_slowest(measured, "iteration_ms")), median(predicted)
    # A mode without switching: its block of the least latency, less the stalls there.
    unswitched_ms: dict[str, float] = {}
    for block in sorted(times_ms, key=lambda block: block[1]):
        unswitched_ms.setdefault(block[0], times_ms[block][0] - times_ms[block][1])
    rows: list[_Row] = []
    for block, measured in measured_blocks.items():
        switched = switched_blocks.get(block, [])
        count = len({row["iteration"] for row in measured})
        iteration_ms, predicted_ms = times_ms[block]
        rows.append(
            {"program": name, "ranks": ranks}
            | dict(zip(_BLOCK, block, strict=True))
            | {
                "iteration_ms": iteration_ms,
                "predicted_iteration_ms": unswitched_ms[block[0]] + predicted_ms,
                **{key: median(_slowest(measured, key)) for key in ("stall_ms", "wait_ms")},
                "reconfigurations": max(row["reconfigurations"] for row in measured),
                "mispredictions": sum(row["mispredictions"] for row in measured),
                "changes": len(switched) / count,
                "all_stalls_ms": sum(row["stall_ms"] for row in switched) / count,
                "all_predicted_stalls_ms": sum(row["predicted_stall_ms"] for row in switched)
                / count,
                "last_loss": measured[-1]["loss"],
                **{
                    key: measured[0][key]
                    for key in ("load_share", "controller_priority", "fidelity")
                },
            }
        )
    return rows


def _predicted(changes: list[_Row], iterations: set[int]) -> list[float]:
    """For each iteration the stalls that its windows leave, of the rank with most."""
    sums: dict[tuple[int, str], float] = {}
    for row in changes:
        for rank in row["circuits"].partition(" ")[2].split(","):
            key = row["iteration"], rank
            sums[key] = sums.get(key, 0.0) + row["predicted_stall_ms"]
    return [
        max((total for (number, _), total in sums.items() if number == iteration), default=0.0)
        for iteration in sorted(iterations)
    ]


def _slowest(rows: list[_Row], column: str) -> list[float]:
    most: dict[int, float] = {}
    for row in rows:
        most[row["iteration"]] = max(row[column], most.get(row["iteration"], 0.0))
    return list(most.values())
