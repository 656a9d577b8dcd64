"""The state of the controller's core, and helpers that every module of it uses.

:class:`ControllerState` has all of it. The other modules of this package derive from
each other and add the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from railx.fabric.actions import SwitchAction
from railx.fabric.circuits import Circuit, Configuration, Layout, Port, ports_of
from railx.fabric.holdings import OperationKey, Presentation, Report

__all__ = [
    "CHANNELS",
    "LISTENERS",
    "OPEN_OPERATIONS",
    "ORDERLY",
    "TOMBSTONES",
    "Asked",
    "ControllerState",
    "Expected",
    "Hint",
    "Hold",
    "Listener",
    "Tombstone",
    "TrackedOperation",
    "by_name",
    "by_rail",
    "discard",
    "name_of",
    "named",
    "passed",
    "ports_in_order",
    "wired",
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
class Asked:
    """One member's question; without ``request`` it has begun under a held lease."""

    request: int | None
    asked_ns: int
    mispredicted: bool
    can_hold: bool


@dataclass(slots=True, eq=False)
class TrackedOperation:
    """``order`` is its place in the queue, once all members have asked.

    ``serial`` says which became known first.
    """

    key: OperationKey
    configuration: Configuration
    circuits: tuple[Circuit, ...]
    ports: frozenset[Port]
    serial: int = 0
    asked: dict[int, Asked] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    granted: bool = False
    order: int | None = None
    commands: int = 0
    loss_announced: bool = False
    stall_since_ns: int | None = None


@dataclass(slots=True, eq=False)
class Hold:
    """A held lease: who has not given it back, and what the others reported.

    ``granted`` are the operations whose grant may cross a member's report: that has to
    name them or their grant came too late. ``released`` are operations whose end was
    told after the report, or overtook it. ``lost`` are members that died, and why.
    ``channels`` are those of all that was granted on it, whoever has ended it since.
    """

    number: int
    circuits: tuple[Circuit, ...]
    holders: set[int]
    reports: dict[int, Report] = field(default_factory=dict)
    granted: dict[int, set[OperationKey]] = field(default_factory=dict)
    released: set[tuple[int, OperationKey]] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    recalled: bool = False
    loss_announced: bool = False
    lost_port: str | None = None
    channels: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Hint:
    configuration: Configuration
    served: bool = False


@dataclass(frozen=True, slots=True)
class Listener:
    """A rank that waits for one of several senders, by their channel.

    A channel has its sender and the number of the first operation that may be meant.
    """

    serial: int
    channels: Mapping[str, tuple[int, int]]
    configurations: frozenset[Configuration]


@dataclass(slots=True)
class Tombstone:
    """An operation that failed, and the members who have not come to it yet."""

    message: str
    reason: str
    untold: set[int]


@dataclass(slots=True)
class Expected:
    """Who expects a configuration: hints it, or stands before what needs it.

    ``hints`` has those who hint it, ``unserved`` how many of them wait for a switch,
    ``ready`` the turn of the configuration once all members expect it.
    """

    ranks: dict[int, int] = field(default_factory=dict)
    hints: set[int] = field(default_factory=set)
    unserved: int = 0
    ready: int | None = None


@lru_cache(maxsize=4096)
def ports_in_order(circuits: tuple[Circuit, ...]) -> tuple[Port, ...]:
    """The ports of circuits, in their order."""
    return tuple(port for circuit in circuits for port in circuit.ports)


@lru_cache(maxsize=4096)
def by_rail(
    layout: Layout, circuits: tuple[Circuit, ...]
) -> tuple[tuple[int, tuple[Circuit, ...]], ...]:
    """The circuits of each rail, rails in order."""
    return tuple(layout.rails(circuits).items())


@lru_cache(maxsize=4096)
def wired(
    layout: Layout, configuration: Configuration
) -> tuple[tuple[Circuit, ...], frozenset[Port]]:
    """The circuits of a configuration, and their ports."""
    circuits = layout.circuits(configuration)
    return circuits, ports_of(circuits)


class ControllerState:
    """Everything that the core remembers."""

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
        self.holds: dict[Configuration, Hold] = {}
        self.holds_by_circuit: dict[Circuit, set[Configuration]] = {}
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
        self._operations: dict[OperationKey, TrackedOperation] = {}
        self._by_channel: dict[str, dict[int, TrackedOperation]] = {}
        self._by_configuration: dict[Configuration, dict[OperationKey, TrackedOperation]] = {}
        self._by_member: dict[int, dict[OperationKey, TrackedOperation]] = {}
        self._holds_of: dict[int, dict[Configuration, None]] = {}
        # Operations that all members asked for, by order, and those of each port.
        self._queue: dict[int, TrackedOperation] = {}
        self._waiting: dict[Port, dict[int, TrackedOperation]] = {}
        self._hints: dict[int, Hint] = {}
        self._expected: dict[Configuration, Expected] = {}
        self._ready: dict[Port, dict[Configuration, None]] = {}
        # What has to be looked at again: orders of the queue, turns of hinted
        # configurations, and who listens.
        self._touched: list[int] = []
        self._touched_hints: dict[Configuration, None] = {}
        self._stirred: set[tuple[int, int]] = set()
        # Who listens, by rank and request.
        self._listeners: dict[tuple[int, int], Listener] = {}
        self._listening: dict[str, dict[tuple[int, int], None]] = {}
        self._listeners_of: dict[int, dict[tuple[int, int], None]] = {}
        self._listened: Counter[Configuration] = Counter()
        self._heard: dict[int, dict[int, None]] = {}
        self._ahead: Counter[Configuration] = Counter()
        self._ahead_on: dict[Circuit, dict[Configuration, None]] = {}
        # The last operation of each rank and channel, the channel used last at the end.
        self._last: dict[int, dict[str, int]] = {}
        self._tombstones: dict[OperationKey, Tombstone] = {}
        # What ranks gave up before their question came, the newest at the end.
        self._given_up: dict[int, dict[OperationKey, None]] = {}
        self._gone: dict[int, str] = {}
        self._present: dict[int, int | None] = {}
        self._former: dict[int, int | None] = {}
        self._returning: set[int] = set()
        self._presented: dict[int, Presentation] = {}
        # Ends told while others had not presented yet.
        self._ended_early: set[tuple[int, OperationKey]] = set()

    def gone(self, rank: int) -> str | None:
        """What befell a rank, or None."""
        return self._gone.get(rank)

    def _light(self, circuit: Circuit) -> None:
        for port in circuit.ports:
            self.active[port] = circuit
        self.lit.add(circuit)

    def _turn(self) -> int:
        """The next of the numbers that say what came first."""
        self._serial += 1
        return self._serial

    def _count(self, rank: int, name: str, amount: int = 1) -> None:
        self.counters[name] += amount
        self._counters_of(rank)[name] += amount

    def _counters_of(self, rank: int) -> Counter[str]:
        counters = self.rank_counters.get(rank)
        if counters is None:
            counters = self.rank_counters[rank] = Counter()
        return counters

    def _last_of(self, rank: int, channel: str) -> int:
        numbers = self._last.get(rank)
        return -1 if numbers is None else numbers.get(channel, -1)

    def _note_last(self, rank: int, channel: str, number: int) -> None:
        numbers = self._last.setdefault(rank, {})
        numbers[channel] = max(number, numbers.pop(channel, -1))
        if len(numbers) > CHANNELS:
            del numbers[next(iter(numbers))]


def discard(index: dict[_K, dict[_V, Any]], key: _K, value: _V) -> None:
    """Take one entry out of an index, and the entry's row once it is empty."""
    row = index.get(key)
    if row is not None:
        row.pop(value, None)
        if not row:
            del index[key]


def by_name(configuration: Configuration) -> str:
    return configuration.name


def name_of(operation: TrackedOperation) -> str:
    return named(operation.configuration, operation.key)


def named(configuration: Configuration, key: OperationKey) -> str:
    return f"{configuration.name} (operation {key[1]} of {key[0]})"


def passed(rank: int, configuration: Configuration, key: OperationKey) -> str:
    return f"rank {rank} has gone on without {named(configuration, key)}"
