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
  others too. So are those of a rank that has asked for what is hinted by its peers;
* a receive from any source asks for nothing yet: the rank listens, and is told of the
  first sender that stands before an operation with it. What only one end has begun
  under a held lease is not known here, so no lease of the two stays with them while one
  of them listens for the other. Who listens holds nothing;
* an operation with a dead member ends in an error for everyone who asked for it, and
  its tombstone tells those who come to it later. Giving up does the same before the
  grant; after it, it is the release;
* a rank that comes back is another one: nothing of the old one is answered to it;
* messages may come twice or late. A question is answered again as long as its operation
  is under way and the rank has not released it; everything else changes nothing;
* a port that is lost takes its circuits with it: their leases end, and what needs the
  port gets an error that names it;
* a controller that was restarted knows only what the switch carries. Ranks present what
  they have begun, as if all leases had been recalled, and nothing is switched or
  granted before all have done so or are given up.

Port accounting: the ports of a circuit that comes up are moving until the switch
reports. A port that only lost its circuit is dark and free at once.

An event costs what the operations, leases, listeners and hints of its own ranks and
ports cost, however many others there are: operations wait in a queue at each of their
ports, and only what stands at a port that was touched is looked at again.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from railx.fabric.actions import (
    Action,
    FoundAction,
    GrantAction,
    RecallAction,
    RefuseAction,
    SwitchAction,
)
from railx.fabric.circuits import Circuit, Configuration, Layout, Port, ports_of
from railx.fabric.holdings import OperationKey, Presentation, Report

__all__ = [
    "CHANNELS",
    "LISTENERS",
    "OPEN_OPERATIONS",
    "TOMBSTONES",
    "Action",
    "ControllerCore",
    "FoundAction",
    "GrantAction",
    "OperationKey",
    "RecallAction",
    "RefuseAction",
    "SwitchAction",
]

#: Operations that a rank may stand before or have under way.
OPEN_OPERATIONS = 4096
#: Receives from any source for which a rank may wait at a time; as many that were
#: answered are remembered.
LISTENERS = 256
#: Channels of a rank whose last operation is remembered; then the one that was used
#: longest ago is forgotten.
CHANNELS = 65536
#: Failed operations whose members are remembered that have not come to them yet.
TOMBSTONES = 4096
#: What is said of a rank that left in order.
ORDERLY = "has left"


_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(slots=True)
class _Asked:
    """One member's question; without ``request`` it has begun under a held lease."""

    request: int | None
    asked_ns: int
    mispredicted: bool
    can_hold: bool


@dataclass(slots=True, eq=False)
class _Operation:
    """``order`` is its place in the queue, once all members have asked.

    ``serial`` says which became known first.
    """

    key: OperationKey
    configuration: Configuration
    circuits: tuple[Circuit, ...]
    ports: frozenset[Port]
    serial: int = 0
    asked: dict[int, _Asked] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    granted: bool = False
    order: int | None = None
    commands: int = 0
    told_of_loss: bool = False
    stall_since_ns: int | None = None


@dataclass(slots=True, eq=False)
class _Hold:
    """A held lease: who has not given it back, and what the others reported.

    ``granted`` are the operations whose grant may cross a member's report: that has to
    name them or their grant came too late. ``released`` are operations whose end was
    told after the report, or overtook it. ``lost`` are members that died, and why.
    """

    number: int
    circuits: tuple[Circuit, ...]
    holders: set[int]
    reports: dict[int, Report] = field(default_factory=dict)
    granted: dict[int, set[OperationKey]] = field(default_factory=dict)
    released: set[tuple[int, OperationKey]] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    recalled: bool = False
    told_of_loss: bool = False
    lost_port: str | None = None


@dataclass(slots=True)
class _Hint:
    configuration: Configuration
    served: bool = False


@dataclass(frozen=True, slots=True)
class _Listener:
    """A rank that waits for one of several senders, by their channel.

    A channel has its sender and the number of the first operation that may be meant.
    """

    serial: int
    channels: Mapping[str, tuple[int, int]]
    configurations: frozenset[Configuration]


@dataclass(slots=True)
class _Tombstone:
    """An operation that failed, and the members who have not come to it yet."""

    message: str
    reason: str
    untold: set[int]


@dataclass(slots=True)
class _Expected:
    """Who expects a configuration: hints it, or stands before what needs it.

    ``hints`` has those who hint it, ``unserved`` how many of them wait for a switch,
    ``ready`` the turn of the configuration once all members expect it.
    """

    ranks: dict[int, int] = field(default_factory=dict)
    hints: set[int] = field(default_factory=set)
    unserved: int = 0
    ready: int | None = None


class ControllerCore:
    """The state of all rails.

    Every method takes the present time in nanoseconds and returns the actions that
    follow, in order.
    """

    def __init__(
        self,
        layout: Layout,
        ranks: int,
        *,
        active: Iterable[Circuit] = (),
        recovering: bool = False,
    ) -> None:
        """``active``: what carries light already (nothing moves). ``recovering``: ranks
        of an earlier controller present what they have begun before anything happens.
        """
        self.layout = layout
        self.ranks = ranks
        #: Circuits that carry light, by port, and as a set.
        self.active: dict[Port, Circuit] = {}
        self.lit: set[Circuit] = set()
        for circuit in active:
            self._light(circuit)
        #: Circuits that are coming up, by port.
        self.moving: dict[Port, Circuit] = {}
        #: Ports that are out of order, and why.
        self.lost_ports: dict[Port, str] = {}
        #: Which granted operations use a circuit.
        self.leases: dict[Circuit, set[OperationKey]] = {}
        #: Leases that stay with their members, and which of them keep a circuit up.
        self.holds: dict[Configuration, _Hold] = {}
        self.held: dict[Circuit, set[Configuration]] = {}
        #: Whether ranks have to present what they have begun.
        self.recovering = recovering and ranks > 0
        #: Number of the last change on each rail (numbers are the controller's, so they
        #: also order changes between rails).
        self.generation: Counter[int] = Counter()
        self.counters: Counter[str] = Counter()
        self.rank_counters: dict[int, Counter[str]] = {}
        self.refusals: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._changes = 0
        self._next_command = 0
        self._next_hold = 0
        self._serial = 0
        self._commands: dict[int, SwitchAction] = {}
        # Circuits that come up but lost a port on the way.
        self._spoiled: set[Circuit] = set()
        self._operations: dict[OperationKey, _Operation] = {}
        self._by_channel: dict[str, dict[int, _Operation]] = {}
        self._by_configuration: dict[Configuration, dict[OperationKey, _Operation]] = {}
        self._by_member: dict[int, dict[OperationKey, _Operation]] = {}
        self._holds_of: dict[int, dict[Configuration, None]] = {}
        # Operations that all members asked for, by order, and those of each port.
        self._queue: dict[int, _Operation] = {}
        self._waiting: dict[Port, dict[int, _Operation]] = {}
        self._hints: dict[int, _Hint] = {}
        self._expected: dict[Configuration, _Expected] = {}
        self._ready: dict[Port, dict[Configuration, None]] = {}
        # What has to be looked at again: orders of the queue, turns of hinted
        # configurations, and who listens.
        self._touched: list[int] = []
        self._touched_hints: dict[Configuration, None] = {}
        self._stirred: set[tuple[int, int]] = set()
        # Who listens, by rank and request.
        self._listeners: dict[tuple[int, int], _Listener] = {}
        self._listening: dict[str, dict[tuple[int, int], None]] = {}
        self._listeners_of: dict[int, dict[tuple[int, int], None]] = {}
        self._listened: Counter[Configuration] = Counter()
        self._heard: dict[int, dict[int, None]] = {}
        self._ahead: Counter[Configuration] = Counter()
        self._ahead_on: dict[Circuit, dict[Configuration, None]] = {}
        # The last operation of each rank and channel, the channel used last at the end.
        self._last: dict[int, dict[str, int]] = {}
        self._tombstones: dict[OperationKey, _Tombstone] = {}
        # What ranks gave up before their question came, the newest at the end.
        self._given_up: dict[int, dict[OperationKey, None]] = {}
        self._gone: dict[int, str] = {}
        self._present: dict[int, int | None] = {}
        self._former: dict[int, int | None] = {}
        self._returning: set[int] = set()
        self._presented: dict[int, Presentation] = {}
        # Ends told while others had not presented yet.
        self._ended_early: set[tuple[int, OperationKey]] = set()

    @property
    def awaited(self) -> frozenset[int]:
        """The ranks that have not presented what they have begun."""
        if not self.recovering:
            return frozenset()
        return frozenset(range(self.ranks)) - self._presented.keys() - self._gone.keys()

    def gone(self, rank: int) -> str | None:
        """What befell a rank, or None."""
        return self._gone.get(rank)

    def register(
        self, rank: int, incarnation: int | None = None, *, returning: bool = False
    ) -> str | None:
        """A rank arrives or comes back; returns why it may not (one line), or None.

        ``incarnation`` tells two processes of a rank apart. ``returning``: it was
        registered with a controller before this one.
        """
        if not 0 <= rank < self.ranks:
            return f"rank {rank} registered; allowed: 0 to {self.ranks - 1}"
        if rank in self._present:
            return f"rank {rank} is already registered"
        if incarnation is not None and self._former.get(rank) == incarnation:
            return f"rank {rank} {self._gone.get(rank, 'has left')}; allowed: a new process"
        if returning and not self.recovering:
            return f"rank {rank} came back too late: the controller does not wait for it any more"
        if not self._present and not self.recovering:
            # The first rank of the next program: nobody of the last one is missed.
            self._gone.clear()
            self._tombstones.clear()
        self._present[rank] = incarnation
        if returning:
            self._returning.add(rank)
        self._gone.pop(rank, None)
        self._take_back_hint(rank)
        self._last.pop(rank, None)
        self._heard.pop(rank, None)
        self._given_up.pop(rank, None)
        for key in [key for key, item in self._tombstones.items() if rank in item.untold]:
            self._told(key, rank)
        return None

    def present(self, rank: int, presentation: Presentation, now_ns: int) -> list[Action]:
        """``rank`` tells a restarted controller what it has begun.

        Then it asks its open questions again. From now on it asks before every
        operation and releases those in ``presentation.open``. A second time changes
        nothing.
        """
        if not self.recovering or rank not in self.awaited:
            return []
        self._presented[rank] = presentation
        for channel, (_, number) in presentation.begun.items():
            self._note_last(rank, channel, number)
        self._count(rank, "held", presentation.operations)
        return [] if self.awaited else self._recover(now_ns)

    def end_recovery(self, now_ns: int) -> list[Action]:
        """Who has not presented by now is dead."""
        for rank in sorted(self.awaited):
            self._gone[rank] = "did not come back after the controller was restarted"
            self._former[rank] = self._present.pop(rank, None)
            self.failures["ranks"] += 1
        return self._recover(now_ns) if self.recovering else []

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
        if problem is not None and problem[1] not in ("lost", "port"):
            return [self._refuse(rank, request, *problem)]
        operation = self._operations.get(key)
        if key in self._given_up.get(rank, ()):
            # The question comes behind its end. Its peers must not wait for it.
            _discard(self._given_up, rank, key)
            message = f"rank {rank} gave up waiting for {configuration.name}"
            problem = f"{message} (operation {key[1]} of {key[0]})", "abandoned"
            return self._refuse_all(rank, request, key, configuration, problem, now_ns)
        if operation is not None and operation.configuration != configuration:
            return self._disagree(rank, request, operation, configuration, now_ns)
        if operation is not None and rank in operation.asked:
            if rank in operation.released:
                return [self._refuse_again(rank, request, key)]
            asked = operation.asked[rank]
            if asked.request is not None:
                asked.request = request
            return [self._grant_action(operation, rank, now_ns)] if operation.granted else []
        tombstone = self._tombstones.get(key)
        if tombstone is not None and rank in tombstone.untold:
            self._told(key, rank)
            self._note_last(rank, *key)
            return [self._refuse(rank, request, tombstone.message, tombstone.reason)]
        hold = self.holds.get(configuration)
        if hold is not None and rank in hold.holders and not hold.recalled:
            return self._grant_to_holder(rank, request, key, configuration, hold, now_ns)
        if self._last_of(rank, key[0]) >= key[1] or (operation and operation.granted):
            return [self._refuse_again(rank, request, key)]
        if problem is None and self._has_too_many(rank):
            message = f"rank {rank} has {OPEN_OPERATIONS} operations open"
            problem = f"{message}; allowed: no more", "limit"
        if problem is not None:
            return self._refuse_all(rank, request, key, configuration, problem, now_ns)
        passed = self._pass(rank, key)
        operation = self._operation(key, configuration)
        self._note_last(rank, *key)
        mispredicted = self._take_hint(rank, configuration)
        self._stand(operation, rank, _Asked(request, now_ns, mispredicted, can_hold))
        self._count(rank, "requests")
        self._enqueue(operation)
        # Those who still hold the lease may have begun it without asking.
        return [*passed, *self._recall(configuration), *self._advance(now_ns)]

    def listen(
        self, rank: int, request: int, channels: Mapping[str, tuple[int, int]], now_ns: int
    ) -> list[Action]:
        """``rank`` stands before a receive and does not know its sender.

        ``channels``: by channel, the sender and the number of the next operation. The
        first sender that stands, or comes to stand, before such an operation is found;
        the rank then asks for it as for any other. What was answered already, or given
        up, changes nothing.
        """
        if rank in self._gone or request in self._heard.get(rank, ()):
            return []
        sources = {source for source, _ in channels.values()}
        for source in sorted(sources):
            if source == rank or not 0 <= source < self.ranks:
                message = f"rank {rank} listens for rank {source}; allowed: another rank"
                message = f"{message}, 0 to {self.ranks - 1}"
                return [self._refuse(rank, request, message, "listen")]
            if source in self._gone:
                return [self._refuse(rank, request, self._unheard(rank, source), "lost")]
        mine = self._listeners_of.get(rank, {})
        if (rank, request) not in mine and sum(one == rank for one, _ in mine) >= LISTENERS:
            message = f"rank {rank} listens {LISTENERS} times; allowed: no more"
            return [self._refuse(rank, request, message, "limit")]
        pairs = sorted({Configuration("pair", (rank, source)) for source in sources}, key=_by_name)
        self._drop_listener(rank, request)
        listener = _Listener(self._turn(), dict(channels), frozenset(pairs))
        self._listeners[rank, request] = listener
        self._listened.update(listener.configurations)
        for channel in channels:
            self._listening.setdefault(channel, {})[rank, request] = None
        for member in _involved(rank, listener):
            self._listeners_of.setdefault(member, {})[rank, request] = None
        self._stirred.add((rank, request))
        return [*(item for pair in pairs for item in self._recall(pair)), *self._advance(now_ns)]

    def unlisten(self, rank: int, request: int) -> None:
        """``rank`` does not wait for a sender any more."""
        self._drop_listener(rank, request)
        self._hear(rank, request)

    def release(self, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
        """``rank`` has ended its part of an operation.

        Unknown and repeated releases change nothing.
        """
        operation = self._operations.get(key)
        if operation is None or rank not in operation.asked:
            if self.recovering and len(self._ended_early) < self.ranks * OPEN_OPERATIONS:
                self._ended_early.add((rank, key))
            # It may be part of a lease that other members have not given back yet, or
            # have overtaken the report that names it.
            for configuration in self._holds_of.get(rank, ()):
                hold = self.holds[configuration]
                report = hold.reports.get(rank)
                known = report is None or key in report.open or key in hold.granted.get(rank, ())
                if known and len(hold.released) < OPEN_OPERATIONS:
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
        if not hold.recalled:
            # Hints may be waiting for the others to give it back too.
            self._touch(ports_of(hold.circuits))
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
        self._take_back_hint(rank)
        self._hints[rank] = _Hint(configuration)
        expected = self._expected.setdefault(configuration, _Expected())
        expected.hints.add(rank)
        expected.unserved += 1
        self._expect(configuration, rank, 1)
        self._count(rank, "hints")
        return self._advance(now_ns)

    def switched(self, command: int, now_ns: int) -> list[Action]:
        """The switch has carried out a command: its circuits carry light.

        A command that is not under way changes nothing.
        """
        action = self._commands.pop(command, None)
        if action is None:
            return []
        for circuit in action.connect:
            for port in circuit.ports:
                del self.moving[port]
            if circuit in self._spoiled:
                self._spoiled.remove(circuit)
            else:
                self._light(circuit)
        self._changes += 1
        self.generation[action.rail] = self._changes
        self._touch(ports_of(action.connect))
        return self._advance(now_ns)

    def switch_failed(self, command: int, reason: str, now_ns: int) -> list[Action]:
        """The switch could not carry out a command: none of its circuits is up.

        Who waits for them gets an error; the next question tries again.
        """
        action = self._commands.pop(command, None)
        if action is None:
            return []
        self.failures["switches"] += 1
        for circuit in action.connect:
            for port in circuit.ports:
                del self.moving[port]
        self._spoiled.difference_update(action.connect)
        self._forget_ahead(action.connect)
        failed = set(action.connect)
        message = f"the switch of rail {action.rail} failed ({reason})"
        actions: list[Action] = []
        for operation in self._first_at(ports_of(action.connect)):
            if not failed.isdisjoint(operation.circuits):
                actions += self._fail(operation, f"{message} for {_name(operation)}", "switch")
        self._touch(ports_of(action.connect))
        return [*actions, *self._advance(now_ns)]

    def ports_lost(self, ports: Iterable[Port], reason: str, now_ns: int) -> list[Action]:
        """These ports are out of order: their circuits are dark and dropped.

        Operations that need one of them get an error that names it.
        """
        lost = [port for port in sorted(set(ports)) if port not in self.lost_ports]
        self.lost_ports.update(dict.fromkeys(lost, reason))
        self.failures["ports"] += len(lost)
        actions: list[Action] = []
        for port in lost:
            if port in self.moving:
                self._spoiled.add(self.moving[port])
            if port in self.active:
                actions += self._darken(self.active[port], port)
        if lost:
            broken = set(lost)
            for operation in list(self._operations.values()):
                if not operation.granted and not broken.isdisjoint(operation.ports):
                    actions += self._fail(operation, self._without_port(operation), "port")
        return [*actions, *self._advance(now_ns)]

    def ports_back(self, ports: Iterable[Port], now_ns: int) -> list[Action]:
        """These ports are in order again, dark and free."""
        back = [port for port in sorted(set(ports)) if port in self.lost_ports]
        for port in back:
            del self.lost_ports[port]
        self._touch(back)
        return self._advance(now_ns)

    def leave(self, rank: int, reason: str, now_ns: int) -> list[Action]:
        """``rank`` is gone: whoever waits for it gets an error, and its leases end.

        ``reason`` completes "rank 3 ...".
        """
        self._gone[rank] = reason
        if rank in self._present:
            self._former[rank] = self._present.pop(rank)
        self.failures["ranks"] += reason != ORDERLY
        self._returning.discard(rank)
        self._presented.pop(rank, None)
        self._take_back_hint(rank)
        actions: list[Action] = []
        for listening, request in list(self._listeners_of.get(rank, ())):
            self._drop_listener(listening, request)
            if listening != rank:
                self._hear(listening, request)
                message = self._unheard(listening, rank)
                actions.append(self._refuse(listening, request, message, "lost"))
        for operation in list(self._by_member.get(rank, {}).values()):
            message = f"rank {rank} {reason} during {_name(operation)}"
            if operation.granted:
                # Those who leave because of the first loss are not its reason.
                actions += self._tell(operation, message, "lost", but=rank)
                operation.released.add(rank)
                self._end_when_released(operation)
            else:
                actions += self._fail(operation, message, "lost")
        for configuration in list(self._holds_of.get(rank, ())):
            hold = self.holds[configuration]
            hold.holders.discard(rank)
            hold.reports.pop(rank, None)
            hold.lost.setdefault(rank, reason)
            self._touch(ports_of(hold.circuits))
            actions += self._recall(configuration, f"rank {rank} {reason}")
            actions += self._settle(configuration, now_ns)
        if self.recovering and not self.awaited:
            return [*actions, *self._recover(now_ns)]
        return [*actions, *self._advance(now_ns)]

    def abandon(self, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
        """``rank`` waited too long: the operation fails for everyone who asked for it.

        The error names what was missing. An operation that was granted meanwhile is
        released. A question for it that comes later is refused.
        """
        operation = self._operations.get(key)
        if operation is None or rank not in operation.asked:
            if operation is not None and rank not in operation.configuration.members:
                return []
            if self._last_of(rank, key[0]) < key[1]:
                given_up = self._given_up.setdefault(rank, {})
                given_up[key] = None
                if len(given_up) > LISTENERS:
                    del given_up[next(iter(given_up))]
            return self.release(rank, key, now_ns)
        if operation.granted or operation.asked[rank].request is None:
            return self.release(rank, key, now_ns)
        missing = sorted(set(operation.configuration.members) - set(operation.asked))
        what = (
            f"rank {', '.join(map(str, missing))} has not asked for it"
            if missing
            else f"its ports are in use ({self._holders(operation)})"
        )
        message = f"rank {rank} gave up waiting for {_name(operation)}: {what}"
        return [*self._fail(operation, message, "abandoned"), *self._advance(now_ns)]

    def statistics(self) -> dict[str, object]:
        """Counters of the whole controller and of each rank; times in nanoseconds.

        ``reconfigurations`` counts switch commands (one for each rail and operation).
        ``speculative`` counts those begun from hints, ``wasted`` the speculative ones
        torn down again before an operation used them. ``held`` counts the operations
        that ran under held leases without asking; it is known once those are given
        back. ``recalls`` counts the questions for them. ``refusals`` counts by a word
        for the reason, ``failures`` what broke: switch commands, ports, ranks.
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
            "refusals": dict(sorted(self.refusals.items())),
            "failures": {name: self.failures[name] for name in ("switches", "ports", "ranks")},
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
            "open": len(self._operations),
            "tombstones": len(self._tombstones),
            "recovering": self.recovering,
        }

    def snapshot(self) -> dict[str, Any]:
        """What is going on now, as plain values; for people and for metrics."""
        moving = self.layout.rails(set(self.moving.values()))
        lit = self.layout.rails(self.lit)
        return {
            "recovering": self.recovering,
            "rails": {
                str(rail): {
                    "generation": self.generation[rail],
                    "circuits": [list(circuit) for circuit in lit.get(rail, ())],
                    "moving": [list(circuit) for circuit in moving.get(rail, ())],
                }
                for rail in sorted(lit.keys() | moving.keys())
            },
            "leases": [
                {
                    "circuit": list(circuit),
                    "operations": [list(key) for key in sorted(self.leases.get(circuit, ()))],
                    "holds": sorted(item.name for item in self.held.get(circuit, ())),
                }
                for circuit in sorted(self.leases.keys() | self.held.keys())
            ],
            "holds": [
                {
                    "configuration": configuration.name,
                    "hold": hold.number,
                    "holders": sorted(hold.holders),
                    "recalled": hold.recalled,
                }
                for configuration, hold in self.holds.items()
            ],
            "queue": [
                {
                    "configuration": operation.configuration.name,
                    "operation": list(operation.key),
                    "since_ns": max(item.asked_ns for item in operation.asked.values()),
                }
                for operation in self._queue.values()
            ],
            "waiting": [
                {
                    "configuration": operation.configuration.name,
                    "operation": list(operation.key),
                    "asked": sorted(operation.asked),
                    "missing": sorted(set(operation.configuration.members) - set(operation.asked)),
                }
                for operation in self._operations.values()
                if not operation.granted and operation.order is None
            ],
            "ranks": {
                str(rank): {
                    "present": rank in self._present,
                    "incarnation": self._present.get(rank, self._former.get(rank)),
                    "gone": self._gone.get(rank),
                }
                for rank in sorted(self._present.keys() | self._former.keys() | self._gone.keys())
            },
            "lost_ports": [
                {"gpu": port.gpu, "side": port.side, "reason": reason}
                for port, reason in sorted(self.lost_ports.items())
            ],
        }

    # Refusals

    def _refuse(self, rank: int, request: int | None, message: str, reason: str) -> RefuseAction:
        self.refusals[reason] += 1
        return RefuseAction(rank, request, message, reason)

    def _refuse_again(self, rank: int, request: int, key: OperationKey) -> RefuseAction:
        message = f"rank {rank} asked again for operation {key[1]} of {key[0]}, which has ended"
        return self._refuse(rank, request, message, "ended")

    def _problem(
        self, rank: int, key: OperationKey, configuration: Configuration
    ) -> tuple[str, str] | None:
        """Why a question makes no sense, and the word for it."""
        if rank not in configuration.members:
            message = f"rank {rank} asked for {configuration.name}, of which it is no member"
            return message, "member"
        if configuration.members[-1] >= self.ranks:
            message = f"rank {rank} asked for {configuration.name}"
            return f"{message}; allowed: ranks 0 to {self.ranks - 1}", "rank"
        needs = f"but {configuration.name} (operation {key[1]} of {key[0]}) needs it"
        for member in configuration.members if self._gone else ():
            if member in self._gone:
                return f"rank {member} {self._gone[member]}, {needs}", "lost"
        if self.recovering and rank not in self._presented:
            return f"rank {rank} has not presented what it had begun", "recovery"
        if self.lost_ports:
            for port in sorted(ports_of(self.layout.circuits(configuration))):
                if port in self.lost_ports:
                    return f"{self._lost_port(port)}, {needs}", "port"
        return None

    def _disagree(
        self,
        rank: int,
        request: int,
        operation: _Operation,
        configuration: Configuration,
        now_ns: int,
    ) -> list[Action]:
        """The ranks want different things of one operation, which cannot be for any.

        A rank that is no member of what the others want harms only itself.
        """
        key = operation.key
        message = (
            f"the ranks disagree about operation {key[1]} of {key[0]}: rank {rank} asked for"
            f" {configuration.name}, rank {min(operation.asked)} for"
            f" {operation.configuration.name}"
        )
        return self._refuse_all(rank, request, key, configuration, (message, "disagree"), now_ns)

    def _refuse_all(
        self,
        rank: int,
        request: int,
        key: OperationKey,
        configuration: Configuration,
        problem: tuple[str, str],
        now_ns: int,
    ) -> list[Action]:
        """Refuse a question, and the operation to its other members too.

        They would wait for the rank in vain.
        """
        operation = self._operation(key, configuration)
        refusal = self._refuse(rank, request, *problem)
        if operation.granted or rank not in operation.configuration.members:
            return [refusal]
        failed = [*self._pass(rank, key), *self._fail(operation, *problem)]
        self._note_last(rank, *key)
        self._told(key, rank)
        others = [item for item in failed if not _answers(item, rank, request)]
        return [refusal, *others, *self._advance(now_ns)]

    def _lost_port(self, port: Port) -> str:
        what = f"the {port.side} port of GPU {port.gpu} on rail {self.layout.rail(port.gpu)}"
        return f"{what} is lost ({self.lost_ports[port]})"

    def _without_port(self, operation: _Operation) -> str:
        port = next(port for port in sorted(operation.ports) if port in self.lost_ports)
        return f"{self._lost_port(port)}, but {_name(operation)} needs it"

    def _unheard(self, rank: int, source: int) -> str:
        return f"rank {source} {self._gone[source]}, but rank {rank} receives from any source"

    def _holders(self, operation: _Operation) -> str:
        used = {self.active[port] for port in operation.ports if port in self.active}
        names = {
            self._operations[key].configuration.name
            for circuit in used
            for key in self.leases.get(circuit, ())
        }
        for configuration in {item for circuit in used for item in self.held.get(circuit, ())}:
            if self.layout.conflict(configuration, operation.configuration):
                ranks = ", ".join(map(str, sorted(self.holds[configuration].holders)))
                names.add(f"{configuration.name}, which rank {ranks} has not given back")
        return (
            "held by " + "; ".join(sorted(names))
            if names
            else "being switched or claimed by an earlier operation"
        )

    def _tell(
        self, operation: _Operation, message: str, reason: str, *, but: int | None = None
    ) -> list[Action]:
        """Tell those who have a granted operation under way what befell it, once."""
        if operation.told_of_loss:
            return []
        operation.told_of_loss = True
        return [
            self._refuse(rank, None, message, reason)
            for rank in sorted(operation.asked)
            if rank not in operation.released and rank not in self._gone and rank != but
        ]

    def _fail(self, operation: _Operation, message: str, reason: str) -> list[Action]:
        """End an operation that was not granted in an error for all who asked for it.

        Who comes to it later is told then. The caller advances.
        """
        self._forget(operation)
        members = set(operation.configuration.members)
        untold = members - operation.asked.keys() - self._gone.keys()
        if untold:
            self._tombstones[operation.key] = _Tombstone(message, reason, untold)
            if len(self._tombstones) > TOMBSTONES:
                del self._tombstones[next(iter(self._tombstones))]
        return [
            self._refuse(rank, asked.request, message, reason)
            for rank, asked in sorted(operation.asked.items())
            if rank not in self._gone
            and (asked.request is not None or rank not in operation.released)
        ]

    def _pass(self, rank: int, key: OperationKey) -> list[Action]:
        """Fail the earlier operations of a channel that ``rank`` has not asked for.

        It comes to ``key``, and a question for one before that would be refused. They
        are left where a controller before this one has refused them to the rank.
        """
        channel, number = key
        last = self._last_of(rank, channel)
        if number <= last + 1:
            return []
        actions: list[Action] = []
        row = self._by_channel.get(channel, {})
        for operation in [row[earlier] for earlier in sorted(row) if last < earlier < number]:
            configuration = operation.configuration
            if operation.granted or rank in operation.asked or rank not in configuration.members:
                continue
            # What it has begun under a lease counts when the lease ends.
            if configuration not in self.holds:
                message = _passed(rank, configuration, operation.key)
                actions += self._fail(operation, message, "ended")
                self._told(operation.key, rank)
        return actions

    def _told(self, key: OperationKey, rank: int) -> None:
        """A member knows that an operation failed."""
        tombstone = self._tombstones.get(key)
        if tombstone is not None:
            tombstone.untold.discard(rank)
            if not tombstone.untold:
                del self._tombstones[key]

    # What is remembered of ranks

    def _turn(self) -> int:
        """The next of the numbers that say what came first."""
        self._serial += 1
        return self._serial

    def _count(self, rank: int, name: str, amount: int = 1) -> None:
        self.counters[name] += amount
        counters = self.rank_counters.get(rank)
        if counters is None:
            counters = self.rank_counters[rank] = Counter()
        counters[name] += amount

    def _last_of(self, rank: int, channel: str) -> int:
        numbers = self._last.get(rank)
        return -1 if numbers is None else numbers.get(channel, -1)

    def _note_last(self, rank: int, channel: str, number: int) -> None:
        numbers = self._last.setdefault(rank, {})
        numbers[channel] = max(number, numbers.pop(channel, -1))
        if len(numbers) > CHANNELS:
            del numbers[next(iter(numbers))]

    def _has_too_many(self, rank: int) -> bool:
        mine = self._by_member.get(rank, {})
        return (
            len(mine) >= OPEN_OPERATIONS
            and sum(
                rank in operation.asked and rank not in operation.released
                for operation in mine.values()
            )
            >= OPEN_OPERATIONS
        )

    def _hear(self, rank: int, request: int) -> None:
        """A question of who listens has had its answer."""
        heard = self._heard.setdefault(rank, {})
        heard[request] = None
        if len(heard) > LISTENERS:
            del heard[next(iter(heard))]

    def _drop_listener(self, rank: int, request: int) -> None:
        listener = self._listeners.pop((rank, request), None)
        if listener is None:
            return
        for channel in listener.channels:
            del self._listening[channel][rank, request]
            if not self._listening[channel]:
                del self._listening[channel]
        for member in _involved(rank, listener):
            del self._listeners_of[member][rank, request]
            if not self._listeners_of[member]:
                del self._listeners_of[member]
        for configuration in listener.configurations:
            self._listened[configuration] -= 1
            if not self._listened[configuration]:
                del self._listened[configuration]

    # Operations and their indices

    def _operation(self, key: OperationKey, configuration: Configuration) -> _Operation:
        """The operation of this key, made where there is none."""
        operation = self._operations.get(key)
        if operation is None:
            circuits = self.layout.circuits(configuration)
            serial = self._turn()
            operation = _Operation(key, configuration, circuits, ports_of(circuits), serial)
            self._operations[key] = operation
            self._by_channel.setdefault(key[0], {})[key[1]] = operation
            self._by_configuration.setdefault(configuration, {})[key] = operation
            for member in configuration.members:
                self._by_member.setdefault(member, {})[key] = operation
        return operation

    def _forget(self, operation: _Operation) -> None:
        """Take an operation out of everything but the leases."""
        key, configuration = operation.key, operation.configuration
        if not operation.granted:
            self._stands_no_more(operation)
        del self._operations[key]
        _discard(self._by_channel, key[0], key[1])
        _discard(self._by_configuration, configuration, key)
        for member in configuration.members:
            _discard(self._by_member, member, key)

    def _stand(self, operation: _Operation, rank: int, asked: _Asked) -> None:
        """A member stands before an operation that is not granted."""
        operation.asked[rank] = asked
        self._expect(operation.configuration, rank, 1)
        self._stirred.update(self._listening.get(operation.key[0], ()))

    def _stands_no_more(self, operation: _Operation) -> None:
        """An operation is granted or has failed: it leaves the queue."""
        for rank in operation.asked:
            self._expect(operation.configuration, rank, -1)
        if operation.order is None:
            return
        del self._queue[operation.order]
        for port in operation.ports:
            waiting = self._waiting[port]
            del waiting[operation.order]
            if not waiting:
                del self._waiting[port]
        operation.order = None
        self._touch(operation.ports)

    def _enqueue(self, operation: _Operation) -> None:
        """All may have asked: then the operation takes its place in the queue."""
        if operation.order is not None or len(operation.asked) < len(
            operation.configuration.members
        ):
            return
        operation.order = self._turn()
        self._queue[operation.order] = operation
        for port in operation.ports:
            self._waiting.setdefault(port, {})[operation.order] = operation
        heapq.heappush(self._touched, operation.order)

    def _first_at(self, ports: Iterable[Port]) -> list[_Operation]:
        """The first operation of the queue at each of these ports, in order."""
        first = {next(iter(self._waiting[port])) for port in ports if port in self._waiting}
        return [self._queue[order] for order in sorted(first)]

    def _touch(self, ports: Iterable[Port]) -> None:
        """Something changed at these ports: look again at who waits for them."""
        orders = set()
        for port in ports:
            waiting = self._waiting.get(port)
            if waiting:
                orders.add(next(iter(waiting)))
            if port in self._ready:
                self._touched_hints.update(self._ready[port])
        for order in orders:
            heapq.heappush(self._touched, order)

    # Leases

    def _lease(self, operation: _Operation) -> None:
        for circuit in operation.circuits:
            if circuit in self.lit:
                self.leases.setdefault(circuit, set()).add(operation.key)

    def _end_when_released(self, operation: _Operation) -> None:
        if len(operation.released) < len(operation.asked):
            return
        self._forget(operation)
        for circuit in operation.circuits:
            keys = self.leases.get(circuit)
            if keys is not None:
                keys.discard(operation.key)
                if not keys:
                    del self.leases[circuit]
        self._touch(operation.ports)

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
        fresh = self._last_of(rank, key[0]) < key[1]
        operation = _Operation(key, configuration, hold.circuits, frozenset())
        asked = _Asked(request, now_ns, fresh and self._take_hint(rank, configuration), True)
        operation.asked[rank] = asked
        if fresh:
            if len(hold.granted.get(rank, ())) >= OPEN_OPERATIONS:
                message = f"rank {rank} has {OPEN_OPERATIONS} operations open"
                return [self._refuse(rank, request, f"{message}; allowed: no more", "limit")]
            self._note_last(rank, *key)
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

    def _recall_from(
        self, circuits: list[Circuit], expected: Configuration | None = None
    ) -> list[Action]:
        """Recall the held leases that keep ``circuits`` from coming up.

        ``expected``: only to be ahead of what needs this, so that only those leases are
        recalled with which a member is through: it has given its part back, or has
        asked for an operation of ``expected``.
        """
        through = set() if expected is None else self._standing_before(expected)
        in_the_way: dict[Configuration, None] = {}
        for circuit in circuits:
            for port in circuit.ports:
                here = self.active.get(port)
                held = () if here is None else self.held.get(here, ())
                for configuration in sorted(held, key=_by_name) if len(held) > 1 else held:
                    hold = self.holds[configuration]
                    few = len(hold.holders) < len(configuration.members)
                    if not hold.recalled and (
                        expected is None or few or not through.isdisjoint(hold.holders)
                    ):
                        in_the_way[configuration] = None
        return [action for configuration in in_the_way for action in self._recall(configuration)]

    def _standing_before(self, configuration: Configuration) -> set[int]:
        """Who has asked for an operation that needs this, and waits for it."""
        return {
            rank
            for operation in self._by_configuration.get(configuration, {}).values()
            if not operation.granted
            for rank, asked in operation.asked.items()
            if asked.request is not None
        }

    def _hold(self, operation: _Operation) -> _Hold | None:
        """Begin a held lease with the grant of ``operation``, if there may be one.

        Not where others wait for its ports already.
        """
        configuration = operation.configuration
        if (
            not operation.circuits
            or not all(asked.can_hold for asked in operation.asked.values())
            or configuration in self.holds
            or configuration in self._listened
            or any(
                other.configuration != configuration
                for port in operation.ports
                for other in self._waiting.get(port, {}).values()
            )
        ):
            return None
        hold = _Hold(self._next_hold, operation.circuits, set(configuration.members))
        self._next_hold += 1
        self.holds[configuration] = hold
        for member in configuration.members:
            self._holds_of.setdefault(member, {})[configuration] = None
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
        for member in configuration.members:
            _discard(self._holds_of, member, configuration)
        for circuit in hold.circuits:
            if circuit in self.held:
                self.held[circuit].discard(configuration)
                if not self.held[circuit]:
                    del self.held[circuit]
        for operation in self._by_configuration.get(configuration, {}).values():
            self._stirred.update(self._listening.get(operation.key[0], ()))
        reports = {rank: _complete(item, rank, hold) for rank, item in hold.reports.items()}
        ran = Counter({rank: report.operations for rank, report in reports.items()})
        begun = {rank: report.begun for rank, report in reports.items()}
        still_open = {rank: report.open for rank, report in reports.items()}
        channels = {channel for numbers in begun.values() for channel in numbers}
        actions: list[Action] = []
        for channel in sorted(channels):
            actions += self._take_over_channel(
                configuration, channel, begun, still_open, hold, ran, now_ns
            )
        for rank, operations in ran.items():
            self._count(rank, "held", max(operations, 0))
        self._touch(ports_of(hold.circuits))
        return actions

    def _take_over_channel(
        self,
        configuration: Configuration,
        channel: str,
        begun: Mapping[int, Mapping[str, int]],
        still_open: Mapping[int, frozenset[OperationKey]],
        hold: _Hold,
        ran: Counter[int],
        now_ns: int,
        over: int | None = None,
    ) -> list[Action]:
        """Make operations of what members have begun on a channel without asking.

        ``over``: members have presented themselves, and up to this number it is part of
        a former process of one. What they have asked since then they have not begun.
        """
        last = {
            rank: max(
                numbers.get(channel, -1), self._last_of(rank, channel) if over is None else -1
            )
            for rank, numbers in begun.items()
        }
        for rank, number in last.items():
            self._note_last(rank, channel, number)
        least, most = max(min(last.values()), -1 if over is None else over), max(last.values())
        numbers = {
            # Nobody honest is further ahead of its peers.
            *range(max(least, most - OPEN_OPERATIONS) + 1, most + 1),
            *(number for keys in still_open.values() for name, number in keys if name == channel),
            # Questions of members that did not hold it any more.
            *self._by_channel.get(channel, ()),
        }
        actions: list[Action] = []
        for number in sorted(numbers):
            actions += self._take_over(
                hold,
                configuration,
                (channel, number),
                {rank for rank in begun if number <= last[rank]},
                {rank for rank, keys in still_open.items() if (channel, number) in keys},
                ran,
                now_ns,
            )
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
        if operation is not None and (
            operation.granted or operation.configuration != configuration
        ):
            return []
        actions: list[Action] = []
        tombstone = self._tombstones.get(key)
        if tombstone is not None:
            for rank in sorted(begun & tombstone.untold):
                self._told(key, rank)
                if rank in still_open:
                    actions.append(self._refuse(rank, None, tombstone.message, tombstone.reason))
            return actions
        # A rank that died is taken to have begun: its peers may be exchanging with it.
        lost = {
            **hold.lost,
            **{rank: self._gone[rank] for rank in configuration.members if rank in self._gone},
        }
        if operation is not None and not lost.keys().isdisjoint(operation.asked):
            # It came back, and asks for what its last life was part of.
            message = f"{_name(operation)} is under way since before rank %d came back"
            for rank in sorted(lost.keys() & operation.asked.keys()):
                request = operation.asked.pop(rank).request
                self._expect(configuration, rank, -1)
                actions.append(self._refuse(rank, request, message % rank, "ended"))
            if not operation.asked:
                self._forget(operation)
                operation = None
        begun = (begun - (operation.asked.keys() if operation else set())) | lost.keys()
        under_way = begun >= set(configuration.members)
        if under_way and not still_open:
            return actions
        known = begun | (operation.asked.keys() if operation else set())
        for rank in configuration.members:
            if rank not in known and self._last_of(rank, key[0]) >= key[1]:
                # Its question was refused, by this controller or the one before.
                message = _passed(rank, configuration, key)
                if operation is not None:
                    actions += self._fail(operation, message, "ended")
                return [
                    *actions,
                    *(self._refuse(peer, None, message, "ended") for peer in sorted(still_open)),
                ]
        operation = self._operation(key, configuration)
        for rank in sorted(begun):
            self._stand(operation, rank, _Asked(None, now_ns, False, True))
            if rank not in still_open:
                operation.released.add(rank)
            elif not under_way:
                ran[rank] -= 1
                self._count(rank, "requests")
        who = min(lost, default=None)
        message = "" if who is None else f"rank {who} {lost[who]} during {_name(operation)}"
        if not under_way:
            if message:
                return [*actions, *self._fail(operation, message, "lost")]
            if not self.lost_ports.keys().isdisjoint(operation.ports):
                return [*actions, *self._fail(operation, self._without_port(operation), "port")]
            self._enqueue(operation)
            return actions
        self._stands_no_more(operation)
        operation.granted = True
        if not message and hold.lost_port is not None:
            message = f"{hold.lost_port} during {_name(operation)}"
        if message and not hold.told_of_loss:
            actions += self._tell(operation, message, "lost" if lost else "port")
        operation.told_of_loss = bool(message)
        self._lease(operation)
        self._end_when_released(operation)
        return actions

    def _recover(self, now_ns: int) -> list[Action]:
        """All who are left have presented: go on as if all leases had been recalled."""
        self.recovering = False
        # Who is new has begun nothing of what its last life was part of.
        lost = {
            rank: "is another process since the controller was restarted"
            for rank in self._present
            if rank not in self._returning
        }
        channels: dict[str, dict[int, Configuration]] = {}
        for rank, presentation in self._presented.items():
            for channel, (configuration, _) in presentation.begun.items():
                if rank in configuration.members and configuration.members[-1] < self.ranks:
                    channels.setdefault(channel, {})[rank] = configuration
        actions: list[Action] = []
        for channel in sorted(channels):
            needs = channels[channel]
            configuration = needs[min(needs)]
            members = set(configuration.members)
            presented = {
                rank: item
                for rank, item in self._presented.items()
                if rank in members
                and rank not in lost
                and needs.get(rank, configuration) == configuration
            }
            if not presented:
                continue
            dark = [item for item in self.layout.circuits(configuration) if item not in self.lit]
            hold = _Hold(0, self.layout.circuits(configuration), set())
            hold.lost = {rank: reason for rank, reason in lost.items() if rank in members}
            if dark:
                hold.lost_port = f"the circuit {dark[0].right} - {dark[0].left} is dark"
            actions += self._take_over_channel(
                configuration,
                channel,
                {
                    rank: {channel: item.begun[channel][1]} if channel in item.begun else {}
                    for rank, item in presented.items()
                },
                {
                    rank: frozenset(
                        key for key in item.open if (rank, key) not in self._ended_early
                    )
                    for rank, item in presented.items()
                },
                hold,
                Counter(),
                now_ns,
                max((item.over.get(channel, -1) for item in presented.values()), default=-1),
            )
        self._presented.clear()
        self._ended_early.clear()
        self._returning.clear()
        self._stirred.update(self._listeners)
        return [*actions, *self._advance(now_ns)]

    # Hints

    def _take_hint(self, rank: int, configuration: Configuration) -> bool:
        hint = self._take_back_hint(rank)
        mispredicted = hint is not None and hint.configuration != configuration
        self._count(rank, "mispredictions", int(mispredicted))
        return mispredicted

    def _take_back_hint(self, rank: int) -> _Hint | None:
        hint = self._hints.pop(rank, None)
        if hint is not None:
            expected = self._expected[hint.configuration]
            expected.hints.remove(rank)
            expected.unserved -= not hint.served
            self._expect(hint.configuration, rank, -1)
        return hint

    def _expect(self, configuration: Configuration, rank: int, change: int) -> None:
        """A rank expects a configuration for one reason more, or less."""
        expected = self._expected.get(configuration)
        if expected is None:
            expected = self._expected[configuration] = _Expected()
        ranks = expected.ranks
        count = ranks.get(rank, 0) + change
        if count:
            ranks[rank] = count
        else:
            del ranks[rank]
            if not ranks:
                del self._expected[configuration]
        ready = expected.unserved > 0 and len(ranks) == len(configuration.members)
        if ready and expected.ready is None:
            expected.ready = self._turn()
            for port in ports_of(self.layout.circuits(configuration)):
                self._ready.setdefault(port, {})[configuration] = None
        elif not ready:
            self._not_ready(configuration, expected)
        if ready:
            self._touched_hints[configuration] = None

    def _not_ready(self, configuration: Configuration, expected: _Expected) -> None:
        if expected.ready is not None:
            expected.ready = None
            for port in ports_of(self.layout.circuits(configuration)):
                _discard(self._ready, port, configuration)

    # Going on

    def _advance(self, now_ns: int) -> list[Action]:
        """Grant and switch whatever can be: queued operations in order, then hints."""
        if self.recovering:
            return []
        actions = self._find() if self._stirred else []
        touched = self._touched
        while touched:
            order = heapq.heappop(touched)
            while touched and touched[0] == order:
                heapq.heappop(touched)
            operation = self._queue.get(order)
            if operation is not None and self._is_first(operation):
                actions += self._serve(operation, now_ns)
        return actions + self._speculate() if self._touched_hints else actions

    def _is_first(self, operation: _Operation) -> bool:
        """Whether nobody who came before waits for a port of the operation."""
        order, waiting = operation.order, self._waiting
        return all(next(iter(waiting[port])) == order for port in operation.ports)

    def _find(self) -> list[Action]:
        """Tell who listens of the first sender that stands before its channels."""
        stirred = [key for key in self._stirred if key in self._listeners]
        self._stirred.clear()
        actions: list[Action] = []
        for rank, request in sorted(stirred, key=lambda key: self._listeners[key].serial):
            listener = self._listeners[rank, request]
            standing = [
                (operation.serial, operation.key, source)
                for channel in listener.channels
                for operation in self._by_channel.get(channel, {}).values()
                if (source := self._stands_before(operation, rank, listener)) is not None
            ]
            if standing:
                _, (channel, number), source = min(standing)
                # A later one may be known first, where the earlier began under a lease.
                number = min(key[1] for _, key, _ in standing if key[0] == channel)
                self._drop_listener(rank, request)
                self._hear(rank, request)
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
        configuration = operation.configuration
        operation.commands += self._take_ahead(configuration)
        self._stands_no_more(operation)
        operation.granted = True
        hold = self._hold(operation)
        if hold is None:
            self._lease(operation)
            actions = self._grant_all(operation, None, now_ns)
            self._end_when_released(operation)
            return actions
        self._forget(operation)
        actions = self._grant_all(operation, hold, now_ns)
        # Who asked for another operation on these circuits holds them now, and its
        # peers will not ask any more.
        for other in list(self._by_configuration.get(configuration, {}).values()):
            if not other.granted and other.order is None:
                self._forget(other)
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

    # Circuits

    def _light(self, circuit: Circuit) -> None:
        for port in circuit.ports:
            self.active[port] = circuit
        self.lit.add(circuit)

    def _is_coming_up(self, circuit: Circuit) -> bool:
        return self.moving.get(circuit.ports[0]) == circuit

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
            self._drop(disconnect)
            self.moving.update({port: circuit for circuit in connect for port in circuit.ports})
            action = SwitchAction(self._next_command, rail, connect, disconnect)
            self._commands[action.command] = action
            self._next_command += 1
            self.counters["reconfigurations"] += 1
            self.counters["circuits_changed"] += len(connect)
            actions.append(action)
        return actions

    def _drop(self, circuits: Iterable[Circuit]) -> None:
        for circuit in circuits:
            self.lit.remove(circuit)
            for port in circuit.ports:
                del self.active[port]
        self._forget_ahead(circuits)

    def _darken(self, circuit: Circuit, port: Port) -> list[Action]:
        """A circuit lost a port: its leases end, and those on it are told."""
        message = self._lost_port(port)
        self._drop([circuit])
        actions: list[Action] = []
        for key in sorted(self.leases.pop(circuit, ())):
            operation = self._operations[key]
            actions += self._tell(operation, f"{message} during {_name(operation)}", "port")
        for configuration in sorted(self.held.pop(circuit, ()), key=_by_name):
            self.holds[configuration].lost_port = message
            actions += self._recall(configuration, message)
        self._touch(circuit.ports)
        return actions

    def _take_ahead(self, configuration: Configuration) -> int:
        """How many commands were made ahead for a configuration; they are used now."""
        commands = self._ahead.pop(configuration, 0)
        if commands:
            for circuit in self.layout.circuits(configuration):
                _discard(self._ahead_on, circuit, configuration)
        return commands

    def _forget_ahead(self, dropped: Iterable[Circuit]) -> None:
        for circuit in dropped:
            for configuration in list(self._ahead_on.get(circuit, ())):
                self.counters["wasted"] += self._take_ahead(configuration)

    def _speculate(self) -> list[Action]:
        """Switch for hinted configurations that all members expect, where nobody waits
        for the ports.
        """
        turns = {
            expected.ready: configuration
            for configuration in self._touched_hints
            if (expected := self._expected.get(configuration)) is not None
            and expected.ready is not None
        }
        self._touched_hints.clear()
        actions: list[Action] = []
        for turn in sorted(turns):
            configuration = turns[turn]
            circuits = self.layout.circuits(configuration)
            if not self.lost_ports.keys().isdisjoint(ports_of(circuits)):
                continue
            missing = [circuit for circuit in circuits if circuit not in self.lit]
            to_start = [circuit for circuit in missing if not self._is_coming_up(circuit)]
            if to_start and not self._waiting.keys().isdisjoint(ports_of(tuple(to_start))):
                continue
            if to_start and not self._can_move(to_start):
                actions += self._recall_from(to_start, configuration)
                continue
            expected = self._expected[configuration]
            for rank in expected.hints:
                self._hints[rank].served = True
            expected.unserved = 0
            self._not_ready(configuration, expected)
            switches = self._switch(to_start)
            if switches:
                self.counters["speculative"] += len(switches)
                self._ahead[configuration] += len(switches)
                for circuit in circuits:
                    self._ahead_on.setdefault(circuit, {})[configuration] = None
            actions += switches
        return actions


def _complete(report: Report, rank: int, hold: _Hold) -> Report:
    """A member's report with what was under way to it, or followed it.

    A granted operation that it does not name begins as soon as the grant is there, and
    its end is told.
    """
    late = {key for key in hold.granted.get(rank, ()) if report.begun.get(key[0], -1) < key[1]}
    released = {key for member, key in hold.released if member == rank}
    if not late and not released:
        return report
    return replace(
        report,
        begun={**report.begun, **dict(sorted(late))},
        open=(report.open | late) - released,
    )


def _answers(action: Action, rank: int, request: int) -> bool:
    return isinstance(action, RefuseAction) and (action.rank, action.request) == (rank, request)


def _involved(rank: int, listener: _Listener) -> set[int]:
    return {rank, *(source for source, _ in listener.channels.values())}


def _discard(index: dict[_K, dict[_V, Any]], key: _K, value: _V) -> None:
    """Take one entry out of an index, and the entry's row once it is empty."""
    row = index.get(key)
    if row is not None:
        row.pop(value, None)
        if not row:
            del index[key]


def _by_name(configuration: Configuration) -> str:
    return configuration.name


def _name(operation: _Operation) -> str:
    return _named(operation.configuration, operation.key)


def _named(configuration: Configuration, key: OperationKey) -> str:
    return f"{configuration.name} (operation {key[1]} of {key[0]})"


def _passed(rank: int, configuration: Configuration, key: OperationKey) -> str:
    return f"rank {rank} has gone on without {_named(configuration, key)}"
