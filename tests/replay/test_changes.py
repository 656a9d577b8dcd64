"""Changes of circuits in a trace: which operations they are, and their windows; the
controller's side of them, a journal's switchings and the parts of a stall.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import SwitchAction
from railx.fabric.journal import Journal, journaled
from railx.replay.changes import (
    Change,
    Delays,
    Switching,
    circuit_changes,
    delays_of,
    setting_rows,
    switchings,
)

LAYOUT = Layout(1)


def _part(
    rank: int, phase: str, number: int, issued: int, start: int, end: int, **more: Any
) -> dict[str, Any]:
    """A member's part of an operation; its channel is that of its circuits."""
    return {
        "rank": rank,
        "iteration": 0,
        "kind": "all_reduce",
        "phase": phase,
        "channel": phase,
        "sequence": number,
        "issued_ns": issued,
        "start_ns": start,
        "end_ns": end,
        **more,
    }


def _ring_then_pair(**last: int) -> list[dict[str, Any]]:
    """Rings of 0,1 and 2,3 that end at 100 and 110, then a message from 0 to 2."""
    return [
        _part(0, "ring 0,1", 0, 10, 20, 100),
        _part(1, "ring 0,1", 0, 10, 20, 90),
        _part(2, "ring 2,3", 0, 10, 20, 110),
        _part(3, "ring 2,3", 0, 10, 20, 80),
        _part(0, "pair 0,2", 0, last.get("sender", 150), 400, 500),
        _part(2, "pair 0,2", 0, last.get("receiver", 130), 400, 500),
    ]


def _only(changes: list[Change]) -> Change:
    (change,) = changes
    return change


def test_the_window_goes_from_the_last_free_port_to_the_last_arrival() -> None:
    change = _only(circuit_changes(_ring_then_pair(), LAYOUT, announced=True))
    assert change.key == ("pair 0,2", 0)
    assert change.configuration.members == (0, 2)
    assert change.window_ns == 150 - 110


def test_on_demand_nothing_is_known_before_the_last_has_come() -> None:
    change = _only(circuit_changes(_ring_then_pair(), LAYOUT, announced=False))
    assert change.window_ns == 0


def test_who_came_before_the_ports_were_free_leaves_no_window() -> None:
    events = _ring_then_pair(sender=60, receiver=70)
    assert _only(circuit_changes(events, LAYOUT, announced=True)).window_ns == 0


def test_the_first_operation_of_an_iteration_is_announced_by_nobody() -> None:
    events = [
        row | {"iteration": int(row["phase"] == "pair 0,2" and row["rank"] == 0)}
        for row in _ring_then_pair()
    ]
    # Rank 0 asks at 150 and has announced nothing; rank 2 had at 110.
    change = _only(circuit_changes(events, LAYOUT, announced=True))
    assert (change.window_ns, change.iteration) == (0, 1)


def test_operations_in_a_row_on_the_same_circuits_share_a_window() -> None:
    """A stage receives and sends at once: all stand before the second one first."""
    events = [
        *_ring_then_pair(sender=150, receiver=300),
        _part(0, "pair 0,2", 1, 200, 410, 415, channel="back"),
        _part(2, "pair 0,2", 1, 160, 410, 415, channel="back"),
    ]
    change = _only(circuit_changes(events, LAYOUT, announced=True))
    assert change.key == ("pair 0,2", 0)
    assert (change.opened_ns, change.arrived_ns) == (110, 200)
    # Where the circuits move between them, the second comes too late to share.
    between = [
        _part(0, "pair 0,3", 0, 200, 391, 392),
        _part(3, "pair 0,3", 0, 200, 391, 392),
    ]
    late = [row | {"issued_ns": 170, "start_ns": 395} for row in events[-2:]]
    events = [
        *_ring_then_pair(sender=150, receiver=300)[:4],
        *(row | {"start_ns": 380, "end_ns": 385} for row in _ring_then_pair(receiver=300)[4:]),
        *between,
        *late,
    ]
    first, *_ = circuit_changes(events, LAYOUT, announced=True)
    assert (first.key, first.arrived_ns) == (("pair 0,2", 0), 300)


def _receive_then_message(*, ring_between: bool) -> list[dict[str, Any]]:
    """Rank 0 has posted a receive from 2 that comes late, and then sends to 3."""
    ring = 20 if ring_between else 5
    return [
        _part(0, "ring 0,1", 0, ring, 25, 100),
        _part(1, "ring 0,1", 0, ring, 25, 100),
        _part(2, "ring 2,3", 0, 10, 25, 110),
        _part(3, "ring 2,3", 0, 10, 25, 110),
        _part(0, "pair 0,2", 0, 15, 900, 950),
        _part(2, "pair 0,2", 0, 800, 900, 950),
        _part(0, "pair 0,3", 0, 200, 400, 500),
        _part(3, "pair 0,3", 0, 180, 400, 500),
    ]


def test_nobody_announces_past_what_it_has_asked_for() -> None:
    """What was asked for comes first, but where a collective has overtaken it."""
    waits, *_ = circuit_changes(_receive_then_message(ring_between=False), LAYOUT, announced=True)
    assert (waits.key, waits.opened_ns) == (("pair 0,3", 0), 200)
    overtaken, *_ = circuit_changes(
        _receive_then_message(ring_between=True), LAYOUT, announced=True
    )
    assert (overtaken.key, overtaken.opened_ns) == (("pair 0,3", 0), 110)


def test_a_stall_is_the_longest_that_ends_with_the_operation() -> None:
    def waited(rank: int, start: int, end: int) -> dict[str, Any]:
        row = _part(rank, "pair 0,2", -1, 0, start, end)
        return row | {"kind": "reconfiguration", "channel": ""}

    events = [*_ring_then_pair(), waited(0, 160, 390), waited(2, 155, 390), waited(0, 20, 90)]
    assert _only(circuit_changes(events, LAYOUT, announced=True)).stall_ns == 235


def test_servers_and_operations_with_a_part_missing_are_left_out() -> None:
    events = [row | {"phase": "scale-up"} for row in _ring_then_pair()]
    assert circuit_changes(events, LAYOUT, announced=True) == []
    assert circuit_changes(_ring_then_pair()[:-1], LAYOUT, announced=True) == []


#: The circuits of a phase as (right port of, left port of). A ring of two has both
#: directions, its pair one of them.
CIRCUITS = {"ring 0,1": {(0, 1), (1, 0)}, "pair 0,1": {(0, 1)}, "pair 0,2": {(0, 2)}}


@given(st.lists(st.sampled_from(sorted(CIRCUITS)), min_size=1, max_size=12))
def test_a_change_is_where_a_port_last_carried_another_circuit(phases: list[str]) -> None:
    events, expected = [], []
    up: dict[tuple[str, int], tuple[int, int]] = {}
    for place, phase in enumerate(phases):
        at = 100 * place
        members = {member for circuit in CIRCUITS[phase] for member in circuit}
        events += [_part(member, phase, place, at, at + 10, at + 90) for member in members]
        ports = {("right", right): (right, left) for right, left in CIRCUITS[phase]}
        ports |= {("left", left): (right, left) for right, left in CIRCUITS[phase]}
        if any(port in up and up[port] != circuit for port, circuit in ports.items()):
            expected.append(place)
        up |= ports
    found = circuit_changes(events, LAYOUT, announced=True)
    assert [change.key[1] for change in found] == expected


RING, PAIR = Configuration("ring", (0, 1)), Configuration("pair", (1, 2))
LATENCY_NS = 100


def _change(configuration: Configuration, opened: int, arrived: int, began: int) -> Change:
    return Change(("x", 0), configuration, 0, opened, arrived, began, 0)


def _provisioned(path: Path, *, hinted: int, asked: int, up: int) -> list[Switching]:
    """A ring of 0 and 1 at 0, then a pair of 1 and 2 that both announce and ask for."""
    journal = Journal(path)
    core = journaled(ControllerCore(LAYOUT, 3), journal)
    for rank in RING.members:
        first = core.ask(rank, 1, ("ring", 0), RING, 1 + rank)
    commands = [action.command for action in first if isinstance(action, SwitchAction)]
    for command in commands:
        core.switched(command, 50)
    for rank in RING.members:
        core.release(rank, ("ring", 0), 60)
    moves = [*core.hint(1, PAIR, 70), *core.hint(2, PAIR, hinted)]
    asks = [(asked - 5, lambda now: core.ask(1, 2, ("pair", 0), PAIR, now))]
    asks.append((asked, lambda now: core.ask(2, 1, ("pair", 0), PAIR, now)))
    asks += [
        (up, lambda now, command=action.command: core.switched(command, now))  # type: ignore[misc]
        for action in moves
        if isinstance(action, SwitchAction)
    ]
    for now, event in sorted(asks, key=lambda item: item[0]):
        event(now)
    journal.close()
    return switchings(path, LAYOUT)


def test_a_switching_is_on_the_controllers_clock(tmp_path: Path) -> None:
    ring, pair = _provisioned(tmp_path / "early.jsonl", hinted=80, asked=150, up=190)
    assert ring == Switching(RING, begun_ns=2, up_ns=50, asked_ns=2, granted_ns=50)
    assert pair == Switching(PAIR, begun_ns=80, up_ns=190, asked_ns=150, granted_ns=190)
    # Light was there before anybody asked: nobody waits.
    _, pair = _provisioned(tmp_path / "late.jsonl", hinted=80, asked=250, up=190)
    assert pair == Switching(PAIR, begun_ns=80, up_ns=190, asked_ns=250, granted_ns=250)


def test_half_a_line_at_the_end_of_a_journal_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    whole = _provisioned(path, hinted=80, asked=150, up=190)
    with path.open("a") as file:
        file.write('{"n":')
    assert switchings(path, LAYOUT) == whole


@given(
    opened=st.integers(0, 100),
    begin=st.integers(0, 50),
    switch=st.integers(0, 50),
    window=st.integers(-50, 300),
    question=st.integers(0, 50),
)
def test_a_stall_is_latency_less_window_and_the_delays(
    opened: int, begin: int, switch: int, window: int, question: int
) -> None:
    begun, arrived = opened + begin, opened + window
    up = begun + LATENCY_NS + switch
    asked = max(arrived, opened) + question
    granted = max(up, asked)
    change = _change(PAIR, opened, arrived, granted)
    own = Switching(PAIR, begun, up, asked, granted)
    earlier = Switching(PAIR, 0, 0, 0, granted - 1)
    others = [Switching(RING, 0, 0, 0, granted), Switching(PAIR, 0, 0, 0, granted + 1)]
    (delays,) = delays_of([change], [earlier, own, *others], LATENCY_NS)
    assert delays == Delays(switch, begin, question)
    by_rule = LATENCY_NS - change.window_ns
    assert granted - asked == max(0, by_rule + switch + begin - question)


def test_what_the_journal_does_not_know_has_no_delays() -> None:
    later = Switching(PAIR, 0, 0, 0, 11)
    assert delays_of([_change(PAIR, 0, 5, 10)], [later], LATENCY_NS) == [None]


def test_a_prediction_begins_with_the_least_latency_less_its_stalls() -> None:
    """Iterations of 40 ms and one change with a window of 6 ms, in any order."""
    iterations, changes = [], []
    for latency_ms in (106.0, 16.0):
        named = {"mode": "on_demand", "reconfiguration_latency_ms": latency_ms, "iteration": 3}
        named |= {"controller_restarted": False, "stall_ms": latency_ms - 6}
        changes.append(named | {"circuits": "pair 0,1", "predicted_stall_ms": latency_ms - 6})
        counts = dict.fromkeys(("reconfigurations", "mispredictions", "loss"), 1)
        said = dict.fromkeys(("wait_ms", "load_share", "controller_priority", "fidelity"), 0)
        iterations.append(named | counts | said | {"iteration_ms": 40 + latency_ms - 6})
    rows = setting_rows("job", 2, iterations, changes)
    assert [row["predicted_iteration_ms"] for row in rows] == [140.0, 50.0]
