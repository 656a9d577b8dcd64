"""A small job on the optical control plane as one state: the real core, the real
holdings of its ranks, and the messages and faults between them.

A world's events are what may happen next: a rank begins or ends an operation, listens
for any sender, a message arrives, a switch reports, or a fault, of which there is a
budget. :mod:`tests.fabric.explore` goes through them.

What holds (:func:`World.check`, :func:`World.check_end`):

* no port has two holders, and what is up or coming up is a matching;
* no operation without a grant: whatever a rank has begun, its circuits carried light
  when it began, and carry it as long as all members have begun and one has not ended;
* no grant while the switch moves: what is granted or held is lit on the switch itself;
* no tear-down in flight: no command drops a circuit in use;
* no starvation: nobody in the queue is overtaken where ports overlap, by another
  operation or by the circuits of a hint;
* bounded waiting: no event leads back to an earlier state, so every run ends; and where
  nothing but giving up is left to do, nothing waits in the queue that all members asked
  for, nobody waits for what has failed, and no lease is left over. Without faults that
  cost an operation everything has been granted. At the very end no operation is open.

A message that is lost ends its connection some time later, as a heartbeat or TCP would.
Circuits count as held or used until the core has been told that they are not: so what
a rank does sooner never hides what the core does too soon.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from railx.fabric.circuits import Circuit, Configuration, Layout, Port, ports_of
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import (
    Action,
    GrantAction,
    RecallAction,
    RefuseAction,
    SwitchAction,
)
from railx.fabric.holdings import Holdings, OperationKey, Presentation, Report
from railx.fabric.serving.server import FirstSender, Refusal, Senders, first_sender, unseen
from tests.fabric.copies import copy_core, copy_holdings

__all__ = ["FAULTS", "LISTENS", "Answer", "Event", "Rank", "Scenario", "Violation", "World"]

#: ``impatient``: a client gives up while others still go on.
FAULTS = (
    *("double", "delay", "lose", "die", "return", "restart", "port", "switch"),
    "impatient",
)
#: Numbers of questions for any sender begin here, those for operations at 0.
LISTENS = 1000

Event = tuple[Any, ...]
Message = tuple[Any, ...]


class Violation(AssertionError):
    """A state that must not be; the path to it is in the message."""


@dataclass(frozen=True)
class Scenario:
    """A job and its faults.

    ``operations`` are in the order of every rank's program. ``ahead``: how many a rank
    has open at most. ``hints``: whether ranks announce their next operation.
    ``listens``: ranks that have no program, and receive so often from any source.
    """

    name: str
    ranks: int
    operations: tuple[tuple[OperationKey, Configuration], ...]
    faults: tuple[tuple[str, int], ...] = ()
    ahead: int = 1
    hints: bool = False
    gpus_per_server: int = 1
    ports: tuple[Port, ...] = ()
    listens: tuple[tuple[int, int], ...] = ()

    @property
    def refuses_nobody(self) -> bool:
        """Whether nothing happens that may cost an operation; doubles do not."""
        return {name for name, _ in self.faults} <= {"double"}

    def program(self, rank: int) -> tuple[tuple[OperationKey, Configuration], ...]:
        """What a rank does, in order."""
        if rank in dict(self.listens):
            return ()
        return tuple(item for item in self.operations if rank in item[1].members)


@dataclass(slots=True)
class Rank:
    """One process and its connection: messages under way to and from the core.

    ``stray`` are messages that were doubled or delayed and may come any time: whether
    up, and what. ``over`` are operations that ended or failed. ``broken``: a message
    was lost on its connection. ``early`` are ends and reports whose double came first.
    ``chosen`` is what a rank that listens has found, ``heard`` how many of its receives
    were answered, ``listening`` the receive under way, ``asks`` whether it has asked.
    ``memo`` is what :mod:`tests.fabric.fingerprint` remembers of it.
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
    chosen: tuple[tuple[OperationKey, Configuration], ...] = ()
    heard: int = 0
    listening: int | None = None
    asks: bool = False
    early: frozenset[Message] = frozenset()
    memo: Any = None

    def untold(self) -> list[Message]:
        """What the core has not been told of the ends of operations and leases."""
        return [
            message
            for message in self.up
            if message[0] in ("release", "recalled") and message_of(message) not in self.early
        ]


@dataclass(frozen=True)
class Answer:
    """The answer to a rank that receives from any source."""

    rank: int
    request: int
    found: FirstSender | Refusal | None


class World:
    """One state of everything."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.layout = Layout(scenario.gpus_per_server)
        self.programs = [scenario.program(rank) for rank in range(scenario.ranks)]
        self.needs = dict(scenario.operations)
        self.core = ControllerCore(self.layout, scenario.ranks)
        self.ranks = [Rank(Holdings(self.layout)) for _ in range(scenario.ranks)]
        for rank in range(scenario.ranks):
            self.core.register(rank, 0)
        self.listens = dict(scenario.listens)
        self.faults = dict(scenario.faults)
        # The switch: what carries light, and the commands under way.
        self.light: set[Circuit] = set()
        self.commands: dict[int, SwitchAction] = {}
        self.spoiled: set[Circuit] = set()
        self.broken_ports: frozenset[Port] = frozenset()
        #: Operations of the queue that the last event granted.
        self.granted: set[OperationKey] = set()
        # What no other world shares, and what is remembered of the core.
        self._own_ranks = set(range(scenario.ranks))
        self._owns_core = True
        self.core_memo: Any = None

    def program(self, number: int) -> tuple[tuple[OperationKey, Configuration], ...]:
        """What a rank does, as far as that is known."""
        return self.ranks[number].chosen if number in self.listens else self.programs[number]

    def _mine(self, number: int) -> Rank:
        """A rank that is about to change."""
        if number not in self._own_ranks:
            self._own_ranks.add(number)
            self.ranks[number] = copy_rank(self.ranks[number])
        rank = self.ranks[number]
        rank.memo = None
        return rank

    def _my_core(self) -> ControllerCore:
        """The core, that is about to change."""
        if not self._owns_core:
            self._owns_core = True
            self.core = copy_core(self.core)
        self.core_memo = None
        return self.core

    def copy(self) -> World:
        """Another world in the same state; each copies what it changes first."""
        other = object.__new__(World)
        other.scenario, other.layout = self.scenario, self.layout
        other.programs, other.needs, other.listens = self.programs, self.needs, self.listens
        other.core, other.core_memo = self.core, self.core_memo
        other.ranks = self.ranks.copy()
        self._own_ranks, other._own_ranks = set(), set()
        self._owns_core = other._owns_core = False
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
            if self._may_listen(number, rank):
                found.append(("listen", number))
            if self._may_begin(number, rank):
                found.append(("begin", number))
                if self.scenario.hints and rank.hinted < rank.next and rank.connected:
                    found.append(("hint", number))
            found += [("end", number, key) for key in self._may_end(number, rank)]
        found += [("light", command) for command in self.commands]
        if core.recovering and not any(self.ranks[number].alive for number in core.awaited):
            found.append(("end recovery",))
        return found

    def _may_begin(self, number: int, rank: Rank) -> bool:
        program = self.program(number)
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

    def _may_listen(self, number: int, rank: Rank) -> bool:
        """Whether a rank that listens is through with what it has found before.

        It repeats its question for ever: here where the answer is another one.
        """
        if rank.asks or not rank.connected:
            return False
        if rank.listening is not None:
            senders = self._senders(number, rank)
            return (
                first_sender(self.core, number, senders) is not None
                or unseen(self.core, number, senders) != []
            )
        return rank.heard < self.listens.get(number, 0) and all(
            key in rank.over for key, _ in rank.chosen
        )

    def _may_end(self, number: int, rank: Rank) -> list[OperationKey]:
        """Operations under way whose data has moved, or that cannot go on."""
        return [
            key
            for key, configuration in self.program(number)[: rank.next]
            if key in rank.begun
            and key not in rank.over
            and (
                all(key in self.ranks[member].begun for member in configuration.members)
                or any(
                    self._fails(member, key) or self._receives_no_more(member, key)
                    for member in configuration.members
                )
            )
        ]

    def _fails(self, number: int, key: OperationKey) -> bool:
        """Whether a member will never come to an operation, or not any more."""
        rank = self.ranks[number]
        return not rank.alive or rank.life > 0 or (key in rank.over and key not in rank.begun)

    def _receives_no_more(self, number: int, key: OperationKey) -> bool:
        """Whether a rank that listens was answered often enough without an operation.

        Its sender finds that out by itself: the core does not know how often.
        """
        rank = self.ranks[number]
        return (
            rank.heard >= self.listens.get(number, rank.heard + 1)
            and rank.listening is None
            and key not in {chosen for chosen, _ in rank.chosen}
        )

    def give_ups(self) -> list[Event]:
        """Who waits may give up; taken where nothing else goes on."""
        return [("give up", *question) for question in self._waiting()]

    def _waiting(self) -> list[tuple[int, int]]:
        """Who waits for an answer to which question."""
        return [
            (number, request)
            for number, rank in enumerate(self.ranks)
            if rank.alive and rank.connected
            for request in (
                *(request for request, _, _ in _questions(rank.holdings)),
                *(() if rank.listening is None else (rank.listening,)),
            )
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
            if "die" in left and rank.alive:
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
        if "impatient" in left:
            found += [("impatient", *question) for question in self._waiting()]
        return found

    # What happens

    def take(self, event: Event) -> None:
        """One event."""
        queue = [operation.key for operation in self.core.queue.values()]
        held = frozenset(self.core.holds)
        under_way = {key for key, item in self.core.operations.items() if item.granted}
        self.granted = set()
        self._take(event)
        # Who asks again for what is under way is answered again, and overtakes nobody.
        self.granted -= under_way
        if self.granted and queue:
            self._check_order(queue, held)

    def _take(self, event: Event) -> None:
        match event:
            case ("up", int() as number):
                rank = self._mine(number)
                message = rank.up.pop(0)
                if rank.early and message[0] in ("release", "recalled"):
                    rank.early -= {message_of(message)}
                self._arrive(number, message)
            case ("down", int() as number):
                self._hear(number, self._mine(number).down.pop(0))
            case ("stray", int() as number, int() as place):
                up, message = self._mine(number).stray.pop(place)
                if up:
                    rank = self._mine(number)
                    if message[0] in ("release", "recalled") and message in rank.up:
                        rank.early |= {message_of(message)}
                    self._arrive(number, message)
                else:
                    self._hear(number, message)
            case ("begin", int() as number):
                self._begin(number)
            case ("hint", int() as number):
                self._hint(number)
            case ("listen", int() as number):
                self._listen(number)
            case ("end", int() as number, tuple() as key):
                self._end(number, key)
            case ("light", int() as command):
                action = self.commands.pop(command)
                self.light.update(set(action.connect) - self.spoiled)
                self.spoiled.difference_update(action.connect)
                self._act(self._my_core().switched(command, 0))
            case ("give up", int() as number, int() as request):
                self._give_up(number, request)
            case ("break", int() as number):
                self._leave(number)
            case ("connect", int() as number):
                self._connect(number)
            case ("end recovery",):
                self._act(self._my_core().end_recovery(0))
            case (str() as name, *_):
                self.faults[name] -= 1
                self._fault(event)

    def _fault(self, event: Event) -> None:
        match event:
            case (("double" | "delay" | "lose") as name, int() as number, str() as way):
                rank = self._mine(number)
                messages: list[Any] = rank.up if way == "up" else rank.down
                if name == "double":
                    rank.stray.append((way == "up", messages[0]))
                elif name == "delay":
                    rank.stray.append((way == "up", messages.pop(0)))
                else:
                    messages.pop(0)
                    rank.broken = True
            case ("die", int() as number):
                rank = self._mine(number)
                rank.alive = False
                rank.holdings = Holdings(self.layout)
                rank.down.clear()
                rank.stray = [item for item in rank.stray if item[0]]
                if rank.known and rank.connected:
                    rank.up.append(("gone",))
                else:
                    rank.known = False
            case ("return", int() as number):
                rank = self._mine(number)
                problem = self._my_core().register(number, rank.life + 1)
                assert problem is None, problem
                program = self.program(number)
                back = [place for place in range(rank.next) if program[place][0] not in rank.over]
                fresh = Rank(Holdings(self.layout), life=rank.life + 1)
                fresh.next = min(back, default=rank.next)
                fresh.over = {key for key, _ in program[: fresh.next]}
                fresh.chosen, fresh.heard = program[: fresh.next], rank.heard
                self.ranks[number] = fresh
                if self.core.recovering:
                    fresh.up.append(("present", fresh.holdings.present()))
            case ("restart",):
                self._restart()
            case ("port", Port() as port, bool() as fails):
                self._break_port(port, fails)
            case ("switch", int() as command):
                self.spoiled.difference_update(self.commands.pop(command).connect)
                self._act(self._my_core().switch_failed(command, "broken", 0))
            case ("impatient", int() as number, int() as request):
                self._give_up(number, request)

    def _break_port(self, port: Port, fails: bool) -> None:
        """Break a port, or mend it; ``fails``: with the commands that need it.

        Otherwise they are carried out for their other circuits.
        """
        if port in self.broken_ports:
            self.broken_ports -= {port}
            self._act(self._my_core().ports_back([port], 0))
            return
        self.broken_ports |= {port}
        self.light = {circuit for circuit in self.light if port not in circuit.ports}
        self._act(self._my_core().ports_lost([port], "broken", 0))
        for command, action in list(self.commands.items()):
            spoiled = {circuit for circuit in action.connect if port in circuit.ports}
            if spoiled and not fails:
                self.spoiled |= spoiled
            elif spoiled:
                self.spoiled.difference_update(action.connect)
                del self.commands[command]
                self._act(self._my_core().switch_failed(command, "a port is lost", 0))

    def _restart(self) -> None:
        self.commands.clear()
        self.spoiled.clear()
        self.core = ControllerCore(
            self.layout, self.scenario.ranks, active=sorted(self.light), recovering=True
        )
        self._owns_core, self.core_memo = True, None
        if self.broken_ports:
            self.core.ports_lost(self.broken_ports, "broken", 0)
        for number in range(self.scenario.ranks):
            rank = self._mine(number)
            rank.up.clear()
            rank.down.clear()
            rank.stray.clear()
            rank.connected = rank.broken = False
            rank.known = rank.alive

    def _connect(self, number: int) -> None:
        """What the client does with a new connection."""
        rank = self._mine(number)
        rank.connected = True
        problem = self._my_core().register(number, rank.life, returning=True)
        assert problem is None, problem
        given_up = rank.holdings.given_up()
        rank.up.append(("present", rank.holdings.present()))
        for request, key, configuration in sorted(
            (*_questions(rank.holdings), *given_up), key=lambda item: item[0]
        ):
            if request in {item[0] for item in given_up}:
                rank.up.append(("abandon", key))
            rank.up.append(("ask", request, key, configuration))
        if rank.listening is not None:
            rank.asks = True
            rank.up.append(self._listen_message(number, rank))

    def _send(self, rank: Rank, message: Message) -> None:
        if rank.connected:
            rank.up.append(message)

    def _begin(self, number: int) -> None:
        rank = self._mine(number)
        key, configuration = self.program(number)[rank.next]
        if rank.holdings.begin(key, configuration):
            rank.begun.add(key)
            self._must_be_lit(number, key)
        else:
            rank.holdings.ask(rank.next, key, configuration)
            self._send(rank, ("ask", rank.next, key, configuration))
        rank.next += 1

    def _hint(self, number: int) -> None:
        rank = self._mine(number)
        rank.hinted = rank.next
        configuration = self.program(number)[rank.next][1]
        if rank.holdings.holds(configuration):
            return
        for held in rank.holdings.in_the_way_of(configuration):
            report = rank.holdings.recall(held)
            assert report is not None
            rank.up.append(("recalled", held, report))
        rank.up.append(("hint", configuration))

    def _listen(self, number: int) -> None:
        rank = self._mine(number)
        rank.listening, rank.asks = LISTENS + rank.heard, True
        self._send(rank, self._listen_message(number, rank))

    def _listen_message(self, number: int, rank: Rank) -> Message:
        return ("listen", rank.listening, tuple(sorted(self._senders(number, rank).items())))

    def _senders(self, number: int, rank: Rank) -> Senders:
        """By channel the sender and the number of the first operation not received."""
        seen = Counter(key[0] for key, _ in rank.chosen)
        return {
            key[0]: (next(item for item in needs.members if item != number), seen[key[0]])
            for key, needs in self.scenario.operations
            if number in needs.members
        }

    def _end(self, number: int, key: OperationKey) -> None:
        rank = self._mine(number)
        rank.over.add(key)
        if rank.holdings.end(key):
            self._send(rank, ("release", key))

    def _give_up(self, number: int, request: int) -> None:
        rank = self._mine(number)
        if request >= LISTENS:
            self._hear_of_sender(rank)
            return
        key = self.program(number)[request][0]
        assert rank.holdings.give_up(request)
        rank.over.add(key)
        self._send(rank, ("abandon", key))

    def _leave(self, number: int) -> None:
        """The connection of a rank is gone, and with it what was under way on it."""
        rank = self._mine(number)
        rank.alive = rank.known = rank.broken = False
        rank.connected = False
        rank.holdings = Holdings(self.layout)
        rank.up.clear()
        rank.down.clear()
        rank.stray.clear()
        rank.listening, rank.asks = None, False
        self._act(self._my_core().leave(number, "lost its connection", 0))

    def _arrive(self, number: int, message: Message) -> None:
        """A message of a rank reaches the core."""
        core = self._my_core()
        match message:
            case ("ask", int() as request, tuple() as key, Configuration() as needs):
                self._act(core.ask(number, request, key, needs, 0, can_hold=True))
            case ("release", tuple() as key):
                self._act(core.release(number, key, 0))
            case ("recalled", Configuration() as needs, Report() as report):
                self._act(core.recalled(number, needs, report, 0))
            case ("hint", Configuration() as needs):
                self._act(core.hint(number, needs, 0))
            case ("listen", int() as request, tuple() as channels):
                found = first_sender(core, number, dict(channels))
                self._mine(number).down.append(Answer(number, request, found))
                for pair in unseen(core, number, dict(channels)) if found is None else ():
                    self._act(core.recall(pair, 0))
            case ("abandon", tuple() as key):
                self._act(core.abandon(number, key, 0))
            case ("present", Presentation() as presentation):
                self._act(core.present(number, presentation, 0))
            case ("gone",):
                self._leave(number)

    def _hear(self, number: int, action: Action) -> None:
        """A message of the core reaches a rank, whose client does this with it."""
        rank = self._mine(number)
        holdings = rank.holdings
        if isinstance(action, RecallAction):
            report = holdings.recall(action.configuration, action.hold)
            if report is not None:
                self._send(rank, ("recalled", action.configuration, report))
        elif isinstance(action, RefuseAction):
            if action.request is not None and any(
                request == action.request for request, _, _ in _questions(holdings)
            ):
                holdings.refused(action.request)
                rank.over.add(self.program(number)[action.request][0])
                if self.scenario.refuses_nobody:
                    raise Violation(f"refused without a fault: {action.message}")
            elif action.request is not None:
                holdings.refused(action.request)
        elif isinstance(action, Answer):
            if action.request != rank.listening:
                return
            rank.asks = False
            if action.found is not None:
                self._hear_of_sender(rank)
            if isinstance(action.found, FirstSender):
                key = action.found.key
                rank.chosen = (*rank.chosen, (key, self.needs[key]))
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

    @staticmethod
    def _hear_of_sender(rank: Rank) -> None:
        rank.listening, rank.asks, rank.heard = None, False, rank.heard + 1

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
                self._check_turn(action)
                continue
            if isinstance(action, GrantAction) and action.request is not None:
                self._check_grant(action)
                self.granted.add(action.key)
            if not self.ranks[action.rank].known:
                raise Violation(f"a word to rank {action.rank}, which is gone: {action}")
            if self.ranks[action.rank].alive:
                self._mine(action.rank).down.append(action)

    def _check_order(self, queue: list[OperationKey], held: frozenset[Configuration]) -> None:
        """Nobody in the queue is overtaken where ports overlap.

        ``queue`` and what is ``held`` before the event. What the event queued and
        granted at once came after all of them; only who asks for what it holds already,
        because its question crossed the grant, stands in no queue.
        """
        late = sorted(key for key in self.granted - set(queue) if self.needs[key] not in held)
        for place, key in enumerate([*queue, *late]):
            if key not in self.granted:
                continue
            for earlier in queue[:place]:
                operation = self.core.operations.get(earlier)
                ports = ports_of(self.layout.circuits(self.needs[key]))
                if operation is None or operation.granted or ports.isdisjoint(operation.ports):
                    continue
                raise Violation(f"{earlier} was overtaken by {key}")

    def _check_turn(self, action: SwitchAction) -> None:
        """What comes up at a port is for who waits there first, if anybody does.

        So no hint takes a port from an operation that all have asked for.
        """
        for circuit in action.connect:
            for port in circuit.ports:
                first = next(iter(self.core.waiting.get(port, {}).values()), None)
                if first is not None and circuit not in first.circuits:
                    raise Violation(f"{circuit} takes {port}, for which {first.key} waits")

    def _check_grant(self, action: GrantAction) -> None:
        dark = set(self.layout.circuits(action.configuration)) - self.light
        if dark:
            raise Violation(f"{action.key} was granted without {sorted(dark)}")

    def _in_use(self) -> set[Circuit]:
        """Circuits of what all members have begun and not all have told the end of."""
        found: set[Circuit] = set()
        for key, configuration in self.scenario.operations:
            members = [self.ranks[member] for member in configuration.members]
            if all(key in rank.begun for rank in members) and any(
                rank.alive and (key not in rank.over or ("release", key) in rank.untold())
                for rank in members
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
        for circuit in (*core.leases, *core.holds_by_circuit):
            if circuit not in self.light:
                raise Violation(f"{circuit} is leased, but dark")
        users: dict[Port, Circuit] = {}
        for circuit in {*core.leases, *core.holds_by_circuit}:
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
                for message in rank.untold():
                    if message[0] == "recalled":
                        self._check_light(message[1], f"rank {number} still tells what it held")

    def check_end(self) -> None:
        """What holds where nothing goes on by itself any more."""
        core = self.core
        if core.recovering:
            raise Violation("the recovery never ends")
        if core.queue:
            waiting = [operation.key for operation in core.queue.values()]
            raise Violation(f"{waiting} wait for ever, though all have asked for them")
        if core.leases:
            raise Violation(f"leases are left over: {core.leases}")
        for configuration, hold in core.holds.items():
            if hold.recalled:
                raise Violation(f"{configuration.name} was recalled and never given back")
        if not {"delay", "restart", "return"} & self.faults.keys():
            self._check_told()
        if self.scenario.refuses_nobody:
            for number, rank in enumerate(self.ranks):
                if self._is_unfinished(number, rank):
                    raise Violation(f"rank {number} waits for ever")

    def _check_told(self) -> None:
        """Nobody waits for what has failed already."""
        for number, rank in enumerate(self.ranks):
            for _, key, configuration in _questions(rank.holdings):
                if any(self._fails(member, key) for member in configuration.members):
                    raise Violation(f"rank {number} is not told that {key} has failed")
            if rank.listening is not None and rank.alive:
                for key, configuration in self.scenario.operations:
                    if number in configuration.members and key not in rank.over:
                        self._check_heard(number, key, configuration)

    def _check_heard(self, number: int, key: OperationKey, configuration: Configuration) -> None:
        """Nobody listens for a sender that stands before the operation."""
        for member in configuration.members:
            sender = self.ranks[member]
            asked = key in {item for _, item, _ in _questions(sender.holdings)}
            if member != number and sender.alive and (asked or key in sender.begun - sender.over):
                raise Violation(f"rank {number} listens, but rank {member} stands before {key}")

    def _is_unfinished(self, number: int, rank: Rank) -> bool:
        return len(rank.over) < len(self.program(number)) or rank.heard < self.listens.get(
            number, 0
        )

    def check_final(self) -> None:
        """What holds where even giving up is over."""
        for number, rank in enumerate(self.ranks):
            if rank.alive and self._is_unfinished(number, rank):
                raise Violation(f"rank {number} never ends its program")
        # A receiver from any source that is through knows of no operation, and where a
        # presentation comes behind its rank's questions, nobody knows of those.
        untold = bool(self.listens) or {"delay", "restart"} <= self.faults.keys()
        if self.core.operations and not untold:
            raise Violation(f"operations are left over: {sorted(self.core.operations)}")

    # States that are one


def message_of(message: Message) -> Message:
    """An end or a report, by what it is about."""
    return (*message[:2], message[2].hold) if message[0] == "recalled" else message


def copy_rank(rank: Rank) -> Rank:
    """A rank in the same state, that shares nothing that changes."""
    return Rank(
        copy_holdings(rank.holdings),
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
        rank.chosen,
        rank.heard,
        rank.listening,
        rank.asks,
        rank.early,
    )


def _questions(holdings: Holdings) -> list[tuple[int, OperationKey, Configuration]]:
    """The questions of a rank that wait for their answer, in order."""
    return [(request, *asked) for request, asked in holdings._asked.items()]
