"""Small jobs explored state by state, and larger ones at random, with every fault."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from railx.fabric.actions import Action
from railx.fabric.circuits import Configuration
from tests.fabric import explore as exploration
from tests.fabric.copies import SHARED
from tests.fabric.explore import SCENARIOS, explore, random_scenario, wander
from tests.fabric.fingerprint import fingerprint, parts
from tests.fabric.world import FAULTS, Scenario, World


def test_two_groups_that_share_a_port_are_explored_whole() -> None:
    found = explore(SCENARIOS["shared port"], 10_000)
    assert found.complete
    # A change of these numbers is a change of what can happen.
    assert (found.states, found.ends) == (870, 2)
    # Bounded waiting: nine questions, and no run is longer than this.
    assert found.longest == 75


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_fault_breaks_nothing_in_a_small_job(fault: str | None) -> None:
    """One operation of each group that shares a port; all states with one fault."""
    scenario = SCENARIOS[f"shared port, 1 {fault}" if fault else "shared port, two ahead"]
    faults = tuple((name, 1) for name, _ in scenario.faults)
    small = Scenario("small", 3, scenario.operations[:2], faults, ports=scenario.ports[:1])
    assert explore(small, 1500, Random(1)).states > 40


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("dp2")])
def test_part_of_a_training_step_is_explored(name: str) -> None:
    assert explore(SCENARIOS[name], 300, Random(name)).states == 300


def test_random_runs_of_larger_jobs() -> None:
    events = 0
    for seed in range(200, 600):
        draw = Random(seed)
        scenario = random_scenario(draw)
        events += wander(scenario, draw, draw.choice([0.02, 0.05, 0.15]))
    assert events > 20_000


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
    assert {"Operation", "Hold", "Hint", "Tombstone", "Expected", "_Held"} <= seen


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
        elif type(item).__name__ in ("Holdings", "_Held"):
            todo += [value for name, value in vars(item).items() if name != "_layout"]
        else:
            continue
        if not isinstance(item, (frozenset, tuple, Configuration)):
            yield id(item), item
