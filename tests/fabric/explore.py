"""Every state that a small job can reach: the real core, the real holdings of its
ranks, and the messages and faults between them.

``make explore`` goes through all scenarios; the tests go through small parts. A world
is one state. Its events are what may happen next: a rank begins or ends an operation, a
message arrives, a switch reports, or a fault, of which there is a budget. A depth-first
search takes each event in each state once. States that differ only in numbers that
count up (leases, commands, times) are one.

What holds (:func:`World.check`, :func:`World.check_end`):

* no port has two holders, and what is up or coming up is a matching;
* no operation without a grant: whatever a rank has begun, its circuits carried light
  when it began, and carry it as long as all members have begun and one has not ended;
* no grant while the switch moves: what is granted or held is lit on the switch itself;
* no tear-down in flight: no command drops a circuit in use;
* no starvation: nobody in the queue is overtaken where ports overlap;
* bounded waiting: no event leads back to an earlier state, so every run ends; and where
  nothing but giving up is left to do, nothing waits in the queue that all members asked
  for, nobody waits for what has failed, and no lease is left over. Without faults
  everything has been granted.

A message that is lost ends its connection some time later, as a heartbeat or TCP would.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from railx.fabric.actions import (
    Action,
    FoundAction,
    GrantAction,
    RecallAction,
    RefuseAction,
    SwitchAction,
)
from railx.fabric.circuits import Circuit, Configuration, Layout, Port, ports_of
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import Asked, Expected, Hint, Hold, Operation, Tombstone
from railx.fabric.holdings import Holdings, OperationKey, Presentation, Report, _Held

__all__ = [
    "SCENARIOS",
    "Exploration",
    "Scenario",
    "Violation",
    "World",
    "copy_core",
    "explore",
    "random_scenario",
    "wander",
]

FAULTS = ("double", "delay", "lose", "die", "return", "restart", "port", "switch")

Event = tuple[Any, ...]
Message = tuple[Any, ...]


class Violation(AssertionError):
    """A state that must not be; the path to it is in the message."""


@dataclass(frozen=True)
class Scenario:
    """A job and its faults.

    ``operations`` are in the order of every rank's program. ``ahead``: how many a rank
    has open at most. ``hints``: whether ranks announce their next operation.
    """

    name: str
    ranks: int
    operations: tuple[tuple[OperationKey, Configuration], ...]
    faults: tuple[tuple[str, int], ...] = ()
    ahead: int = 1
    hints: bool = False
    gpus_per_server: int = 1
    ports: tuple[Port, ...] = ()

    def program(self, rank: int) -> tuple[tuple[OperationKey, Configuration], ...]:
        """What a rank does, in order."""
        return tuple(item for item in self.operations if rank in item[1].members)


@dataclass(slots=True)
class _Rank:
    """One process and its connection: messages under way to and from the core.

    ``stray`` are messages that were doubled or delayed and may come any time: whether
    up, and what. ``over`` are operations that ended or failed. ``broken``: a message
    was lost on its connection.
    """

    holdings: Holdings
    alive: bool = True
    known: bool = True
    connected: bool = True
    broken: bool = False
    life: int = 0
    next: int = 0
    hinted: int = -1
    begun: set[OperationKey] = field(default_factory=set)
    over: set[OperationKey] = field(default_factory=set)
    up: list[Message] = field(default_factory=list)
    down: list[Action] = field(default_factory=list)
    stray: list[tuple[bool, Any]] = field(default_factory=list)


class World:
    """One state of everything."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.layout = Layout(scenario.gpus_per_server)
        self.programs = [scenario.program(rank) for rank in range(scenario.ranks)]
        self.needs = dict(scenario.operations)
        self.core = ControllerCore(self.layout, scenario.ranks)
        self.ranks = [_Rank(Holdings(self.layout)) for _ in range(scenario.ranks)]
        for rank in range(scenario.ranks):
            self.core.register(rank, 0)
        self.faults = dict(scenario.faults)
        # The switch: what carries light, and the commands under way.
        self.light: set[Circuit] = set()
        self.commands: dict[int, SwitchAction] = {}
        self.spoiled: set[Circuit] = set()
        self.broken_ports: frozenset[Port] = frozenset()
        #: Operations of the queue that the last event granted.
        self.granted: set[OperationKey] = set()

    def copy(self) -> World:
        """Another world in the same state, that shares nothing that changes."""
        other = object.__new__(World)
        other.scenario, other.layout = self.scenario, self.layout
        other.programs, other.needs = self.programs, self.needs
        other.core = copy_core(self.core)
        other.ranks = [_copy_rank(rank) for rank in self.ranks]
        other.faults = self.faults.copy()
        other.light = self.light.copy()
        other.commands = self.commands.copy()
        other.spoiled = self.spoiled.copy()
        other.broken_ports = self.broken_ports
        other.granted = set()
        return other

    # What may happen

    def events(self) -> list[Event]:
        """Everything that goes on by itself."""
        found: list[Event] = []
        core = self.core
        for number, rank in enumerate(self.ranks):
            if rank.up:
                found.append(("up", number))
            if rank.down:
                found.append(("down", number))
            found += [("stray", number, place) for place in range(len(rank.stray))]
            if rank.broken and rank.known:
                found.append(("break", number))
            if not rank.alive:
                continue
            if not rank.connected:
                found.append(("connect", number))
            if self._may_begin(number, rank):
                found.append(("begin", number))
                if self.scenario.hints and rank.hinted < rank.next and rank.connected:
                    found.append(("hint", number))
            found += [("end", number, key) for key in self._may_end(number, rank)]
        found += [("light", command) for command in self.commands]
        if core.recovering and not any(self.ranks[number].alive for number in core.awaited):
            found.append(("end recovery",))
        return found

    def _may_begin(self, number: int, rank: _Rank) -> bool:
        program = self.programs[number]
        if rank.next >= len(program) or rank.next > rank.hinted + len(program):
            return False
        open_ = 0
        key, _ = program[rank.next]
        for earlier, _ in program[: rank.next]:
            if earlier not in rank.over:
                open_ += 1
                if earlier[0] == key[0] and earlier not in rank.begun:
                    return False
        return open_ < self.scenario.ahead

    def _may_end(self, number: int, rank: _Rank) -> list[OperationKey]:
        """Operations under way whose data has moved, or that cannot go on."""
        return [
            key
            for key, configuration in self.programs[number][: rank.next]
            if key in rank.begun
            and key not in rank.over
            and (
                all(key in self.ranks[member].begun for member in configuration.members)
                or any(self._fails(member, key) for member in configuration.members)
            )
        ]

    def _fails(self, number: int, key: OperationKey) -> bool:
        """Whether a member will never come to an operation, or not any more."""
        rank = self.ranks[number]
        return not rank.alive or rank.life > 0 or (key in rank.over and key not in rank.begun)

    def give_ups(self) -> list[Event]:
        """Who waits may give up; taken where nothing else goes on."""
        return [
            ("give up", number, request)
            for number, rank in enumerate(self.ranks)
            if rank.alive and rank.connected
            for request, _, _ in rank.holdings.questions()
        ]

    def fault_events(self) -> list[Event]:
        """The faults that are left."""
        left = {name for name, count in self.faults.items() if count}
        found: list[Event] = []
        for number, rank in enumerate(self.ranks):
            for name in ("double", "delay", "lose"):
                if name in left and rank.known:
                    found += [(name, number, "up")] * bool(rank.up and rank.connected)
                    found += [(name, number, "down")] * bool(rank.down)
            if "die" in left and rank.alive and rank.next < len(self.programs[number]) + 1:
                found.append(("die", number))
            if "return" in left and not rank.alive and not rank.known:
                found.append(("return", number))
        if "restart" in left:
            found.append(("restart",))
        if "port" in left:
            found += [("port", port, True) for port in self.scenario.ports]
            if self.commands:
                found += [("port", port, False) for port in self.scenario.ports]
        if "switch" in left:
            found += [("switch", command) for command in self.commands]
        return found

    # What happens

    def take(self, event: Event) -> None:
        """One event."""
        queue = [operation.key for operation in self.core._queue.values()]
        self.granted = set()
        self._take(event)
        if self.granted and queue:
            self._check_order(queue)

    def _take(self, event: Event) -> None:
        match event:
            case ("up", int() as number):
                self._arrive(number, self.ranks[number].up.pop(0))
            case ("down", int() as number):
                self._hear(number, self.ranks[number].down.pop(0))
            case ("stray", int() as number, int() as place):
                up, message = self.ranks[number].stray.pop(place)
                if up:
                    self._arrive(number, message)
                else:
                    self._hear(number, message)
            case ("begin", int() as number):
                self._begin(number)
            case ("hint", int() as number):
                self._hint(number)
            case ("end", int() as number, tuple() as key):
                self._end(number, key)
            case ("light", int() as command):
                action = self.commands.pop(command)
                self.light.update(set(action.connect) - self.spoiled)
                self.spoiled.difference_update(action.connect)
                self._act(self.core.switched(command, 0))
            case ("give up", int() as number, int() as request):
                self._give_up(number, request)
            case ("break", int() as number):
                self._leave(number)
            case ("connect", int() as number):
                self._connect(number)
            case ("end recovery",):
                self._act(self.core.end_recovery(0))
            case (str() as name, *_):
                self.faults[name] -= 1
                self._fault(event)

    def _fault(self, event: Event) -> None:
        match event:
            case (("double" | "delay" | "lose") as name, int() as number, str() as way):
                rank = self.ranks[number]
                messages: list[Any] = rank.up if way == "up" else rank.down
                if name == "double":
                    rank.stray.append((way == "up", messages[0]))
                elif name == "delay":
                    rank.stray.append((way == "up", messages.pop(0)))
                else:
                    messages.pop(0)
                    rank.broken = True
            case ("die", int() as number):
                rank = self.ranks[number]
                rank.alive = False
                rank.holdings = Holdings(self.layout)
                rank.down.clear()
                rank.stray = [item for item in rank.stray if item[0]]
                if rank.known and rank.connected:
                    rank.up.append(("gone",))
                else:
                    rank.known = False
            case ("return", int() as number):
                rank = self.ranks[number]
                problem = self.core.register(number, rank.life + 1)
                assert problem is None, problem
                program = self.programs[number]
                back = [place for place in range(rank.next) if program[place][0] not in rank.over]
                fresh = _Rank(Holdings(self.layout), life=rank.life + 1)
                fresh.next = min(back, default=rank.next)
                fresh.over = {key for key, _ in program[: fresh.next]}
                self.ranks[number] = fresh
                if self.core.recovering:
                    fresh.up.append(("present", fresh.holdings.present()))
            case ("restart",):
                self._restart()
            case ("port", Port() as port, bool() as fails):
                self._break_port(port, fails)
            case ("switch", int() as command):
                self.spoiled.difference_update(self.commands.pop(command).connect)
                self._act(self.core.switch_failed(command, "broken", 0))

    def _break_port(self, port: Port, fails: bool) -> None:
        """Break a port, or mend it; ``fails``: with the commands that need it.

        Otherwise they are carried out for their other circuits.
        """
        if port in self.broken_ports:
            self.broken_ports -= {port}
            self._act(self.core.ports_back([port], 0))
            return
        self.broken_ports |= {port}
        self.light = {circuit for circuit in self.light if port not in circuit.ports}
        self._act(self.core.ports_lost([port], "broken", 0))
        for command, action in list(self.commands.items()):
            spoiled = {circuit for circuit in action.connect if port in circuit.ports}
            if spoiled and not fails:
                self.spoiled |= spoiled
            elif spoiled:
                self.spoiled.difference_update(action.connect)
                del self.commands[command]
                self._act(self.core.switch_failed(command, "a port is lost", 0))

    def _restart(self) -> None:
        self.commands.clear()
        self.spoiled.clear()
        self.core = ControllerCore(
            self.layout, self.scenario.ranks, active=sorted(self.light), recovering=True
        )
        if self.broken_ports:
            self.core.ports_lost(self.broken_ports, "broken", 0)
        for rank in self.ranks:
            rank.up.clear()
            rank.down.clear()
            rank.stray.clear()
            rank.connected = rank.broken = False
            rank.known = rank.alive

    def _connect(self, number: int) -> None:
        """What the client does with a new connection."""
        rank = self.ranks[number]
        rank.connected = True
        problem = self.core.register(number, rank.life, returning=True)
        assert problem is None, problem
        given_up = rank.holdings.given_up()
        rank.up.append(("present", rank.holdings.present()))
        for request, key, configuration in sorted(
            (*rank.holdings.questions(), *given_up), key=lambda item: item[0]
        ):
            if request in {item[0] for item in given_up}:
                rank.up.append(("abandon", key))
            rank.up.append(("ask", request, key, configuration))

    def _send(self, rank: _Rank, message: Message) -> None:
        if rank.connected:
            rank.up.append(message)

    def _begin(self, number: int) -> None:
        rank = self.ranks[number]
        key, configuration = self.programs[number][rank.next]
        if rank.holdings.begin(key, configuration):
            rank.begun.add(key)
            self._must_be_lit(number, key)
        else:
            rank.holdings.ask(rank.next, key, configuration)
            self._send(rank, ("ask", rank.next, key, configuration))
        rank.next += 1

    def _hint(self, number: int) -> None:
        rank = self.ranks[number]
        rank.hinted = rank.next
        configuration = self.programs[number][rank.next][1]
        if rank.holdings.holds(configuration):
            return
        for held in rank.holdings.in_the_way_of(configuration):
            report = rank.holdings.recall(held)
            assert report is not None
            rank.up.append(("recalled", held, report))
        rank.up.append(("hint", configuration))

    def _end(self, number: int, key: OperationKey) -> None:
        rank = self.ranks[number]
        rank.over.add(key)
        if rank.holdings.end(key):
            self._send(rank, ("release", key))

    def _give_up(self, number: int, request: int) -> None:
        rank = self.ranks[number]
        key = self.programs[number][request][0]
        assert rank.holdings.give_up(request)
        rank.over.add(key)
        self._send(rank, ("abandon", key))

    def _leave(self, number: int) -> None:
        """The connection of a rank is gone, and with it what was under way on it."""
        rank = self.ranks[number]
        rank.alive = rank.known = rank.broken = False
        rank.connected = False
        rank.holdings = Holdings(self.layout)
        rank.up.clear()
        rank.down.clear()
        rank.stray.clear()
        self._act(self.core.leave(number, "lost its connection", 0))

    def _arrive(self, number: int, message: Message) -> None:
        """A message of a rank reaches the core."""
        core = self.core
        match message:
            case ("ask", int() as request, tuple() as key, Configuration() as needs):
                self._act(core.ask(number, request, key, needs, 0, can_hold=True))
            case ("release", tuple() as key):
                self._act(core.release(number, key, 0))
            case ("recalled", Configuration() as needs, Report() as report):
                self._act(core.recalled(number, needs, report, 0))
            case ("hint", Configuration() as needs):
                self._act(core.hint(number, needs, 0))
            case ("abandon", tuple() as key):
                self._act(core.abandon(number, key, 0))
            case ("present", Presentation() as presentation):
                self._act(core.present(number, presentation, 0))
            case ("gone",):
                self._leave(number)

    def _hear(self, number: int, action: Action) -> None:
        """A message of the core reaches a rank, whose client does this with it."""
        rank = self.ranks[number]
        holdings = rank.holdings
        if isinstance(action, RecallAction):
            report = holdings.recall(action.configuration, action.hold)
            if report is not None:
                self._send(rank, ("recalled", action.configuration, report))
        elif isinstance(action, RefuseAction):
            if action.request is not None and any(
                request == action.request for request, _, _ in holdings.questions()
            ):
                holdings.refused(action.request)
                rank.over.add(self.programs[number][action.request][0])
                if not any(self.scenario.faults):
                    raise Violation(f"refused without a fault: {action.message}")
            elif action.request is not None:
                holdings.refused(action.request)
        elif isinstance(action, GrantAction):
            request = action.request
            if request is None:
                request = holdings.question(action.key)
            if request is None:
                holdings.granted_late(action.key, action.configuration, action.hold)
                return
            answer = holdings.answer(request, action.key, action.configuration, action.hold)
            if answer == "release":
                self._send(rank, ("release", action.key))
            elif answer == "begins":
                rank.begun.add(action.key)
                self._must_be_lit(number, action.key)

    # What holds

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SwitchAction):
                in_use = self._in_use()
                for circuit in action.disconnect:
                    if circuit not in self.light:
                        raise Violation(f"{circuit} is dropped, but it is dark")
                    if circuit in in_use:
                        raise Violation(f"{circuit} is torn down while it is used")
                    self.light.remove(circuit)
                self.commands[action.command] = action
                self._check_matching()
                continue
            if isinstance(action, FoundAction):
                raise Violation(f"nobody listens: {action}")
            if isinstance(action, GrantAction) and action.request is not None:
                self._check_grant(action)
                self.granted.add(action.key)
            if not self.ranks[action.rank].known:
                raise Violation(f"a word to rank {action.rank}, which is gone: {action}")
            self.ranks[action.rank].down.append(action)

    def _check_order(self, queue: list[OperationKey]) -> None:
        """Nobody in the queue is overtaken where ports overlap."""
        for place, key in enumerate(queue):
            if key not in self.granted:
                continue
            for earlier in queue[:place]:
                operation = self.core._operations.get(earlier)
                ports = ports_of(self.layout.circuits(self.needs[key]))
                if operation is None or operation.granted or ports.isdisjoint(operation.ports):
                    continue
                raise Violation(f"{earlier} was overtaken by {key}")

    def _check_grant(self, action: GrantAction) -> None:
        dark = set(self.layout.circuits(action.configuration)) - self.light
        if dark:
            raise Violation(f"{action.key} was granted without {sorted(dark)}")

    def _in_use(self) -> set[Circuit]:
        """Circuits of what all members have begun and not all have ended."""
        found: set[Circuit] = set()
        for key, configuration in self.scenario.operations:
            members = [self.ranks[member] for member in configuration.members]
            if all(key in rank.begun for rank in members) and any(
                rank.alive and key not in rank.over for rank in members
            ):
                found.update(self.layout.circuits(configuration))
        return found

    def _must_be_lit(self, number: int, key: OperationKey) -> None:
        """All members have begun, so data moves: there has to be light."""
        configuration = self.needs[key]
        if not all(key in self.ranks[member].begun for member in configuration.members):
            return
        self._check_light(configuration, f"{key} moves data")

    def _check_light(self, configuration: Configuration, what: str) -> None:
        for circuit in self.layout.circuits(configuration):
            if circuit not in self.light and self.broken_ports.isdisjoint(circuit.ports):
                if "port" in self.faults:
                    continue
                raise Violation(f"{what} without light on {circuit}")

    def _check_matching(self) -> None:
        circuits = self.light | {
            circuit for action in self.commands.values() for circuit in action.connect
        }
        if len({port for circuit in circuits for port in circuit.ports}) != 2 * len(circuits):
            raise Violation(f"a port has two peers: {sorted(circuits)}")

    def check(self) -> None:
        """What holds in every state."""
        core = self.core
        self._check_matching()
        if core.lit != self.light:
            raise Violation(f"the core takes {core.lit} for lit, the switch has {self.light}")
        for circuit in (*core.leases, *core.held):
            if circuit not in self.light:
                raise Violation(f"{circuit} is leased, but dark")
        users: dict[Port, Circuit] = {}
        for circuit in {*core.leases, *core.held}:
            for port in circuit.ports:
                if users.setdefault(port, circuit) != circuit:
                    raise Violation(f"{port} has two holders")
        for circuit in self._in_use():
            if circuit not in self.light and "port" not in self.faults:
                raise Violation(f"{circuit} is in use, but dark")
        for number, rank in enumerate(self.ranks):
            if rank.alive and rank.known:
                for configuration in rank.holdings.all():
                    self._check_light(configuration, f"rank {number} may begin")

    def check_end(self) -> None:
        """What holds where nothing goes on by itself any more."""
        core = self.core
        if core.recovering:
            raise Violation("the recovery never ends")
        if core._queue:
            waiting = [operation.key for operation in core._queue.values()]
            raise Violation(f"{waiting} wait for ever, though all have asked for them")
        if core.leases:
            raise Violation(f"leases are left over: {core.leases}")
        for configuration, hold in core.holds.items():
            if hold.recalled:
                raise Violation(f"{configuration.name} was recalled and never given back")
        if not {"delay", "restart", "return"} & self.faults.keys():
            self._check_told()
        if not any(self.scenario.faults):
            for number, rank in enumerate(self.ranks):
                if len(rank.over) < len(self.programs[number]):
                    raise Violation(f"rank {number} waits for ever")

    def _check_told(self) -> None:
        """Nobody waits for what has failed already."""
        for number, rank in enumerate(self.ranks):
            for _, key, configuration in rank.holdings.questions():
                if any(self._fails(member, key) for member in configuration.members):
                    raise Violation(f"rank {number} is not told that {key} has failed")

    def check_final(self) -> None:
        """What holds where even giving up is over."""
        for number, rank in enumerate(self.ranks):
            if rank.alive and len(rank.over) < len(self.programs[number]):
                raise Violation(f"rank {number} never ends its program")

    # States that are one

    def state(self) -> tuple[Any, ...]:
        """What tells this state from others, without numbers that only count up."""
        core = self.core
        numbers: set[int] = {hold.number for hold in core.holds.values()}
        for rank in self.ranks:
            holdings = rank.holdings
            numbers.update(held.number for held in holdings._held.values())
            numbers.update(holdings._last_given_back.values())
            for message in (*rank.up, *rank.down, *(item for _, item in rank.stray)):
                numbers.update(_numbers(message))
        place = {number: index for index, number in enumerate(sorted(numbers))}
        return (
            _core_state(core, place),
            tuple([_rank_state(rank, place) for rank in self.ranks]),
            tuple(self.faults.values()),
            frozenset(self.light),
            frozenset(item.connect for item in self.commands.values()),
            frozenset(self.spoiled),
            self.broken_ports,
        )


def _numbers(message: Any) -> list[int]:
    if isinstance(message, tuple):
        return [message[2].hold] if message[0] == "recalled" else []
    hold = getattr(message, "hold", None)
    return [] if hold is None else [hold]


def _message_state(message: Any, place: dict[int, int]) -> Any:
    """A message without its account."""
    if isinstance(message, tuple):
        if message[0] == "recalled":
            report = message[2]
            return (message[1], place[report.hold], _frozen(report.begun), report.open)
        if message[0] == "present":
            return (_frozen(message[1].begun), message[1].open)
        return message
    if isinstance(message, GrantAction):
        hold = None if message.hold is None else place[message.hold]
        return ("grant", message.request, message.key, hold)
    if isinstance(message, RecallAction):
        return ("recall", message.configuration, place[message.hold])
    return ("refuse", message.request)


def _frozen(mapping: Any) -> frozenset[Any]:
    return frozenset(mapping.items())


def _rank_state(rank: _Rank, place: dict[int, int]) -> tuple[Any, ...]:
    holdings = rank.holdings
    return (
        rank.alive,
        rank.known,
        rank.connected,
        rank.broken,
        rank.life,
        rank.next,
        rank.hinted,
        frozenset(rank.begun),
        frozenset(rank.over),
        tuple([_message_state(message, place) for message in rank.up]),
        tuple([_message_state(message, place) for message in rank.down]),
        _frozen(Counter((up, _message_state(message, place)) for up, message in rank.stray)),
        frozenset(
            (configuration, place[held.number], _frozen(held.begun))
            for configuration, held in holdings._held.items()
        ),
        frozenset((item, place[number]) for item, number in holdings._last_given_back.items()),
        frozenset(holdings._open),
        frozenset(holdings._to_tell),
        frozenset(holdings._asked),
        frozenset(holdings._given_up),
        frozenset(holdings._refused),
        _frozen(holdings._last),
        _frozen(holdings._over),
    )


def _core_state(core: ControllerCore, place: dict[int, int]) -> tuple[Any, ...]:
    return (
        core.recovering,
        frozenset(core.lit),
        _frozen(core.moving),
        frozenset(core.lost_ports),
        frozenset(core._spoiled),
        frozenset((circuit, frozenset(keys)) for circuit, keys in core.leases.items()),
        frozenset(
            (
                operation.key,
                operation.configuration,
                frozenset((rank, item.request) for rank, item in operation.asked.items()),
                frozenset(operation.released),
                operation.granted,
                operation.told_of_loss,
            )
            for operation in core._operations.values()
        ),
        tuple([operation.key for operation in core._queue.values()]),
        frozenset(
            (
                configuration,
                place[hold.number],
                frozenset(hold.holders),
                frozenset(
                    (rank, _frozen(item.begun), item.open) for rank, item in hold.reports.items()
                ),
                frozenset((rank, frozenset(keys)) for rank, keys in hold.granted.items()),
                frozenset(hold.released),
                frozenset(hold.lost),
                hold.recalled,
                hold.lost_port is None,
            )
            for configuration, hold in core.holds.items()
        ),
        frozenset((rank, hint.configuration, hint.served) for rank, hint in core._hints.items()),
        tuple(
            sorted(
                (item.ready, configuration.members)
                for configuration, item in core._expected.items()
                if item.ready is not None
            )
        )
        and tuple(
            configuration
            for _, configuration in sorted(
                (item.ready, configuration.name)
                for configuration, item in core._expected.items()
                if item.ready is not None
            )
        ),
        frozenset((rank, _frozen(numbers)) for rank, numbers in core._last.items()),
        frozenset((key, frozenset(item.untold)) for key, item in core._tombstones.items()),
        frozenset((rank, frozenset(keys)) for rank, keys in core._given_up.items()),
        frozenset(core._ended_early),
        frozenset(core._gone),
        frozenset(core._present),
        frozenset(core._returning),
        frozenset((rank, _frozen(item.begun), item.open) for rank, item in core._presented.items()),
    )


def _copy_rank(rank: _Rank) -> _Rank:
    old = rank.holdings
    new = object.__new__(Holdings)
    new._layout = old._layout
    new._held = {
        configuration: _Held(held.number, held.begun.copy(), held.operations)
        for configuration, held in old._held.items()
    }
    new._last_given_back = old._last_given_back.copy()
    new._open = old._open.copy()
    new._to_tell = old._to_tell.copy()
    new._asked = old._asked.copy()
    new._given_up = old._given_up.copy()
    new._refused = old._refused.copy()
    new._last = old._last.copy()
    new._over = old._over.copy()
    return _Rank(
        new,
        rank.alive,
        rank.known,
        rank.connected,
        rank.broken,
        rank.life,
        rank.next,
        rank.hinted,
        rank.begun.copy(),
        rank.over.copy(),
        rank.up.copy(),
        rank.down.copy(),
        rank.stray.copy(),
    )


#: What only counts or is made once: all copies of a core share it.
SHARED = frozenset(
    {"layout", "ranks", "counters", "rank_counters", "refusals", "failures", "generation"}
)
#: Containers of values that never change.
_FLAT = (
    *("active", "lit", "moving", "lost_ports", "_commands", "_spoiled", "_touched", "_stirred"),
    *("_touched_hints", "_listeners", "_listened", "_ahead", "_gone", "_present", "_former"),
    *("_returning", "_presented", "_ended_early"),
)
_NESTED = (
    *("leases", "held", "_holds_of", "_ready", "_listening", "_listeners_of", "_heard"),
    *("_ahead_on", "_last", "_given_up"),
)
_OF_OPERATIONS = ("_by_channel", "_by_configuration", "_by_member", "_waiting")
_PLAIN = ("recovering", "_changes", "_next_command", "_next_hold", "_serial")


def copy_core(core: ControllerCore) -> ControllerCore:
    """A core in the same state; a test holds that nothing is forgotten."""
    new = object.__new__(ControllerCore)
    old, made = core.__dict__, new.__dict__
    for name in SHARED:
        made[name] = old[name]
    for name in _PLAIN:
        made[name] = old[name]
    for name in _FLAT:
        made[name] = old[name].copy()
    for name in _NESTED:
        made[name] = {key: value.copy() for key, value in old[name].items()}
    operations = {key: _copy_operation(item) for key, item in core._operations.items()}
    made["_operations"] = operations
    for name in _OF_OPERATIONS:
        made[name] = {
            key: {place: operations[item.key] for place, item in row.items()}
            for key, row in old[name].items()
        }
    made["_queue"] = {order: operations[item.key] for order, item in core._queue.items()}
    made["holds"] = {key: _copy_hold(hold) for key, hold in core.holds.items()}
    made["_hints"] = {
        rank: Hint(hint.configuration, hint.served) for rank, hint in core._hints.items()
    }
    made["_expected"] = {
        key: Expected(item.ranks.copy(), item.hints.copy(), item.unserved, item.ready)
        for key, item in core._expected.items()
    }
    made["_tombstones"] = {
        key: Tombstone(item.message, item.reason, item.untold.copy())
        for key, item in core._tombstones.items()
    }
    return new


def _copy_operation(item: Operation) -> Operation:
    return Operation(
        item.key,
        item.configuration,
        item.circuits,
        item.ports,
        item.serial,
        {
            rank: Asked(one.request, one.asked_ns, one.mispredicted, one.can_hold)
            for rank, one in item.asked.items()
        },
        item.released.copy(),
        item.granted,
        item.order,
        item.commands,
        item.told_of_loss,
        item.stall_since_ns,
    )


def _copy_hold(hold: Hold) -> Hold:
    return Hold(
        hold.number,
        hold.circuits,
        hold.holders.copy(),
        hold.reports.copy(),
        {rank: keys.copy() for rank, keys in hold.granted.items()},
        hold.released.copy(),
        hold.lost.copy(),
        hold.recalled,
        hold.told_of_loss,
        hold.lost_port,
    )


@dataclass
class Exploration:
    """What a search found: states, events taken, the longest run, and whether it went
    through everything.
    """

    scenario: Scenario
    states: int = 0
    events: int = 0
    longest: int = 0
    ends: int = 0
    complete: bool = False


def explore(scenario: Scenario, limit: int, draw: Random | None = None) -> Exploration:
    """Go through the states of a scenario, at most ``limit`` of them.

    ``draw`` shuffles what is tried first, which matters where not all is. Raises
    Violation with the events that lead to a state that must not be.
    """
    found = Exploration(scenario)
    world = World(scenario)
    seen = {hash(world.state())}
    here: set[int] = set(seen)
    path: list[tuple[World, int, Iterator[Event], Event]] = []
    path.append((world, next(iter(seen)), iter(_all_events(world, found)), ("start",)))
    while path:
        world, place, events, _ = path[-1]
        event = next(events, None)
        if event is None:
            here.discard(place)
            path.pop()
            continue
        after = world.copy()
        try:
            after.take(event)
            found.events += 1
            number = hash(after.state())
            if number in seen:
                if number in here:
                    raise Violation("a run that never ends")
                continue
            after.check()
            seen.add(number)
            options = _all_events(after, found)
            if draw is not None:
                draw.shuffle(options)
        except Violation as error:
            steps = [str(step) for *_, step in path[1:]] + [str(event)]
            raise Violation("\n".join([str(error), *steps])) from error
        if len(seen) >= limit:
            found.states = len(seen)
            return found
        here.add(number)
        path.append((after, number, iter(options), event))
        found.longest = max(found.longest, len(path))
    found.states, found.complete = len(seen), True
    return found


def wander(scenario: Scenario, draw: Random, chance: float = 0.05) -> int:
    """One random run of a job of any size to its end; returns how many events it had.

    ``chance``: how often a fault happens, as long as some are left. Raises Violation
    as ``explore``.
    """
    world, found, path = World(scenario), Exploration(scenario), list[Event]()
    try:
        while True:
            faults = world.fault_events() if draw.random() < chance else []
            events = faults or _all_events(world, found, faults=False)
            if not events:
                return len(path)
            path.append(draw.choice(events))
            world.take(path[-1])
            world.check()
    except Violation as error:
        raise Violation("\n".join([str(error), *map(str, path)])) from error


def random_scenario(draw: Random) -> Scenario:
    """A job of up to eight ranks in servers of one to three, and some faults."""
    ranks = draw.randint(2, 8)
    groups = [
        Configuration("pair", tuple(draw.sample(range(ranks), 2)))
        if draw.random() < 0.5
        else Configuration("ring", tuple(draw.sample(range(ranks), draw.randint(2, min(5, ranks)))))
        for _ in range(draw.randint(1, 5))
    ]
    counts: Counter[str] = Counter()
    operations = []
    for _ in range(draw.randint(2, 16)):
        configuration = draw.choice(groups)
        name = f"{configuration.name}/{draw.randint(0, 1)}"
        operations.append(((name, counts[name]), configuration))
        counts[name] += 1
    kinds = draw.sample(FAULTS, draw.choice([0, 1, 1, 2, 3, len(FAULTS)]))
    return Scenario(
        "random",
        ranks,
        tuple(operations),
        tuple((name, draw.randint(1, 3)) for name in kinds),
        ahead=draw.randint(1, 3),
        hints=draw.random() < 0.5,
        gpus_per_server=draw.choice([1, 1, 2, 3]),
        ports=tuple(Port(draw.randrange(ranks), side) for side in ("left", "right")),
    )


def _all_events(world: World, found: Exploration, *, faults: bool = True) -> list[Event]:
    """What may happen next; giving up only where nothing else goes on."""
    events = world.events()
    if not events:
        world.check_end()
        events = world.give_ups()
        if not events:
            found.ends += 1
            world.check_final()
    return events + world.fault_events() if faults else events


def _ring(*members: int) -> Configuration:
    return Configuration("ring", members)


def _pair(low: int, high: int) -> Configuration:
    return Configuration("pair", (low, high))


#: DP 2 x PP 2: two pipelines 0 - 2 and 1 - 3, data-parallel groups (0, 1) and (2, 3).
_STEP = (
    (("02", 0), _pair(0, 2)),
    (("13", 0), _pair(1, 3)),
    (("01", 0), _ring(0, 1)),
    (("23", 0), _ring(2, 3)),
    (("02", 1), _pair(0, 2)),
    (("13", 1), _pair(1, 3)),
)
#: Two groups that share both ports of GPU 1.
_SHARED = (
    (("a", 0), _ring(0, 1)),
    (("b", 0), _ring(1, 2)),
    (("a", 1), _ring(0, 1)),
    (("b", 1), _ring(1, 2)),
    (("a", 2), _ring(0, 1)),
    (("b", 2), _ring(1, 2)),
)
_PORTS = (Port(1, "left"), Port(1, "right"))


def _scenarios() -> Iterator[Scenario]:
    for name, ranks, operations in (("dp2 pp2", 4, _STEP), ("shared port", 3, _SHARED)):
        yield Scenario(name, ranks, operations)
        yield Scenario(f"{name}, two ahead", ranks, operations, ahead=2)
        yield Scenario(f"{name}, hints", ranks, operations, hints=True)
        for fault in FAULTS:
            faults: tuple[tuple[str, int], ...] = ((fault, 2),)
            if fault == "return":
                faults = (("die", 2), ("return", 2))
            yield Scenario(f"{name}, {fault}", ranks, operations, faults, ports=_PORTS)
        every = tuple((fault, 2) for fault in FAULTS)
        yield Scenario(f"{name}, all faults", ranks, operations, every, ahead=2, ports=_PORTS)


SCENARIOS = {scenario.name: scenario for scenario in _scenarios()}


def main(arguments: list[str] | None = None) -> int:
    """The command line: all scenarios, and what was found."""
    parser = argparse.ArgumentParser(description="explore the states of small jobs")
    parser.add_argument("--states", type=int, default=1_000_000, help="at most, in all")
    parser.add_argument("--only", default="", help="the scenarios whose name begins so")
    options = parser.parse_args(arguments)
    chosen = [item for name, item in SCENARIOS.items() if name.startswith(options.only)]
    left, states = options.states, 0
    for number, scenario in enumerate(chosen):
        begin = time.process_time()
        try:
            found = explore(scenario, max(1, left // (len(chosen) - number)))
        except Violation as error:
            print(f"{scenario.name}: {error}", file=sys.stderr)
            return 1
        left, states = left - found.states, states + found.states
        seconds = time.process_time() - begin
        print(
            f"{scenario.name:28} {found.states:8} states {found.events:8} events"
            f" {found.ends:6} ends, longest run {found.longest:3},"
            f" {'all' if found.complete else 'a part'}, {seconds:.0f} s",
            flush=True,
        )
    print(f"{states} states, nothing broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
