"""The control plane's invariants, in the states of small jobs and along random runs of
larger ones, with every fault.

Nothing here tells a story or counts states: what dies here dies because a state must
not be (:mod:`tests.fabric.world`). The safety mutants (``make mutants ROOM=safety``)
are held to this file alone.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.fabric.explore import SCENARIOS, explore, random_scenario, wander
from tests.fabric.world import FAULTS, Scenario


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_fault_breaks_nothing_in_a_small_job(fault: str | None) -> None:
    """One operation of each group that shares a port; all states with one fault."""
    scenario = SCENARIOS[f"shared port, 1 {fault}" if fault else "shared port, two ahead"]
    faults = tuple((name, 1) for name, _ in scenario.faults)
    small = Scenario("small", 3, scenario.operations[:2], faults, ports=scenario.ports[:1])
    assert explore(small, 1500, Random(1)).states > 40


@pytest.mark.parametrize("name", SCENARIOS)
def test_part_of_a_larger_job_is_explored(name: str) -> None:
    assert explore(SCENARIOS[name], 500, Random(name)).states == 500


def test_random_runs_of_larger_jobs() -> None:
    events = 0
    for seed in range(200, 1000):
        draw = Random(seed)
        scenario = random_scenario(draw)
        chance, late = draw.choice([0.02, 0.05, 0.15]), draw.choice([1.0, 0.2, 0.05])
        events += wander(scenario, draw, chance, late=late)
    assert events > 40_000
