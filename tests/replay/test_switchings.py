"""The controller's side of changes: a journal's switchings, the parts of a stall."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import SwitchAction
from railx.fabric.journal import Journal, journaled
from railx.replay.changes import Change, Delays, Switching, delays_of, switchings

LAYOUT = Layout(1)
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
