"""A rank's side of held leases, as a pure state machine.

A grant may leave the circuits with the members of the operation: until the controller
recalls them, every further operation on them begins and ends without a message.
:class:`Holdings` has the leases of a rank and the operations begun on them. The other
side is :mod:`railx.fabric.core`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from railx.fabric.circuits import Configuration, Layout

#: Channels whose last operation is stored; beyond them the least recently used one is
#: dropped.
CHANNELS = 4096

#: Channel (group, or group with direction) and the number of the operation on it.
OperationKey = tuple[str, int]


@dataclass(slots=True)
class Report:
    """A rank's operations under a held lease, sent when it gives the lease back.

    ``hold`` is the lease's number. ``begun`` has the last operation begun by channel:
    all before it were begun too. ``open`` are those that have not ended; a message
    follows for the end of each. ``operations``: how many began without a question.
    """

    hold: int
    begun: Mapping[str, int] = field(default_factory=dict)
    open: frozenset[OperationKey] = frozenset()
    operations: int = 0


@dataclass(frozen=True)
class Presentation:
    """The operations that a rank has begun, sent to a restarted controller.

    ``begun`` has, by channel, the configuration and the last operation begun: all
    before it were begun too. ``open`` are those that have not ended, held or granted; a
    message follows for the end of each. ``operations``: how many began without a
    question since the leases came. ``over`` has channels with a member that is another
    process now: no member waits for operations up to this number.
    """

    begun: Mapping[str, tuple[Configuration, int]] = field(default_factory=dict)
    open: frozenset[OperationKey] = frozenset()
    operations: int = 0
    over: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Lease:
    number: int
    begun: dict[str, int] = field(default_factory=dict)
    operations: int = 0


class Holdings:
    """The leases that one rank holds, by configuration; not thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._leases: dict[Configuration, _Lease] = {}
        # Operations under way: under a held lease, and those whose end needs a message.
        self._last_given_back: dict[Configuration, int] = {}
        self._open: dict[OperationKey, Configuration] = {}
        self._to_tell: set[OperationKey] = set()
        # Questions that wait for their answer, and those that were given up.
        self._asked: dict[int, tuple[OperationKey, Configuration]] = {}
        self._given_up: dict[int, tuple[OperationKey, Configuration]] = {}
        # The last question of a channel, where it was refused and nothing began since.
        self._refused: dict[str, tuple[int, OperationKey, Configuration]] = {}
        # The last operation of each channel, the channel used last at the end.
        self._last: dict[str, tuple[Configuration, int]] = {}
        # What was begun with a former process of a member, by channel.
        self._over: dict[str, int] = {}

    def holds(self, configuration: Configuration) -> bool:
        """Whether an operation on these circuits may begin without asking."""
        return configuration in self._leases

    def begin(self, key: OperationKey, configuration: Configuration) -> bool:
        """Begin a channel's next operation if its circuits are held; whether it did."""
        lease = self._leases.get(configuration)
        if lease is None:
            return False
        lease.operations += 1
        self._note(lease, key, configuration)
        return True

    def granted(self, key: OperationKey, configuration: Configuration, hold: int | None) -> None:
        """The controller answered the question for an operation, which so has begun.

        ``hold``: the number of the lease that stays, None where it ends with the
        operation.
        """
        lease = self._of(configuration, hold)
        if lease is None:
            self._to_tell.add(key)
            self._remember(key, configuration)
        else:
            self._note(lease, key, configuration)

    def ask(self, request: int, key: OperationKey, configuration: Configuration) -> None:
        """A question goes out; ``answer``, ``refused`` or ``give_up`` follows."""
        self._asked[request] = key, configuration

    def question(self, key: OperationKey) -> int | None:
        """The question for an operation that waits for its answer, or None.

        A grant without a request answers it where it overtook the grant before it.
        """
        return next((request for request, asked in self._asked.items() if asked[0] == key), None)

    def give_up(self, request: int) -> bool:
        """Give up a question; False where its answer has come already."""
        asked = self._asked.pop(request, None)
        if asked is None:
            return False
        self._given_up[request] = asked
        return True

    def given_up(self) -> list[tuple[int, OperationKey, Configuration]]:
        """Questions that the rank will not repeat, for a restarted controller.

        Those given up before their answer came, and the last one of a channel where it
        was refused: peers may still ask for it.
        """
        given_up = [(request, *asked) for request, asked in self._given_up.items()]
        return [*given_up, *self._refused.values()]

    def answer(
        self, request: int, key: OperationKey, configuration: Configuration, hold: int | None
    ) -> Literal["begins", "release", "nothing"]:
        """A grant answered a question; returns the consequence.

        An operation that was given up ends at once, which may need a message
        (``release``). A second answer has no effect.
        """
        if self._asked.pop(request, None) is not None:
            self.granted(key, configuration, hold)
            return "begins"
        if request not in self._given_up:
            return "nothing"
        del self._given_up[request]
        self.granted(key, configuration, hold)
        return "release" if self.end(key) else "nothing"

    def refused(self, request: int) -> None:
        """A question was answered with an error."""
        asked = self._asked.pop(request, None) or self._given_up.pop(request, None)
        if asked is None:
            return
        (channel, number), configuration = asked
        _, last = self._last.get(channel, (None, -1))
        before = self._refused.get(channel)
        if number > max(last, -1 if before is None else before[1][1]):
            self._refused.pop(channel, None)
            self._refused[channel] = request, (channel, number), configuration
            if len(self._refused) > CHANNELS:
                del self._refused[next(iter(self._refused))]

    def granted_late(
        self, key: OperationKey, configuration: Configuration, hold: int | None
    ) -> None:
        """Circuits came for an operation that began under a lease recalled since.

        It may have ended meanwhile.
        """
        lease = self._of(configuration, hold)
        if lease is None:
            return
        lease.begun[key[0]] = max(key[1], lease.begun.get(key[0], -1))
        if key in self._to_tell:
            self._to_tell.remove(key)
            self._open[key] = configuration

    def end(self, key: OperationKey) -> bool:
        """This rank's part has ended; returns whether a message has to follow."""
        if key in self._to_tell:
            self._to_tell.remove(key)
            return True
        self._open.pop(key, None)
        return False

    def recall(self, configuration: Configuration, hold: int | None = None) -> Report | None:
        """Give a lease back; returns the report for the controller.

        ``hold``: only the lease of this number. None where the rank does not hold it:
        then no message follows. A recall that overtook its grant is answered too; the
        grant then comes too late for a lease.
        """
        lease = self._leases.get(configuration)
        if lease is None:
            if hold is None or hold <= self._last_given_back.get(configuration, -1):
                return None
            self._last_given_back[configuration] = hold
            return Report(hold)
        if hold not in (None, lease.number):
            return None
        del self._leases[configuration]
        self._last_given_back[configuration] = lease.number
        open_ = frozenset(key for key, item in self._open.items() if item == configuration)
        for key in open_:
            del self._open[key]
        self._to_tell |= open_
        return Report(lease.number, lease.begun, open_, lease.operations)

    def returned(self, rank: int) -> None:
        """Another process is ``rank`` now: what was begun with the last is over."""
        for channel, (configuration, last) in self._last.items():
            if rank in configuration.members:
                self._over[channel] = last

    def present(self) -> Presentation:
        """Everything for a restarted controller, whose numbers begin anew.

        It gives back all leases. The rank then repeats its questions, and sends those
        that it gave up as given up: peers may have begun the operation without a
        question, and would count as waiting for this rank.
        """
        self._to_tell |= self._open.keys()
        open_ = frozenset(key for key in self._to_tell if key[1] > self._over.get(key[0], -1))
        operations = sum(lease.operations for lease in self._leases.values())
        presentation = Presentation(dict(self._last), open_, operations, dict(self._over))
        self._open.clear()
        self._leases.clear()
        self._last_given_back.clear()
        return presentation

    def in_the_way_of(self, configuration: Configuration) -> list[Configuration]:
        """The held configurations that cannot stay up beside ``configuration``."""
        return [lease for lease in self._leases if self._layout.conflict(lease, configuration)]

    def all(self) -> list[Configuration]:
        """All held configurations."""
        return list(self._leases)

    def _of(self, configuration: Configuration, hold: int | None) -> _Lease | None:
        """The lease of this number; None where it was given back before."""
        if hold is None or hold <= self._last_given_back.get(configuration, -1):
            return None
        return self._leases.setdefault(configuration, _Lease(hold))

    def _note(self, lease: _Lease, key: OperationKey, configuration: Configuration) -> None:
        lease.begun[key[0]] = max(key[1], lease.begun.get(key[0], -1))
        self._open[key] = configuration
        self._remember(key, configuration)

    def _remember(self, key: OperationKey, configuration: Configuration) -> None:
        _, last = self._last.pop(key[0], (None, -1))
        self._last[key[0]] = configuration, max(last, key[1])
        if self._refused:
            self._refused.pop(key[0], None)
        if len(self._last) > CHANNELS:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._over.pop(oldest, None)
