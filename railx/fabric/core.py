"""The decisions of the controller as a deterministic state machine.

Events with a time stamp go in, actions come out. There is no input or output. What it
holds to (the correctness conditions of photonic rails, Opus, arXiv 2602.12521):

* an operation is granted when all its members asked for it and all its circuits are up;
* its circuits are leased until every member released it, and a leased circuit is never
  torn down;
* a lease may stay with the members when the operation ends (a held lease). Until it is
  recalled they begin further operations on the same circuits without asking. It is
  recalled when an operation that all its members asked for needs the ports otherwise.
  Each member then reports what it has begun: what all of them have begun is under way
  and keeps its circuits until it ends; what only some have begun counts as asked for by
  those, because no data moves before their peers begin. So nobody holds circuits while
  waiting for a peer, and held leases bring no deadlock;
* the circuits that are up or coming up are a matching at every moment;
* operations whose members have all asked form one queue. All circuits of an operation
  are leased at once and in the order of the queue where ports overlap. So nobody holds
  one circuit while waiting for another (no deadlock) and nobody is overtaken for ever;
* disjoint port sets switch at the same time, circuits that nobody needs to move stay
  up, and an operation whose circuits are up is granted at once;
* a hint (what a rank's next operation will need) starts a switch when every member
  hinted or asked and no lease or queued operation is in the way. It reserves nothing,
  so a wrong one costs at most the switch back. A rank that hints gives back the held
  leases that are in the way of it; those that it shared are then recalled from the
  others too;
* a receive from any source asks for nothing yet: the rank listens, and is told of the
  first sender that stands before an operation with it. What only one end has begun
  under a held lease is not known here, so no lease of the two stays with them while one
  of them listens for the other. Who listens holds nothing;
* an operation with a dead member ends in an error for everyone who asked for it.

Port accounting: the ports of a circuit that comes up are moving until the switch
reports. A port that only lost its circuit is dark and free at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from railx.fabric.circuits import Circuit, Configuration, Layout, Port, ports_of
from railx.fabric.holdings import OperationKey, Report

__all__ = [
    "Action",
    "ControllerCore",
    "FoundAction",
    "GrantAction",
    "OperationKey",
    "RecallAction",
    "RefuseAction",
    "SwitchAction",
]


@dataclass(frozen=True)
class GrantAction:
    """Tell ``rank`` that the operation it asked for with ``request`` may start.

    ``request`` is None where the operation began under a held lease that was recalled
    before all members had begun it.

    * ``wait_ns``: waiting for other members and for ports in use.
    * ``stall_ns``: waiting for light after all members had asked.
    * ``reconfigured``: switch commands made for this operation, ahead of it or while it
      waited.
    * ``mispredicted``: the hint that this rank gave before was for something else.
    * ``hold``: the number of the lease that stays with the members afterwards, or None
      where each of them has to release the operation.
    """

    rank: int
    request: int | None
    key: OperationKey
    generation: int
    granted_ns: int
    wait_ns: int
    stall_ns: int
    reconfigured: int
    mispredicted: bool
    configuration: Configuration
    hold: int | None = None


@dataclass(frozen=True)
class RecallAction:
    """Ask ``rank`` to give back a held lease; it answers with ``recalled``.

    ``reason`` is what befell a member, for those that have an operation under way.
    """

    rank: int
    configuration: Configuration
    hold: int
    reason: str | None = None


@dataclass(frozen=True)
class RefuseAction:
    """Tell ``rank`` that the operation cannot go on.

    ``request`` is None where it was already granted.
    """

    rank: int
    request: int | None
    message: str


@dataclass(frozen=True)
class SwitchAction:
    """Tell the switch of ``rail`` to drop ``disconnect`` and bring up ``connect``.

    It reports with ``switched(command)``.
    """

    command: int
    rail: int
    connect: tuple[Circuit, ...]
    disconnect: tuple[Circuit, ...]


@dataclass(frozen=True)
class FoundAction:
    """Tell ``rank`` that ``source`` stands before ``key``, which it listens for."""

    rank: int
    request: int
    source: int
    key: OperationKey


Action = FoundAction | GrantAction | RecallAction | RefuseAction | SwitchAction


@dataclass
class _Asked:
    """One member's question; without ``request`` it has begun under a held lease."""

    request: int | None
    asked_ns: int
    mispredicted: bool
    can_hold: bool


@dataclass
class _Operation:
    key: OperationKey
    configuration: Configuration
    circuits: tuple[Circuit, ...]
    ports: frozenset[Port]
    asked: dict[int, _Asked] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    granted: bool = False
    commands: int = 0
    told_of_loss: bool = False
    stall_since_ns: int | None = None


@dataclass
class _Hold:
    """A held lease: who has not given it back, and what the others reported.

    The report of a member that died is None. ``granted`` are the operations whose grant
    may cross a member's report: that has to name them or their grant came too late.
    ``released`` are operations whose end was told after the report.
    """

    number: int
    circuits: tuple[Circuit, ...]
    holders: set[int]
    reports: dict[int, Report | None] = field(default_factory=dict)
    granted: dict[int, set[OperationKey]] = field(default_factory=dict)
    released: set[tuple[int, OperationKey]] = field(default_factory=set)
    recalled: bool = False
    told_of_loss: bool = False


@dataclass
class _Hint:
    configuration: Configuration
    served: bool = False


@dataclass(frozen=True)
class _Listener:
    """A rank that waits for one of several senders, by their channel.

    A channel has its sender and the number of the first operation that may be meant.
    """

    channels: Mapping[str, tuple[int, int]]
    configurations: frozenset[Configuration]


class ControllerCore:
    """The state of all rails.

    Every method takes the present time in nanoseconds and returns the actions that
    follow, in order.
    """

    def __init__(self, layout: Layout, ranks: int) -> None:
        self.layout = layout
        self.ranks = ranks
        #: Circuits that carry light, by port, and as a set.
        self.active: dict[Port, Circuit] = {}
        self.lit: set[Circuit] = set()
        #: Circuits that are coming up, by port.
        self.moving: dict[Port, Circuit] = {}
        #: Which granted operations use a circuit.
        self.leases: dict[Circuit, set[OperationKey]] = {}
        #: Leases that stay with their members, and which of them keep a circuit up.
        self.holds: dict[Configuration, _Hold] = {}
        self.held: dict[Circuit, set[Configuration]] = {}
        #: Number of the last change on each rail (numbers are the controller's, so they
        #: also order changes between rails).
        self.generation: Counter[int] = Counter()
        self.counters: Counter[str] = Counter()
        self.rank_counters: dict[int, Counter[str]] = {}
        self._changes = 0
        self._next_command = 0
        self._next_hold = 0
        self._commands: dict[int, SwitchAction] = {}
        self._operations: dict[OperationKey, _Operation] = {}
        self._queue: list[_Operation] = []
        self._hints: dict[int, _Hint] = {}
        # Who listens, by rank and request, in the order in which they came.
        self._listeners: dict[tuple[int, int], _Listener] = {}
        self._ahead: Counter[Configuration] = Counter()
        self._last_sequence: dict[tuple[int, str], int] = {}
        self._gone: dict[int, str] = {}
        self._present: set[int] = set()

    def register(self, rank: int) -> str | None:
        """A rank arrives or comes back; returns why it may not (one line), or None."""
        if not 0 <= rank < self.ranks:
            return f"rank {rank} registered; allowed: 0 to {self.ranks - 1}"
        if not self._present:
            # The first rank of the next program: nobody of the last one is missed.
            self._gone.clear()
        self._present.add(rank)
        self._gone.pop(rank, None)
        self._hints.pop(rank, None)
        for key in [key for key in self._last_sequence if key[0] == rank]:
            del self._last_sequence[key]
        return None

    def ask(
        self,
        rank: int,
        request: int,
        key: OperationKey,
        configuration: Configuration,
        now_ns: int,
        *,
        can_hold: bool = False,
    ) -> list[Action]:
        """``rank`` stands before operation ``key``.

        The same question asked again changes nothing (and is answered again).
        ``can_hold``: the rank can keep the lease and give it back when it is recalled;
        without that of all members every operation ends with its releases.
        """
        problem = self._problem(rank, key, configuration)
        if problem is not None:
            return [RefuseAction(rank, request, problem)]
        operation = self._operations.get(key)
        if operation is not None and operation.configuration != configuration:
            message = (
                f"the ranks disagree about operation {key[1]} of {key[0]}: rank {rank} asked for"
                f" {configuration.name}, rank {min(operation.asked)} for"
                f" {operation.configuration.name}"
            )
            refusals: list[Action] = [RefuseAction(rank, request, message)]
            return (
                refusals
                if operation.granted
                else [*refusals, *self._fail(operation, message), *self._advance(now_ns)]
            )
        if operation is not None and rank in operation.asked:
            asked = operation.asked[rank]
            if asked.request is not None:
                asked.request = request
            return [self._grant_action(operation, rank, now_ns)] if operation.granted else []
        hold = self.holds.get(configuration)
        if hold is not None and rank in hold.holders and not hold.recalled:
            return self._grant_to_holder(rank, request, key, configuration, hold, now_ns)
        if self._last_sequence.get((rank, key[0]), -1) >= key[1]:
            return [
                RefuseAction(
                    rank,
                    request,
                    f"rank {rank} asked again for operation {key[1]} of {key[0]}, which has ended",
                )
            ]
        operation = self._operation(key, configuration)
        self._last_sequence[rank, key[0]] = key[1]
        operation.asked[rank] = _Asked(
            request, now_ns, self._take_hint(rank, configuration), can_hold
        )
        self._count(rank, "requests")
        if len(operation.asked) == len(configuration.members):
            self._queue.append(operation)
        # Those who still hold the lease may have begun it without asking.
        return [*self._recall(configuration), *self._advance(now_ns)]

    def listen(
        self, rank: int, request: int, channels: Mapping[str, tuple[int, int]], now_ns: int
    ) -> list[Action]:
        """``rank`` stands before a receive and does not know its sender.

        ``channels``: by channel, the sender and the number of the next operation. The
        first sender that stands, or comes to stand, before such an operation is found;
        the rank then asks for it as for any other.
        """
        sources = {source for source, _ in channels.values()}
        for source in sorted(sources):
            if source == rank or not 0 <= source < self.ranks:
                message = f"rank {rank} listens for rank {source}; allowed: another rank"
                return [RefuseAction(rank, request, f"{message}, 0 to {self.ranks - 1}")]
            if source in self._gone:
                return [RefuseAction(rank, request, self._unheard(rank, source))]
        pairs = frozenset(Configuration("pair", (rank, source)) for source in sources)
        self._listeners[rank, request] = _Listener(dict(channels), pairs)
        recalls = [item for pair in self.holds if pair in pairs for item in self._recall(pair)]
        return [*recalls, *self._advance(now_ns)]

    def unlisten(self, rank: int, request: int) -> None:
        """``rank`` does not wait for a sender any more."""
        self._listeners.pop((rank, request), None)

    def release(self, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
        """``rank`` has ended its part of an operation.

        Unknown and repeated releases change nothing.
        """
        operation = self._operations.get(key)
        if operation is None or rank not in operation.asked:
            # It may be part of a lease that other members have not given back yet.
            for hold in self.holds.values():
                report = hold.reports.get(rank)
                if key in hold.granted.get(rank, ()) or (report and key in report.open):
                    hold.released.add((rank, key))
            return []
        if operation.granted:
            operation.released.add(rank)
            self._end_when_released(operation)
        elif operation.asked[rank].request is None and rank not in operation.released:
            # It began under a held lease, and its part needed no peer (a buffered send,
            # the root of a broadcast, an error), so that it never waited.
            operation.released.add(rank)
            self._count(rank, "requests", -1)
            self._count(rank, "held")
        return self._advance(now_ns)

    def recalled(
        self, rank: int, configuration: Configuration, report: Report, now_ns: int
    ) -> list[Action]:
        """``rank`` has given back a held lease, asked to or not.

        From now on it asks before every operation and releases those in
        ``report.open``. Late and repeated reports change nothing.
        """
        hold = self.holds.get(configuration)
        if hold is None or hold.number != report.hold or rank not in hold.holders:
            return []
        hold.holders.remove(rank)
        hold.reports[rank] = report
        return [*self._settle(configuration, now_ns), *self._advance(now_ns)]

    def hint(self, rank: int, configuration: Configuration, now_ns: int) -> list[Action]:
        """The next operation of ``rank`` will need ``configuration``.

        A newer hint replaces an older one.
        """
        if (
            rank not in configuration.members
            or configuration.members[-1] >= self.ranks
            or rank in self._gone
        ):
            return []
        self._hints[rank] = _Hint(configuration)
        self._count(rank, "hints")
        return self._advance(now_ns)

    def switched(self, command: int, now_ns: int) -> list[Action]:
        """The switch has carried out a command: its circuits carry light."""
        action = self._commands.pop(command)
        for circuit in action.connect:
            for port in circuit.ports:
                del self.moving[port]
                self.active[port] = circuit
            self.lit.add(circuit)
        self._changes += 1
        self.generation[action.rail] = self._changes
        return self._advance(now_ns)

    def leave(self, rank: int, reason: str, now_ns: int) -> list[Action]:
        """``rank`` is gone: whoever waits for it gets an error, and its leases end.

        ``reason`` completes "rank 3 ...".
        """
        self._gone[rank] = reason
        self._present.discard(rank)
        self._hints.pop(rank, None)
        actions: list[Action] = []
        for listening, request in list(self._listeners):
            listener = self._listeners[listening, request]
            if listening == rank:
                del self._listeners[listening, request]
            elif any(source == rank for source, _ in listener.channels.values()):
                del self._listeners[listening, request]
                actions.append(RefuseAction(listening, request, self._unheard(listening, rank)))
        for operation in [
            item for item in self._operations.values() if rank in item.configuration.members
        ]:
            message = self._loss(operation, rank)
            if operation.granted:
                waiting = set(operation.asked) - operation.released - {rank}
                # Those who leave because of the first loss are not its reason.
                actions += [
                    RefuseAction(peer, None, message)
                    for peer in sorted(waiting)
                    if peer not in self._gone and not operation.told_of_loss
                ]
                operation.told_of_loss = True
                operation.released.add(rank)
                self._end_when_released(operation)
            else:
                actions += self._fail(operation, message)
        for configuration in [item for item in self.holds if rank in item.members]:
            hold = self.holds[configuration]
            if rank in hold.holders:
                hold.holders.remove(rank)
                hold.reports[rank] = None
            actions += self._recall(configuration, f"rank {rank} {reason}")
            actions += self._settle(configuration, now_ns)
        return actions + self._advance(now_ns)

    def abandon(self, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
        """``rank`` waited too long: the operation fails for everyone who asked for it.

        The error names what was missing.
        """
        operation = self._operations.get(key)
        if operation is None or operation.granted or rank not in operation.asked:
            return []
        missing = sorted(set(operation.configuration.members) - set(operation.asked))
        what = (
            f"rank {', '.join(map(str, missing))} has not asked for it"
            if missing
            else f"its ports are in use ({self._holders(operation)})"
        )
        message = (
            f"rank {rank} gave up waiting for {operation.configuration.name} (operation {key[1]} of"
            f" {key[0]}): {what}"
        )
        return [*self._fail(operation, message), *self._advance(now_ns)]

    def statistics(self) -> dict[str, object]:
        """Counters of the whole controller and of each rank; times in nanoseconds.

        ``reconfigurations`` counts switch commands (one for each rail and operation).
        ``speculative`` counts those begun from hints, ``wasted`` the speculative ones
        torn down again before an operation used them. ``held`` counts the operations
        that ran under held leases without asking; it is known once those are given
        back. ``recalls`` counts the questions for them.
        """
        names = (
            "requests",
            "grants",
            "hints",
            "mispredictions",
            "reconfigurations",
            "circuits_changed",
            "speculative",
            "wasted",
            "held",
            "recalls",
        )
        return {
            **{name: self.counters[name] for name in (*names, "wait_ns", "stall_ns")},
            "ranks": {
                str(rank): dict(counter) for rank, counter in sorted(self.rank_counters.items())
            },
            "rails": {
                str(rail): {
                    "generation": self.generation[rail],
                    "circuits": [list(circuit) for circuit in circuits],
                }
                for rail, circuits in self.layout.rails(self.lit).items()
            },
            "leased_circuits": len(self.leases),
            "held_circuits": len(self.held),
            "queued": len(self._queue),
        }

    def _problem(self, rank: int, key: OperationKey, configuration: Configuration) -> str | None:
        if rank not in configuration.members:
            return f"rank {rank} asked for {configuration.name}, of which it is no member"
        if configuration.members[-1] >= self.ranks:
            return (
                f"rank {rank} asked for {configuration.name}; allowed: ranks 0 to {self.ranks - 1}"
            )
        for member in configuration.members:
            if member in self._gone:
                return (
                    f"rank {member} {self._gone[member]}, but {configuration.name} (operation"
                    f" {key[1]} of {key[0]}) needs it"
                )
        return None

    def _take_hint(self, rank: int, configuration: Configuration) -> bool:
        hint = self._hints.pop(rank, None)
        mispredicted = hint is not None and hint.configuration != configuration
        self._count(rank, "mispredictions", int(mispredicted))
        return mispredicted

    def _count(self, rank: int, name: str, amount: int = 1) -> None:
        self.counters[name] += amount
        self.rank_counters.setdefault(rank, Counter())[name] += amount

    def _holders(self, operation: _Operation) -> str:
        used = {circuit for circuit in self.leases if not operation.ports.isdisjoint(circuit.ports)}
        names = sorted(
            {
                self._operations[key].configuration.name
                for circuit in used
                for key in self.leases[circuit]
            }
            | {
                f"{configuration.name}, which rank {', '.join(map(str, sorted(hold.holders)))} has"
                " not given back"
                for configuration, hold in self.holds.items()
                if self.layout.conflict(configuration, operation.configuration)
            }
        )
        return (
            "held by " + "; ".join(names)
            if names
            else "being switched or claimed by an earlier operation"
        )

    def _operation(self, key: OperationKey, configuration: Configuration) -> _Operation:
        """The operation of this key, made where there is none."""
        if key not in self._operations:
            circuits = self.layout.circuits(configuration)
            self._operations[key] = _Operation(key, configuration, circuits, ports_of(circuits))
        return self._operations[key]

    def _grant_to_holder(
        self,
        rank: int,
        request: int,
        key: OperationKey,
        configuration: Configuration,
        hold: _Hold,
        now_ns: int,
    ) -> list[Action]:
        """Answer a rank whose question crossed the grant of the lease that it holds."""
        fresh = self._last_sequence.get((rank, key[0]), -1) < key[1]
        operation = _Operation(key, configuration, hold.circuits, frozenset())
        asked = _Asked(request, now_ns, fresh and self._take_hint(rank, configuration), True)
        operation.asked[rank] = asked
        if fresh:
            self._last_sequence[rank, key[0]] = key[1]
            self._count(rank, "requests")
            self._count(rank, "grants")
            hold.granted.setdefault(rank, set()).add(key)
        return [self._grant_action(operation, rank, now_ns, hold.number)]

    def _recall(self, configuration: Configuration, reason: str | None = None) -> list[Action]:
        """Ask those who still hold a lease to give it back, once."""
        hold = self.holds.get(configuration)
        if hold is None or hold.recalled:
            return []
        hold.recalled = True
        hold.told_of_loss = reason is not None
        self.counters["recalls"] += len(hold.holders)
        return [
            RecallAction(rank, configuration, hold.number, reason) for rank in sorted(hold.holders)
        ]

    def _recall_from(self, circuits: list[Circuit], *, partial: bool = False) -> list[Action]:
        """Recall the held leases that keep ``circuits`` from coming up.

        ``partial``: only those that some member has given back already.
        """
        ports = [port for circuit in circuits for port in circuit.ports]
        in_the_way = dict.fromkeys(
            configuration
            for port in ports
            if port in self.active
            for configuration in sorted(
                self.held.get(self.active[port], ()), key=lambda item: item.name
            )
            if not partial or len(self.holds[configuration].holders) < len(configuration.members)
        )
        return [action for configuration in in_the_way for action in self._recall(configuration)]

    def _hold(self, operation: _Operation) -> _Hold | None:
        """Begin a held lease with the grant of ``operation``, if there may be one.

        Not where others wait for its ports already.
        """
        configuration = operation.configuration
        if (
            not operation.circuits
            or configuration in self.holds
            or any(configuration in item.configurations for item in self._listeners.values())
            or not all(asked.can_hold for asked in operation.asked.values())
            or any(
                not operation.ports.isdisjoint(other.ports)
                for other in self._queue
                if other.configuration != configuration
            )
        ):
            return None
        hold = _Hold(self._next_hold, operation.circuits, set(configuration.members))
        self._next_hold += 1
        self.holds[configuration] = hold
        for circuit in hold.circuits:
            self.held.setdefault(circuit, set()).add(configuration)
        return hold

    def _settle(self, configuration: Configuration, now_ns: int) -> list[Action]:
        """End a held lease once all members gave it back.

        What they all have begun goes on as an operation that was granted, what some
        have begun as one that those asked for.
        """
        hold = self.holds[configuration]
        if hold.holders:
            return []
        del self.holds[configuration]
        for circuit in hold.circuits:
            self.held[circuit].discard(configuration)
            if not self.held[circuit]:
                del self.held[circuit]
        reports = {
            rank: _complete(report, rank, hold)
            for rank, report in hold.reports.items()
            if report is not None
        }
        ran = Counter({rank: report.operations for rank, report in reports.items()})
        actions: list[Action] = []
        channels = {channel for report in reports.values() for channel in report.begun}
        for channel in sorted(channels):
            last = {
                rank: max(
                    report.begun.get(channel, -1), self._last_sequence.get((rank, channel), -1)
                )
                for rank, report in reports.items()
            }
            self._last_sequence.update({(rank, channel): n for rank, n in last.items()})
            told = {key for report in reports.values() for key in report.open}
            numbers = {
                *range(min(last.values()) + 1, max(last.values()) + 1),
                # Questions of members that did not hold it any more.
                *(number for name, number in {*told, *self._operations} if name == channel),
            }
            for number in sorted(numbers):
                begun = {rank for rank in reports if number <= last[rank]}
                still_open = {
                    rank for rank, report in reports.items() if (channel, number) in report.open
                }
                actions += self._take_over(
                    hold, configuration, (channel, number), begun, still_open, ran, now_ns
                )
        for rank, operations in ran.items():
            self._count(rank, "held", max(operations, 0))
        return actions

    def _take_over(
        self,
        hold: _Hold,
        configuration: Configuration,
        key: OperationKey,
        begun: set[int],
        still_open: set[int],
        ran: Counter[int],
        now_ns: int,
    ) -> list[Action]:
        """Make an operation of what members began under a lease that has ended."""
        operation = self._operations.get(key)
        if operation is not None and operation.granted:
            return []
        asking = {} if operation is None else operation.asked
        # A rank that died is taken to have begun: its peers may be exchanging with it.
        lost = [member for member in self._gone if member in configuration.members]
        begun = (begun - asking.keys()) | set(lost)
        under_way = begun >= set(configuration.members)
        if under_way and not still_open:
            return []
        operation = self._operation(key, configuration)
        for rank in sorted(begun):
            operation.asked[rank] = _Asked(None, now_ns, False, True)
            if rank not in still_open:
                operation.released.add(rank)
            elif not under_way:
                ran[rank] -= 1
                self._count(rank, "requests")
        if lost and not under_way:
            return self._fail(operation, self._loss(operation, lost[0]))
        actions: list[Action] = []
        if under_way:
            if lost and not hold.told_of_loss:
                message = self._loss(operation, lost[0])
                actions += [RefuseAction(rank, None, message) for rank in sorted(still_open)]
            operation.told_of_loss = bool(lost)
            operation.granted = True
            self._lease(operation)
            self._end_when_released(operation)
        elif len(operation.asked) == len(configuration.members):
            self._queue.append(operation)
        return actions

    def _loss(self, operation: _Operation, rank: int) -> str:
        return f"rank {rank} {self._gone[rank]} during {_name(operation)}"

    def _lease(self, operation: _Operation) -> None:
        for circuit in operation.circuits:
            self.leases.setdefault(circuit, set()).add(operation.key)

    def _end_when_released(self, operation: _Operation) -> None:
        if operation.released < set(operation.asked):
            return
        del self._operations[operation.key]
        for circuit in operation.circuits:
            self.leases[circuit].discard(operation.key)
            if not self.leases[circuit]:
                del self.leases[circuit]

    def _fail(self, operation: _Operation, message: str) -> list[Action]:
        """End an operation that was not granted in an error for all who asked for it.

        The caller advances.
        """
        del self._operations[operation.key]
        if operation in self._queue:
            self._queue.remove(operation)
        return [
            RefuseAction(rank, asked.request, message)
            for rank, asked in sorted(operation.asked.items())
            if rank not in self._gone
        ]

    def _is_coming_up(self, circuit: Circuit) -> bool:
        return self.moving.get(circuit.ports[0]) == circuit

    def _advance(self, now_ns: int) -> list[Action]:
        """Grant and switch whatever can be: queued operations in order, then hints."""
        actions = self._find() if self._listeners else []
        claimed: set[Port] = set()
        for operation in list(self._queue):
            if claimed.isdisjoint(operation.ports):
                actions += self._serve(operation, now_ns)
            if not operation.granted:
                claimed |= operation.ports
        return actions + self._speculate(claimed) if self._hints else actions

    def _find(self) -> list[Action]:
        """Tell who listens of the first sender that stands before its channels."""
        actions: list[Action] = []
        for (rank, request), listener in list(self._listeners.items()):
            standing = [
                (operation.key, source)
                for operation in self._operations.values()
                if (source := self._stands_before(operation, rank, listener)) is not None
            ]
            if standing:
                (channel, number), source = standing[0]
                # A later one may be known first, where the earlier began under a lease.
                number = min(key[1] for key, _ in standing if key[0] == channel)
                del self._listeners[rank, request]
                actions.append(FoundAction(rank, request, source, (channel, number)))
        return actions

    def _stands_before(self, operation: _Operation, rank: int, listener: _Listener) -> int | None:
        """The sender that stands before an operation which ``rank`` listens for.

        None where it is none of those, where ``rank`` has asked for it already, and
        while an earlier one of the channel may have begun under a held lease.
        """
        channel, number = operation.key
        source, least = listener.channels.get(channel, (None, 0))
        meant = source in operation.asked and rank not in operation.asked and number >= least
        return source if meant and operation.configuration not in self.holds else None

    def _unheard(self, rank: int, source: int) -> str:
        return f"rank {source} {self._gone[source]}, but rank {rank} receives from any source"

    def _serve(self, operation: _Operation, now_ns: int) -> list[Action]:
        missing = [circuit for circuit in operation.circuits if circuit not in self.lit]
        if not missing:
            return self._grant(operation, now_ns)
        to_start = [circuit for circuit in missing if not self._is_coming_up(circuit)]
        if to_start and not self._can_move(to_start):
            return self._recall_from(to_start)
        if operation.stall_since_ns is None:
            operation.stall_since_ns = now_ns
        switches = self._switch(to_start)
        operation.commands += len(switches)
        return list(switches)

    def _grant(self, operation: _Operation, now_ns: int) -> list[Action]:
        operation.granted = True
        operation.commands += self._ahead.pop(operation.configuration, 0)
        self._queue.remove(operation)
        hold = self._hold(operation)
        if hold is None:
            self._lease(operation)
            actions = self._grant_all(operation, None, now_ns)
            self._end_when_released(operation)
            return actions
        del self._operations[operation.key]
        actions = self._grant_all(operation, hold, now_ns)
        # Who asked for another operation on these circuits holds them now, and its
        # peers will not ask any more.
        for other in [
            item
            for item in self._operations.values()
            if item.configuration == operation.configuration
            and not item.granted
            and item not in self._queue
        ]:
            del self._operations[other.key]
            actions += self._grant_all(other, hold, now_ns)
        return actions

    def _grant_all(self, operation: _Operation, hold: _Hold | None, now_ns: int) -> list[Action]:
        """Tell all who asked.

        Who has ended its part already waits for nothing, but has to know what it holds.
        """
        actions: list[Action] = []
        for rank in sorted(operation.asked):
            ended = rank in operation.released
            if ended and hold is None:
                continue
            action = self._grant_action(
                operation, rank, now_ns, None if hold is None else hold.number
            )
            actions.append(action)
            if not ended:
                if hold is not None:
                    hold.granted.setdefault(rank, set()).add(operation.key)
                self._count(rank, "grants")
                self._count(rank, "wait_ns", action.wait_ns)
                self._count(rank, "stall_ns", action.stall_ns)
        return actions

    def _grant_action(
        self, operation: _Operation, rank: int, now_ns: int, hold: int | None = None
    ) -> GrantAction:
        asked = operation.asked[rank]
        stall_ns = now_ns - operation.stall_since_ns if operation.stall_since_ns is not None else 0
        return GrantAction(
            rank=rank,
            request=asked.request,
            key=operation.key,
            generation=max(
                (
                    self.generation[self.layout.rail(circuit.right)]
                    for circuit in operation.circuits
                ),
                default=0,
            ),
            granted_ns=now_ns,
            wait_ns=now_ns - asked.asked_ns - stall_ns,
            stall_ns=stall_ns,
            reconfigured=operation.commands,
            mispredicted=asked.mispredicted,
            configuration=operation.configuration,
            hold=hold,
        )

    def _can_move(self, circuits: list[Circuit]) -> bool:
        """Whether no port of ``circuits`` moves and none carries a leased circuit."""
        ports = [port for circuit in circuits for port in circuit.ports]
        return not any(
            port in self.moving
            or self.active.get(port) in self.leases
            or self.active.get(port) in self.held
            for port in ports
        )

    def _switch(self, circuits: list[Circuit]) -> list[SwitchAction]:
        """One command per rail: bring up ``circuits``, drop what is in their way."""
        actions = []
        for rail, connect in self.layout.rails(circuits).items():
            ports = [port for circuit in connect for port in circuit.ports]
            disconnect = tuple(sorted({self.active[port] for port in ports if port in self.active}))
            for circuit in disconnect:
                self.lit.remove(circuit)
                for port in circuit.ports:
                    del self.active[port]
            self._forget_ahead(set(disconnect))
            self.moving.update({port: circuit for circuit in connect for port in circuit.ports})
            action = SwitchAction(self._next_command, rail, connect, disconnect)
            self._commands[action.command] = action
            self._next_command += 1
            self.counters["reconfigurations"] += 1
            self.counters["circuits_changed"] += len(connect)
            actions.append(action)
        return actions

    def _forget_ahead(self, dropped: set[Circuit]) -> None:
        for configuration in [
            item for item in self._ahead if dropped & set(self.layout.circuits(item))
        ]:
            self.counters["wasted"] += self._ahead.pop(configuration)

    def _speculate(self, claimed: set[Port]) -> list[Action]:
        actions: list[Action] = []
        for configuration in dict.fromkeys(
            hint.configuration for hint in self._hints.values() if not hint.served
        ):
            hints = [hint for hint in self._hints.values() if hint.configuration == configuration]
            if not self._all_expect(configuration):
                continue
            missing = [
                circuit
                for circuit in self.layout.circuits(configuration)
                if circuit not in self.lit
            ]
            to_start = [circuit for circuit in missing if not self._is_coming_up(circuit)]
            if to_start and not claimed.isdisjoint(ports_of(tuple(to_start))):
                continue
            if to_start and not self._can_move(to_start):
                actions += self._recall_from(to_start, partial=True)
                continue
            for hint in hints:
                hint.served = True
            switches = self._switch(to_start)
            if switches:
                self.counters["speculative"] += len(switches)
                self._ahead[configuration] += len(switches)
            actions += switches
        return actions

    def _all_expect(self, configuration: Configuration) -> bool:
        """Whether each member expects ``configuration``.

        A member does that hinted it, or already stands before an operation that needs
        it.
        """
        asked = {
            rank
            for operation in self._operations.values()
            if operation.configuration == configuration and not operation.granted
            for rank in operation.asked
        }
        expecting = asked | {
            rank for rank, hint in self._hints.items() if hint.configuration == configuration
        }
        return expecting >= set(configuration.members)


def _complete(report: Report, rank: int, hold: _Hold) -> Report:
    """A member's report with what was under way to it, or followed it.

    A granted operation that it does not name begins as soon as the grant is there, and
    its end is told.
    """
    late = {key for key in hold.granted.get(rank, ()) if report.begun.get(key[0], -1) < key[1]}
    released = {key for member, key in hold.released if member == rank}
    return replace(
        report,
        begun={**report.begun, **dict(sorted(late))},
        open=(report.open | late) - released,
    )


def _name(operation: _Operation) -> str:
    return f"{operation.configuration.name} (operation {operation.key[1]} of {operation.key[0]})"
