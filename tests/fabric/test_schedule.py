"""Phases, transitions and the prediction of the next operation."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration
from railx.fabric.schedule import Phase, Schedule, phases, transitions

PIPELINE = Configuration("pair", (0, 1))
DATA = Configuration("ring", (0, 2))
CONFIGURATIONS = st.sampled_from([PIPELINE, DATA, Configuration("ring", (0, 1, 2, 3))])


def test_steady_iteration_of_pipeline_and_fully_sharded_data_parallelism_has_six_transitions() -> (
    None
):
    # Llama-3 8B, two stages and two micro-batches: PP(3) DP(18) PP(1) DP(20) PP(1)
    # DP(17) (Opus artifact, arXiv 2602.12521).
    counts = ((PIPELINE, 3), (DATA, 18), (PIPELINE, 1), (DATA, 20), (PIPELINE, 1), (DATA, 17))
    operations = [configuration for configuration, count in counts for _ in range(count)]
    assert [(phase.configuration, phase.operations) for phase in phases(operations)] == list(counts)
    assert transitions(operations) == 6
    assert transitions(operations, cyclic=False) == 5


@pytest.mark.parametrize("operations", [[], [PIPELINE] * 84, [PIPELINE]])
def test_one_kind_of_circuit_never_changes(operations: list[Configuration]) -> None:
    assert transitions(operations) == 0


@given(operations=st.lists(CONFIGURATIONS))
def test_phases_are_maximal_and_cover_everything(operations: list[Configuration]) -> None:
    found = phases(operations)
    assert [phase.configuration for phase in found for _ in range(phase.operations)] == operations
    assert all(one.configuration != other.configuration for one, other in itertools.pairwise(found))
    assert [phase.first for phase in found] == [
        sum(phase.operations for phase in found[:place]) for place in range(len(found))
    ]


def test_prediction_ends_with_the_iteration() -> None:
    schedule = Schedule({0: (PIPELINE, DATA), 1: (DATA,)})
    assert [schedule.following(0, issued) for issued in range(3)] == [PIPELINE, DATA, None]
    assert schedule.following(7, 0) is None


@given(iterations=st.dictionaries(st.integers(0, 9), st.lists(CONFIGURATIONS).map(tuple)))
def test_schedules_survive_json(iterations: dict[int, tuple[Configuration, ...]]) -> None:
    schedule = Schedule(iterations)
    assert Schedule.from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule


def test_another_schema_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"schema of a schedule: got 'x'; allowed: railx.schedule/1"
    ):
        Schedule.from_dict({"schema": "x"})


def test_phase_is_a_plain_record() -> None:
    assert phases([DATA, DATA]) == (Phase(DATA, first=0, operations=2),)
