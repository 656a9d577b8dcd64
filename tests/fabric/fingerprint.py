"""What tells one state of a world from another, as a number.

States are one where nothing that follows can tell them apart:

* numbers that only count up (commands, times, turns) are left out. Those of leases are
  compared within one configuration only, so that their order there is what counts;
* who came first matters where ports overlap: of the queue and of hinted configurations
  the order of such pairs is kept. Operations of one configuration keep their order;
* doubled and delayed messages have no order.

A world copies what an event changes and nothing else, so each rank and the core
remember their part until they change.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import GrantAction, RecallAction
from tests.fabric.world import Answer, Rank, World

__all__ = ["fingerprint", "parts"]

#: The numbers of leases in a part, in an order that its other content determines.
_Numbers = list[tuple[Configuration, int]]


def fingerprint(world: World) -> int:
    """The number of a world's state."""
    return hash(_state(world, [_core_memo(world), *map(_rank_memo, world.ranks)]))


def parts(world: World) -> tuple[Any, ...]:
    """The state itself, with nothing remembered."""
    return _state(world, [_core_part(world), *map(_rank_part, world.ranks)])


def _state(world: World, found: list[tuple[Any, _Numbers]]) -> tuple[Any, ...]:
    numbers: dict[Configuration, set[int]] = {}
    for _, pairs in found:
        for configuration, number in pairs:
            numbers.setdefault(configuration, set()).add(number)
    place = {
        (configuration, number): index
        for configuration, those in numbers.items()
        for index, number in enumerate(sorted(those))
    }
    return (
        tuple([part for part, _ in found]),
        tuple([tuple([place[pair] for pair in pairs]) for _, pairs in found]),
        tuple(world.faults.values()),
        frozenset(world.light),
        frozenset([item.connect for item in world.commands.values()]),
        frozenset(world.spoiled),
        world.broken_ports,
    )


def _core_memo(world: World) -> tuple[int, _Numbers]:
    if world.core_memo is None:
        part, numbers = _core_part(world)
        world.core_memo = hash(part), numbers
    memo: tuple[int, _Numbers] = world.core_memo
    return memo


def _rank_memo(rank: Rank) -> tuple[int, _Numbers]:
    if rank.memo is None:
        part, numbers = _rank_part(rank)
        rank.memo = hash(part), numbers
    memo: tuple[int, _Numbers] = rank.memo
    return memo


def _message(message: Any) -> tuple[tuple[Any, ...], _Numbers]:
    """A message without its account, and the lease that it is about."""
    if isinstance(message, tuple):
        if message[0] == "recalled":
            _, configuration, report = message
            part = ("recalled", configuration, _frozen(report.begun), report.open)
            return part, [(configuration, report.hold)]
        if message[0] == "present":
            told = message[1]
            return ("present", _frozen(told.begun), told.open, _frozen(told.over)), []
        return message, []
    if isinstance(message, GrantAction):
        held = [] if message.hold is None else [(message.configuration, message.hold)]
        return ("grant", message.request, message.key, not held), held
    if isinstance(message, RecallAction):
        return ("recall", message.configuration), [(message.configuration, message.hold)]
    if isinstance(message, Answer):
        return ("found", message.request, message.found), []
    return ("refuse", message.request), []


def _frozen(mapping: Any) -> frozenset[Any]:
    return frozenset(mapping.items())


def _name(item: tuple[Configuration, Any]) -> str:
    return item[0].name


def _rank_part(rank: Rank) -> tuple[tuple[Any, ...], _Numbers]:
    holdings = rank.holdings
    numbers: _Numbers = []
    up, down, held = [], [], []
    for messages, told in ((rank.up, up), (rank.down, down)):
        for message in messages:  # type: ignore[attr-defined]
            part, those = _message(message)
            told.append(part)
            numbers += those
    stray = [(way, *_message(message)) for way, message in rank.stray]
    if len(stray) > 1:
        stray.sort(key=hash_of)
    for _, _, those in stray:
        numbers += those
    for configuration, item in sorted(holdings._leases.items(), key=_name):
        held.append((configuration, _frozen(item.begun)))
        numbers.append((configuration, item.number))
    back = sorted(holdings._last_given_back.items(), key=_name)
    numbers += back
    part = (
        (rank.alive, rank.known, rank.connected, rank.broken, rank.life, rank.next, rank.hinted),
        frozenset(rank.begun),
        frozenset(rank.over),
        tuple(up),
        tuple(down),
        tuple([(way, part) for way, part, _ in stray]),
        tuple(held),
        tuple([configuration for configuration, _ in back]),
        frozenset(holdings._open),
        frozenset(holdings._to_tell),
        frozenset(holdings._asked),
        frozenset(holdings._given_up),
        frozenset(holdings._refused),
        _frozen(holdings._last),
        _frozen(holdings._over),
        (rank.chosen, rank.heard, rank.listening, rank.asks, rank.early),
    )
    return part, numbers


def hash_of(item: tuple[Any, ...]) -> int:
    """An order of doubled and delayed messages that is none of time."""
    return hash(item[:2])


def _core_part(world: World) -> tuple[tuple[Any, ...], _Numbers]:
    core = world.core
    holds = sorted(core.holds.items(), key=_name)
    part = (
        core.recovering,
        frozenset(core.lit),
        _frozen(core.moving),
        frozenset(core.lost_ports),
        frozenset(core.spoiled),
        frozenset([(circuit, frozenset(keys)) for circuit, keys in core.leases.items()]),
        frozenset(
            [
                (
                    operation.key,
                    operation.configuration,
                    frozenset([(rank, item.request) for rank, item in operation.asked.items()]),
                    frozenset(operation.released),
                    operation.granted,
                    operation.order is None,
                    operation.loss_announced,
                )
                for operation in core.operations.values()
            ]
        ),
        frozenset([tuple(row) for row in core.by_configuration.values() if len(row) > 1]),
        _queue(core),
        tuple(
            [
                (
                    configuration,
                    frozenset(hold.holders),
                    frozenset(
                        [
                            (rank, _frozen(item.begun), item.open)
                            for rank, item in hold.reports.items()
                        ]
                    ),
                    frozenset([(rank, frozenset(keys)) for rank, keys in hold.granted.items()]),
                    frozenset(hold.released),
                    frozenset(hold.lost),
                    hold.recalled,
                    hold.loss_announced,
                    hold.lost_port is None,
                )
                for configuration, hold in holds
            ]
        ),
        frozenset([(rank, hint.configuration, hint.served) for rank, hint in core.hints.items()]),
        _ready(world),
        frozenset([(rank, _frozen(numbers)) for rank, numbers in core.last.items()]),
        frozenset([(key, frozenset(item.untold)) for key, item in core.tombstones.items()]),
        frozenset([(rank, frozenset(keys)) for rank, keys in core.given_up.items()]),
        frozenset(core.ended_early),
        frozenset(core.gone),
        frozenset(core.registered),
        frozenset(core.returning),
        frozenset(
            [
                (rank, _frozen(item.begun), item.open, _frozen(item.over))
                for rank, item in core.presented.items()
            ]
        ),
        _known(world),
    )
    return part, [(configuration, hold.number) for configuration, hold in holds]


def _queue(core: ControllerCore) -> frozenset[Any]:
    if len(core.queue) < 2:
        return frozenset()
    return frozenset(
        [
            (one.key, other.key)
            for one, other in combinations(core.queue.values(), 2)
            if not one.ports.isdisjoint(other.ports)
        ]
    )


def _ready(world: World) -> frozenset[Any]:
    turns = {
        item.ready: (configuration, ports_of(world.layout.circuits(configuration)))
        for configuration, item in world.core.expected.items()
        if item.ready is not None
    }
    ready = [turns[turn] for turn in sorted(turns)]
    pairs = combinations(ready, 2)
    return frozenset(
        [
            *(configuration for configuration, _ in ready),
            *((one, other) for (one, mine), (other, its) in pairs if not mine.isdisjoint(its)),
        ]
    )


def _known(world: World) -> tuple[Any, ...]:
    """Which operations became known first, where that matters."""
    core = world.core
    if not world.listens:
        return ()
    known = sorted(core.operations.values(), key=lambda operation: operation.serial)
    return tuple([operation.key for operation in known])
