"""The search through the states of small jobs: it goes through all of them, leaves out
nothing that matters, and copies worlds whole. What holds in them is in ``test_safety``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.core import ControllerCore
from railx.fabric.decisions import granting
from railx.fabric.decisions.state import Action
from railx.fabric.serving import server
from tests.fabric import explore as exploration
from tests.fabric.copies import SHARED
from tests.fabric.explore import SCENARIOS, explore, random_scenario
from tests.fabric.fingerprint import fingerprint, parts
from tests.fabric.world import FAULTS, Scenario, Violation, World


def test_two_groups_that_share_a_port_are_explored_whole() -> None:
    found = explore(SCENARIOS["shared port"], 10_000)
    assert found.complete
    # A change of these numbers is a change of what can happen.
    assert (found.states, found.ends) == (870, 2)
    # Bounded waiting: nine questions, and no run is longer than this.
    assert found.longest == 75


def test_few_faults_come_first_and_every_scenario_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exploration, "_FIRST", 100)
    monkeypatch.setattr(exploration, "_SHARE", 4)
    assert exploration.main(["--states", "7000", "--only", "any source"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last.startswith("7000 states, nothing broken; 2 of 22 scenarios to their end")
    states = {line[:24].strip(): int(line[24:33]) for line in lines}
    assert states.pop("any source") == 774
    assert states.pop("any source, two ahead") == 1619
    # A quarter of all for the one without faults that is larger, the least for others.
    assert states.pop("any source, hints") == 1750
    twice = {states[name] for name in states if ", 2 " in name}
    assert min(states.values()) == 100
    assert twice == {100}


def test_a_receiver_from_any_source_is_explored_whole() -> None:
    found = explore(SCENARIOS["any source"], 10_000)
    assert found.complete
    assert (found.states, found.ends) == (774, 5)


def small(job: str, fault: str | None = None, operations: int = 2) -> Scenario:
    """The beginning of a job with one fault, small enough for all of its states."""
    whole = SCENARIOS[f"{job}, 1 {fault}" if fault else job]
    listens = tuple((rank, operations) for rank, _ in whole.listens)
    return replace(
        whole, operations=whole.operations[:operations], ports=whole.ports[:1], listens=listens
    )


@pytest.mark.parametrize("fault", [None, *FAULTS])
@pytest.mark.parametrize("job", ["shared port", "any source"])
def test_what_the_reduction_leaves_out_ends_nowhere_else(job: str, fault: str | None) -> None:
    fewer = explore(small(job, fault), 20_000)
    every = explore(small(job, fault), 20_000, reduced=False)
    assert fewer.complete
    assert every.complete
    assert fewer.final == every.final
    assert fewer.longest <= every.longest
    assert fewer.states < every.states


def test_the_reduction_is_large_where_many_ranks_work_by_themselves() -> None:
    fewer = explore(small("dp2 pp2", operations=4), 20_000)
    every = explore(small("dp2 pp2", operations=4), 20_000, reduced=False)
    assert fewer.final == every.final
    assert 3 * fewer.states < every.states


def _moves_what_is_leased(core: Any, circuits: list[Circuit]) -> bool:
    return not any(port in core.moving for circuit in circuits for port in circuit.ports)


def _moves_what_moves(core: Any, circuits: list[Circuit]) -> bool:
    here = [core.active.get(port) for circuit in circuits for port in circuit.ports]
    return not any(circuit in core.leases or circuit in core.holds_by_circuit for circuit in here)


def _takes_spoiled_for_lit(core: Any, command: int, now_ns: int) -> Any:
    core.spoiled.clear()
    return _SWITCHED(core, command, now_ns)


def _grants_in_the_dark(core: Any, operation: Any, now_ns: int) -> Any:
    actions = _SERVE(core, operation, now_ns)
    return (
        actions if operation.granted or not core.moving else granting.grant(core, operation, now_ns)
    )


def _lets_newcomers_pass(core: Any, operation: Any) -> bool:
    return operation.order == core.serial or _IS_FIRST(core, operation)


_SWITCHED, _SERVE, _IS_FIRST = granting.switched, granting.serve, granting.is_first
#: What is broken, and in which scenario that shows.
MISTAKES: dict[str, tuple[Scenario, Any, str, Any]] = {
    "moves what is leased": (small("shared port"), granting, "can_move", _moves_what_is_leased),
    "moves what moves": (small("shared port", "die"), granting, "can_move", _moves_what_moves),
    "takes spoiled for lit": (
        *(small("shared port", "port"), ControllerCore, "switched"),
        _takes_spoiled_for_lit,
    ),
    "grants in the dark": (small("shared port"), granting, "serve", _grants_in_the_dark),
    "crossing grant lost": (
        *(small("shared port"), granting, "complete"),
        lambda item, *_: item,
    ),
    # What is queued and granted in one event.
    "lets newcomers pass": (
        *(SCENARIOS["shared port, two ahead"], granting, "is_first"),
        _lets_newcomers_pass,
    ),
    "late receiver not told": (
        *(SCENARIOS["any source, 1 port"], server, "failed_before"),
        lambda *_: None,
    ),
}


@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_reduction_hides_no_mistake(
    mistake: str, reduced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, where, name, broken = MISTAKES[mistake]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(Violation):
        explore(scenario, 20_000, reduced=reduced)


def test_a_copied_world_is_equal_and_shares_nothing_that_changes() -> None:
    """Along random runs; what a later change of the core adds has to be copied too."""
    draw = Random(3)
    seen = set()
    for _ in range(6):
        world, found = World(random_scenario(draw)), exploration.Exploration(SCENARIOS["dp2 pp2"])
        while events := exploration._all_events(world, found):
            world.take(draw.choice(events))
            if draw.random() < 0.6:
                continue
            before, copy = parts(world), world.copy()
            assert parts(copy) == before
            assert vars(copy.core).keys() == vars(world.core).keys()
            # What the copy does leaves the other as it was.
            if events := copy.events():
                copy.take(draw.choice(events))
            assert parts(world) == before
            copy._my_core()
            for number in range(world.scenario.ranks):
                copy._mine(number)
            mine, other = dict(_changing(world)), dict(_changing(copy))
            assert not mine.keys() & other.keys(), mine
            seen.update(type(item).__name__ for item in mine.values())
    assert {"TrackedOperation", "Hold", "Hint", "Tombstone", "Expected", "_Lease"} <= seen


def test_what_a_world_remembers_of_its_state_is_never_old() -> None:
    draw = Random(4)
    for _ in range(10):
        world, found = World(random_scenario(draw)), exploration.Exploration(SCENARIOS["dp2 pp2"])
        while events := exploration._all_events(world, found):
            fingerprint(world)
            world = world.copy()
            world.take(draw.choice(events))
            number, world.core_memo = fingerprint(world), None
            for rank in world.ranks:
                rank.memo = None
            assert fingerprint(world) == number


def _changing(world: World) -> Iterator[tuple[int, Any]]:
    """Everything in a world that may change, by identity; nobody changes an action."""
    core = {name: item for name, item in vars(world.core).items() if name not in SHARED}
    todo: list[Any] = [core, world.ranks, world.faults, world.light, world.commands, world.spoiled]
    while todo:
        item = todo.pop()
        if isinstance(item, Action):
            continue
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, (list, set, frozenset, tuple)):
            todo += item
        elif hasattr(type(item), "__slots__") and not isinstance(item, str):
            todo += [getattr(item, name) for name in type(item).__slots__]
        elif type(item).__name__ in ("Holdings", "_Lease"):
            todo += [value for name, value in vars(item).items() if name != "_layout"]
        else:
            continue
        if not isinstance(item, (frozenset, tuple, Configuration)):
            yield id(item), item
