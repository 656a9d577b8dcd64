"""Sharded training's messages travel while units compute, as the trace shows: by the
order of the program, whatever the machine's speed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from railx.fabric.circuits import Layout
from railx.replay.recording import cluster_programs
from scripts.gpu.host import exchanged_bytes
from tests.commands import python
from tests.replay.programs import steps_of
from tests.replay.reference import replay
from tests.training import overlap_program

pytestmark = pytest.mark.system

Events = list[dict[str, Any]]

#: Embedding, three layers, head.
UNITS = 5


@pytest.fixture(scope="module")
def traces() -> dict[str, list[Events]]:
    done = python(overlap_program.__file__)
    assert done.returncode == 0, done.stderr
    result: dict[str, list[Events]] = json.loads(done.stdout)
    return result


def during(event: dict[str, Any], trace: Events) -> str | None:
    """The phase of the computation in which a message was issued and which ended before
    the message was waited for; None where there is none.
    """
    for span in trace:
        if (
            span["kind"] == "compute"
            and span["start_ns"] <= event["issued_ns"] < span["end_ns"] <= event["waited_ns"]
        ):
            return str(span["phase"])
    return None


def phases(trace: Events, kind: str) -> list[str | None]:
    """For each message of a kind, in order of issue, what went on meanwhile."""
    events = [event for event in trace if event["kind"] == kind]
    return [during(event, trace) for event in sorted(events, key=lambda e: e["issued_ns"])]


def test_units_are_gathered_before_the_unit_before_them_has_computed(
    traces: dict[str, list[Events]],
) -> None:
    # The batch's first unit has nothing before it. Backward, the head is there and the
    # embedding is not needed; before the last unit ends, the next pass's first is on
    # its way.
    forward, backward = ["forward"] * (UNITS - 1), ["backward"] * (UNITS - 2)
    for trace in traces["units"]:
        found = phases(trace, "all_gather")
        assert found == [None, *forward, *backward, "backward", *forward, *backward]


def test_sums_are_issued_before_the_unit_below_has_computed(
    traces: dict[str, list[Events]],
) -> None:
    # The embedding has no unit below: its sum goes on in the next pass, and the last
    # one of a batch alone is waited for at once.
    units = ["backward"] * (UNITS - 1)
    for trace in traces["units"]:
        assert phases(trace, "reduce_scatter") == [*units, "forward", *units, None]


def test_most_of_communication_is_hidden_in_cluster_time(
    traces: dict[str, list[Events]],
) -> None:
    # What the program computes between handing a message over and waiting for it is
    # taken as 2 us everywhere, and any message as 1 us: what is hidden then follows
    # from the order of the program alone.
    events = [event for trace in traces["units"] for event in trace if event["iteration"] == 0]
    recorded = cluster_programs(events, lambda kind, size, ranks: 1000)
    programs = {
        rank: [replace(step, gap_ns=2000 if step.does == "wait" else 0) for step in steps]
        for rank, steps in steps_of(recorded).items()
    }
    for row in replay(programs, Layout(1), "electrical", 0):
        assert row.communication_ns > 0
        assert row.hidden_ns >= row.communication_ns / 2


@pytest.mark.parametrize("case", [overlap_program.UNITS, overlap_program.STAGE])
def test_bytes_through_the_host_are_those_of_the_trace(
    case: overlap_program.Case, traces: dict[str, list[Events]]
) -> None:
    # The list of a GPU sizes its runs by them, with half as many bytes an element.
    expected = exchanged_bytes(case.model, case.plan.batches[0], overlap_program.RANKS)
    kinds = {"all_gather": 8 / 2, "reduce_scatter": 8 / 4}
    for trace in traces[case.name]:
        moved = sum(
            event["bytes"] / kinds[event["kind"]] for event in trace if event["kind"] in kinds
        )
        # Half of a message is this rank's; rows are padded to an even number.
        messages = 2 * 2 * case.model.hidden * 110 / 2 if case is overlap_program.STAGE else 0
        assert moved / 2 + messages == pytest.approx(expected, rel=0.005)


def test_a_stage_is_gathered_once_and_summed_once_whatever_its_replicas_run(
    traces: dict[str, list[Events]],
) -> None:
    for trace in traces["stage"]:
        assert phases(trace, "all_gather") == [None, *["forward"] * (UNITS - 1)]
        assert phases(trace, "reduce_scatter") == [*["backward"] * (UNITS - 1), None]
        sums = [event["issued_ns"] for event in trace if event["kind"] == "reduce_scatter"]
        # All in the last backward pass: no forward pass comes after.
        assert min(sums) > max(e["end_ns"] for e in trace if e["phase"] == "forward")
