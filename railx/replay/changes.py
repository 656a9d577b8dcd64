"""Where a recorded run changed circuits, and the idle time before each change.

The window of a change (photonic rails, Opus, arXiv 2602.12521, fig. 4) is how long the
switch could be at work before anybody waits for it: from the moment at which all ports
are free and everyone has announced or asked, to the moment at which the last member
stands before the operation. A reconfiguration latency L then stalls it for max(0, L -
window).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from railx.fabric.circuits import Circuit, Configuration, Layout, Port
from railx.fabric.core import OperationKey

__all__ = ["Change", "circuit_changes"]

_Event = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """An operation whose circuits were not up when it came.

    * ``key``: channel and number of the operation.
    * ``iteration``: that of the member which came last to it.
    * ``window_ns``: from the first moment at which the switch could begin (announced
      or asked by all members, ports free) to the last member's arrival; 0 where they
      arrived before.
    * ``stall_ns``: waiting for light, by the controller's account, of the member that
      waited longest.
    """

    key: OperationKey
    configuration: Configuration
    iteration: int
    window_ns: int
    stall_ns: int


@dataclass
class _Operation:
    key: OperationKey
    configuration: Configuration
    events: list[_Event]

    @property
    def arrived_ns(self) -> int:
        return max(int(event["issued_ns"]) for event in self.events)

    @property
    def began_ns(self) -> int:
        return max(int(event["start_ns"]) for event in self.events)

    @property
    def ended_ns(self) -> int:
        return max(int(event["end_ns"]) for event in self.events)


def circuit_changes(events: Iterable[_Event], layout: Layout, *, announced: bool) -> list[Change]:
    """The changes of one run's trace in the order in which they began.

    ``events`` are rows of a trace (columns of ``training.trace.SCHEMA``).
    ``announced``: ranks say what they need next when the operation before it in the
    iteration has ended; otherwise they only ask when they stand before it. The first
    operation of each port is no change.
    """
    operations, stalls = _read(events)
    before = _previous(operations)
    last: dict[Port, tuple[Circuit, int]] = {}
    found = []
    for operation in sorted(operations, key=lambda item: (item.began_ns, item.key)):
        circuits = layout.circuits(operation.configuration)
        ports = [(port, circuit) for circuit in circuits for port in circuit.ports]
        used = [last[port][1] for port, _ in ports if port in last]
        if used and any(last[port][0] != circuit for port, circuit in ports if port in last):
            known_ns = [
                before.get((event["rank"], operation.key), int(event["issued_ns"]))
                if announced
                else int(event["issued_ns"])
                for event in operation.events
            ]
            found.append(
                Change(
                    operation.key,
                    operation.configuration,
                    max(event["iteration"] for event in operation.events),
                    max(0, operation.arrived_ns - max(*used, *known_ns)),
                    _stall(operation, stalls),
                )
            )
        for port, circuit in ports:
            ended_ns = operation.ended_ns
            if port in last and last[port][0] == circuit:
                ended_ns = max(ended_ns, last[port][1])
            last[port] = circuit, ended_ns
    return found


def _read(
    events: Iterable[_Event],
) -> tuple[list[_Operation], dict[tuple[int, str], list[_Event]]]:
    """Operations that need circuits, and the waits for light by rank and phase."""
    operations: dict[OperationKey, _Operation] = {}
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
            operations[key] = _Operation(key, Configuration(kind, ranks), [])
        operations[key].events.append(event)
    whole = [
        item for item in operations.values() if len(item.events) == len(item.configuration.members)
    ]
    return whole, stalls


def _previous(operations: Iterable[_Operation]) -> dict[tuple[int, OperationKey], int]:
    """When a rank had ended what came before an operation in its iteration."""
    programs: dict[tuple[int, int], list[tuple[int, int, OperationKey]]] = defaultdict(list)
    for operation in operations:
        for event in operation.events:
            programs[event["rank"], event["iteration"]].append(
                (event["issued_ns"], event["end_ns"], operation.key)
            )
    found: dict[tuple[int, OperationKey], int] = {}
    for (rank, _), program in programs.items():
        ended_ns: int | None = None
        for issued_ns, end_ns, key in sorted(program):
            if ended_ns is not None:
                found[rank, key] = min(ended_ns, issued_ns)
            ended_ns = end_ns if ended_ns is None else max(ended_ns, end_ns)
    return found


def _stall(operation: _Operation, stalls: Mapping[tuple[int, str], list[_Event]]) -> int:
    """The longest wait for light that ended as the operation began."""
    longest = 0
    for event in operation.events:
        waits = stalls.get((event["rank"], operation.configuration.name), ())
        ended = [item for item in waits if item["end_ns"] <= event["start_ns"]]
        if ended:
            last = max(ended, key=lambda item: item["end_ns"])
            if last["end_ns"] >= operation.arrived_ns:
                longest = max(longest, last["end_ns"] - last["start_ns"])
    return longest
