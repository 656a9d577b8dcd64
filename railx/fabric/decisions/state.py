"""The state of the controller's core, its actions, helpers, its account as values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from railx.fabric.circuits import Circuit, Configuration, Layout, Port, ports_of
from railx.fabric.holdings import OperationKey, Presentation, Report


@dataclass(slots=True)
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


@dataclass(slots=True)
class RecallAction:
    """Ask ``rank`` to give back a held lease; it answers with ``recalled``.

    ``reason`` is what befell a member or a port, for those that have an operation under
    way.
    """

    rank: int
    configuration: Configuration
    hold: int
    reason: str | None = None


@dataclass(slots=True)
class RefuseAction:
    """Tell ``rank`` that the operation cannot go on.

    ``request`` is None where it was already granted. ``reason`` is one word of the
    message, to count by.
    """

    rank: int
    request: int | None
    message: str
    reason: str = "refused"


@dataclass(slots=True)
class SwitchAction:
    """Tell the switch of ``rail`` to drop ``disconnect`` and bring up ``connect``.

    It reports with ``switched(command)``, or with ``switch_failed(command, reason)``.
    """

    command: int
    rail: int
    connect: tuple[Circuit, ...]
    disconnect: tuple[Circuit, ...]


Action = GrantAction | RecallAction | RefuseAction | SwitchAction


#: Operations that a rank may stand before or have under way.
OPEN_OPERATIONS = 4096
#: Operations remembered that a rank gave up before its question came.
GIVEN_UP = 256
#: Channels of a rank whose last operation is remembered; then the one that was used
#: longest ago is forgotten.
CHANNELS = 65536
#: Failed operations whose members are remembered that have not come to them yet.
TOMBSTONES = 4096
#: What is said of a rank that left in order.
ORDERLY = "has left"

_K = TypeVar("_K")
_V = TypeVar("_V")


class Question(NamedTuple):
    """A rank asks for the circuits of an operation."""

    rank: int
    request: int
    key: OperationKey
    configuration: Configuration


@dataclass(slots=True)
class Asked:
    """One member's question; without ``request`` it has begun under a held lease."""

    request: int | None
    asked_ns: int
    mispredicted: bool
    can_hold: bool


@dataclass(slots=True, eq=False)
class TrackedOperation:
    """``order``: its place in the queue, once all asked; ``serial`` orders all."""

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


@dataclass(eq=False)
class State:
    """The state of all rails, of the ranks and of what they have asked for."""

    layout: Layout
    ranks: int
    #: Whether ranks have to present what they have begun.
    recovering: bool = False
    #: Circuits that carry light, by port, and as a set.
    active: dict[Port, Circuit] = field(default_factory=dict)
    lit: set[Circuit] = field(default_factory=set)
    #: Circuits that are coming up, by port; those of them that lost a port on the way.
    moving: dict[Port, Circuit] = field(default_factory=dict)
    spoiled: set[Circuit] = field(default_factory=set)
    #: Ports that are out of order, and why.
    lost_ports: dict[Port, str] = field(default_factory=dict)
    #: Which granted operations use a circuit.
    leases: dict[Circuit, set[OperationKey]] = field(default_factory=dict)
    #: Leases that stay with their members, which of them keep a circuit up, and those
    #: that a rank shares.
    holds: dict[Configuration, Hold] = field(default_factory=dict)
    holds_by_circuit: dict[Circuit, set[Configuration]] = field(default_factory=dict)
    holds_of: dict[int, dict[Configuration, None]] = field(default_factory=dict)
    #: Operations that are not over, and those of a channel, configuration, member.
    operations: dict[OperationKey, TrackedOperation] = field(default_factory=dict)
    by_channel: dict[str, dict[int, TrackedOperation]] = field(default_factory=dict)
    by_configuration: dict[Configuration, dict[OperationKey, TrackedOperation]] = field(
        default_factory=dict
    )
    by_member: dict[int, dict[OperationKey, TrackedOperation]] = field(default_factory=dict)
    #: Operations that all members asked for, by order, and those of each port.
    queue: dict[int, TrackedOperation] = field(default_factory=dict)
    waiting: dict[Port, dict[int, TrackedOperation]] = field(default_factory=dict)
    #: The last operation of each rank and channel, the channel used last at the end.
    last: dict[int, dict[str, int]] = field(default_factory=dict)
    #: What ranks gave up before their question came, the newest at the end.
    given_up: dict[int, dict[OperationKey, None]] = field(default_factory=dict)
    tombstones: dict[OperationKey, Tombstone] = field(default_factory=dict)
    #: Hints by rank, who expects a configuration, and what all expect at a port.
    hints: dict[int, Hint] = field(default_factory=dict)
    expected: dict[Configuration, Expected] = field(default_factory=dict)
    ready: dict[Port, dict[Configuration, None]] = field(default_factory=dict)
    #: Commands made ahead for a configuration, and the circuits that they brought up.
    ahead: Counter[Configuration] = field(default_factory=Counter)
    ahead_on: dict[Circuit, dict[Configuration, None]] = field(default_factory=dict)
    #: What has to be looked at again: orders of the queue, and hinted configurations.
    touched: list[int] = field(default_factory=list)
    touched_hints: dict[Configuration, None] = field(default_factory=dict)
    #: Processes of the ranks that are registered, of those that were, and what befell
    #: ranks that are gone.
    registered: dict[int, int | None] = field(default_factory=dict)
    former: dict[int, int | None] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)
    #: After a restart: who came back, what they presented, and ends that were told
    #: while others had not presented yet.
    returning: set[int] = field(default_factory=set)
    presented: dict[int, Presentation] = field(default_factory=dict)
    ended_early: set[tuple[int, OperationKey]] = field(default_factory=set)
    #: Number of the last change on each rail (numbers are the controller's, so they
    #: also order changes between rails).
    generation: Counter[int] = field(default_factory=Counter)
    changes: int = 0
    commands: dict[int, SwitchAction] = field(default_factory=dict)
    next_command: int = 0
    next_hold: int = 0
    serial: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    rank_counters: defaultdict[int, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    refusals: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def awaited(self) -> frozenset[int]:
        """The ranks that have not presented what they have begun."""
        if not self.recovering:
            return frozenset()
        return frozenset(range(self.ranks)) - self.presented.keys() - self.gone.keys()


def light(core: State, circuit: Circuit) -> None:
    for port in circuit.ports:
        core.active[port] = circuit
    core.lit.add(circuit)


def turn(core: State) -> int:
    """The next of the numbers that say what came first."""
    core.serial += 1
    return core.serial


def add_count(core: State, rank: int, name: str, amount: int = 1) -> None:
    core.counters[name] += amount
    core.rank_counters[rank][name] += amount


def last_of(core: State, rank: int, channel: str) -> int:
    numbers = core.last.get(rank)
    return -1 if numbers is None else numbers.get(channel, -1)


def note_last(core: State, rank: int, channel: str, number: int) -> None:
    numbers = core.last.setdefault(rank, {})
    numbers[channel] = max(number, numbers.pop(channel, -1))
    if len(numbers) > CHANNELS:
        del numbers[next(iter(numbers))]


def discard(index: dict[_K, dict[_V, Any]] | dict[_K, set[_V]], key: _K, value: _V) -> None:
    """Take one entry out of an index, and the entry's row once it is empty."""
    row = index.get(key)
    if row is not None:
        if isinstance(row, set):
            row.discard(value)
        else:
            row.pop(value, None)
        if not row:
            del index[key]


by_name = attrgetter("name")


def name_of(operation: TrackedOperation) -> str:
    return named(operation.configuration, operation.key)


def named(configuration: Configuration, key: OperationKey) -> str:
    return f"{configuration.name} (operation {key[1]} of {key[0]})"


def passed(rank: int, configuration: Configuration, key: OperationKey) -> str:
    return f"rank {rank} has gone on without {named(configuration, key)}"


class _Cut:
    """Takes the first entries of tables and counts what it leaves out."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.left_out: dict[str, int] = {}

    def __call__(self, table: str, entries: Collection[Any]) -> list[Any]:
        """The first entries; the others are counted for their ``table``."""
        if self._most is None or len(entries) <= self._most:
            return list(entries)
        self.left_out[table] = self.left_out.get(table, 0) + len(entries) - self._most
        return list(islice(entries, self._most))

    def name(self, configuration: Configuration) -> str:
        """A configuration's name with its first members at least."""
        members = configuration.members
        if self._most is None or len(members) <= self._most:
            return configuration.name
        shown = ",".join(map(str, members[: self._most]))
        return f"{configuration.kind} {shown},... ({len(members)} ranks)"


def statistics(core: State, most: int | None = None) -> dict[str, object]:
    """Counters of the whole controller and of each rank; times in nanoseconds.

    ``reconfigurations`` counts switch commands (one for each rail and operation).
    ``speculative`` counts those begun from hints, ``wasted`` the speculative ones
    torn down again before an operation used them. ``held`` counts the operations
    that ran under held leases without asking; it is known once those are given
    back. ``recalls`` counts the questions for them. ``refusals`` counts by a word
    for the reason, ``failures`` what broke: switch commands, ports, ranks.
    """
    cut = _Cut(most)
    names = (
        *("requests", "grants", "hints", "mispredictions", "reconfigurations"),
        *("circuits_changed", "speculative", "wasted", "held", "recalls", "wait_ns", "stall_ns"),
    )
    return {
        **{name: core.counters[name] for name in names},
        "refusals": dict(sorted(core.refusals.items())),
        "failures": {name: core.failures[name] for name in ("switches", "ports", "ranks")},
        "ranks": {
            str(rank): dict(core.rank_counters[rank])
            for rank in cut("ranks", sorted(core.rank_counters))
        },
        "rails": {
            str(rail): {"generation": core.generation[rail], "circuits": circuits}
            for rail, circuits in _on_rails(core, core.lit, cut, "circuits").items()
        },
        "leased_circuits": len(core.leases),
        "held_circuits": len(core.holds_by_circuit),
        "queued": len(core.queue),
        "open": len(core.operations),
        "tombstones": len(core.tombstones),
        "recovering": core.recovering,
        "left_out": cut.left_out,
    }


def snapshot(core: State, most: int | None = None) -> dict[str, Any]:
    """What is going on now, as plain values; for people and for metrics.

    Circuits with the same users share an entry of ``leases``, and name the held
    leases among those by their numbers in ``holds``.
    """
    cut = _Cut(most)
    lit = _on_rails(core, core.lit, cut, "circuits")
    moving = _on_rails(core, set(core.moving.values()), cut, "moving")
    leased: dict[tuple[Any, ...], list[list[int]]] = {}
    for circuit in cut("leases", sorted(core.leases.keys() | core.holds_by_circuit.keys())):
        operations = tuple(sorted(core.leases.get(circuit, ())))
        holds = tuple(
            sorted(core.holds[item].number for item in core.holds_by_circuit.get(circuit, ()))
        )
        leased.setdefault((operations, holds), []).append(list(circuit))
    waiting = [item for item in core.operations.values() if not item.granted and item.order is None]
    ranks = core.registered.keys() | core.former.keys() | core.gone.keys()

    def described(item: TrackedOperation) -> dict[str, Any]:
        return {"configuration": cut.name(item.configuration), "operation": list(item.key)}

    return {
        "recovering": core.recovering,
        "rails": {
            str(rail): {
                "generation": core.generation[rail],
                "circuits": lit.get(rail, []),
                "moving": moving.get(rail, []),
            }
            for rail in sorted(lit.keys() | moving.keys())
        },
        "leases": [
            {
                "circuits": circuits,
                "operations": [list(key) for key in cut("operations of leases", operations)],
                "holds": list(holds),
            }
            for (operations, holds), circuits in leased.items()
        ],
        "holds": [
            {
                "configuration": cut.name(configuration),
                "hold": hold.number,
                "holders": cut("holders", sorted(hold.holders)),
                "recalled": hold.recalled,
            }
            for configuration, hold in cut("holds", core.holds.items())
        ],
        "queue": [
            described(item) | {"since_ns": max(asked.asked_ns for asked in item.asked.values())}
            for item in cut("queue", core.queue.values())
        ],
        "waiting": [
            described(item)
            | {
                "asked": cut("asked", sorted(item.asked)),
                "missing": cut("missing", sorted({*item.configuration.members} - {*item.asked})),
            }
            for item in cut("waiting", waiting)
        ],
        "ranks": {
            str(rank): {
                "present": rank in core.registered,
                "incarnation": core.registered.get(rank, core.former.get(rank)),
                "gone": core.gone.get(rank),
            }
            for rank in cut("ranks", sorted(ranks))
        },
        "lost_ports": [
            {"gpu": port.gpu, "side": port.side, "reason": reason}
            for port, reason in cut("lost_ports", sorted(core.lost_ports.items()))
        ],
        "left_out": cut.left_out,
    }


def _on_rails(
    core: State, circuits: Iterable[Circuit], cut: _Cut, table: str
) -> dict[int, list[list[int]]]:
    """Circuits in order by their rails."""
    rails: dict[int, list[list[int]]] = {}
    ordered = sorted((core.layout.rail(circuit.right), circuit) for circuit in circuits)
    for rail, circuit in cut(table, ordered):
        rails.setdefault(rail, []).append(list(circuit))
    return rails
