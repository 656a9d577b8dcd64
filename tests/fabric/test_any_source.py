"""Receives from any source: the controller tells who listens of the first sender that
stands before one of its channels, whatever it holds, and nobody waits for ever.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration, Layout, Port
from railx.fabric.core import (
    Action,
    ControllerCore,
    FoundAction,
    RefuseAction,
)
from railx.fabric.holdings import OperationKey, Report
from tests.fabric.test_holdings import Fabric


def pair(source: int) -> Configuration:
    return Configuration("pair", (0, source))


class Listening(Fabric):
    """Rank 0 receives from whoever sends; the others send to it on channel "SOURCE"."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.found: list[OperationKey] = []
        self.questions = 0
        self.numbers = dict.fromkeys((str(source) for source in range(1, ranks)), 0)

    def listen(self) -> None:
        channels = {name: (int(name), number) for name, number in self.numbers.items()}
        self.up[0].append(("listen", channels))

    def arrive(self, rank: int, message: tuple[object, ...]) -> None:
        if message[0] == "listen":
            channels = message[1]
            assert isinstance(channels, dict)
            self.questions += 1
            self.act(self.core.listen(rank, self.questions, channels, self.now))
        else:
            super().arrive(rank, message)

    def hear(self, rank: int, action: Action) -> None:
        if not isinstance(action, FoundAction):
            super().hear(rank, action)
            return
        assert (action.rank, action.request) == (0, self.questions)
        assert action.key[0] == str(action.source)
        self.found.append(action.key)
        self.numbers[action.key[0]] += 1
        self.begin(0, action.key, pair(action.source))


def test_the_first_that_stands_before_a_send_is_found() -> None:
    fabric = Listening(4)
    fabric.listen()
    fabric.settle()
    assert fabric.found == []
    fabric.begin(2, ("2", 0), pair(2))
    fabric.begin(3, ("3", 0), pair(3))
    fabric.settle()
    assert fabric.found == [("2", 0)]
    assert fabric.begun["2", 0] == {0, 2}
    for rank in (0, 2):
        fabric.end(rank, ("2", 0))
    fabric.listen()
    fabric.settle()
    assert fabric.found == [("2", 0), ("3", 0)]


@pytest.mark.parametrize("ended", [False, True], ids=["waits", "buffered"])
def test_a_send_under_a_held_lease_is_found_too(ended: bool) -> None:
    """The controller heard nothing of it."""
    fabric = Listening(4)
    fabric.run(("2", 0), pair(2))
    fabric.numbers["2"] = 1
    fabric.begin(2, ("2", 1), pair(2))
    if ended:
        fabric.end(2, ("2", 1))
    assert fabric.asked == 2, "it began without asking"
    fabric.listen()
    fabric.settle()
    assert fabric.found == [("2", 1)]
    assert fabric.begun["2", 1] == {0, 2}


def test_what_an_ordinary_receive_has_taken_is_not_found() -> None:
    fabric = Listening(3)
    fabric.begin(0, ("1", 0), pair(1))
    fabric.listen()
    fabric.begin(1, ("1", 0), pair(1))
    fabric.settle()
    assert fabric.found == []
    fabric.begin(1, ("1", 1), pair(1))
    fabric.settle()
    assert fabric.found == [("1", 1)]


def test_no_lease_stays_where_someone_listens() -> None:
    fabric = Listening(3)
    fabric.listen()
    fabric.run(("0>1", 0), pair(1))
    assert fabric.core.holds == {}
    fabric.core.unlisten(0, fabric.questions)
    fabric.run(("0>1", 1), pair(1))
    assert list(fabric.core.holds) == [pair(1)]


def test_a_sender_that_is_gone_ends_the_wait() -> None:
    core = ControllerCore(Layout(1), 3)
    channels = {"1": (1, 0), "2": (2, 0)}
    assert core.listen(0, 5, channels, 0) == []
    assert core.leave(2, "has left", 0) == [
        RefuseAction(0, 5, "rank 2 has left, but rank 0 receives from any source", "lost")
    ]
    assert core.listen(0, 6, channels, 0) == [
        RefuseAction(0, 6, "rank 2 has left, but rank 0 receives from any source", "lost")
    ]
    assert core.listen(0, 6, {"0": (0, 0)}, 0) == [
        RefuseAction(0, 6, "rank 0 listens for rank 0; allowed: another rank, 0 to 2", "listen")
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(3, 5), count=st.integers(1, 3))
def test_every_message_is_received_once_in_the_order_of_its_sender(
    seed: int, ranks: int, count: int
) -> None:
    """Whatever is under way besides: named receives of other tags, a collective, and
    messages of the control plane that are late.
    """
    fabric = Listening(ranks)
    ring = Configuration("ring", tuple(range(ranks)))
    # What each rank still has to begin, in its order on each channel.
    plans: dict[int, dict[str, list[tuple[OperationKey, Configuration]]]] = {
        rank: {"w": [(("w", number), ring) for number in range(2)]} for rank in range(ranks)
    }
    for source in range(1, ranks):
        named = [((f"named {source}", number), pair(source)) for number in range(count)]
        plans[source][f"named {source}"] = named[:]
        plans[0][f"named {source}"] = named[:]
        plans[source][str(source)] = [((str(source), n), pair(source)) for n in range(count)]
    wanted = count * (ranks - 1)
    draw, asked = random.Random(seed), 0
    while True:
        events: list[tuple[object, ...]] = []
        events += [("up", rank) for rank in range(ranks) if fabric.up[rank]]
        events += [("down", rank) for rank in range(ranks) if fabric.down[rank]]
        events += [("switch", command) for command in fabric.commands]
        events += [
            ("begin", rank, channel)
            for rank, plan in plans.items()
            for channel, keys in plan.items()
            if keys and not any(waits[0] == channel for waits in fabric.waiting[rank])
        ]
        events += [
            ("end", rank, key)
            for key, begun in fabric.begun.items()
            if begun == set(fabric.needs[key].members)
            for rank in begun - fabric.ended[key]
        ]
        # One after another, as the receives of a lane.
        if asked < wanted and asked == sum(0 in fabric.begun[key] for key in fabric.found):
            events.append(("listen",))
        if not events:
            break
        match draw.choice(events):
            case ("up", int() as rank):
                fabric.arrive(rank, fabric.up[rank].popleft())
            case ("down", int() as rank):
                fabric.hear(rank, fabric.down[rank].popleft())
            case ("switch", int() as command):
                del fabric.commands[command]
                fabric.act(fabric.core.switched(command, 0))
            case ("begin", int() as rank, str() as channel):
                fabric.begin(rank, *plans[rank][channel].pop(0))
            case ("end", int() as rank, tuple() as key):
                fabric.end(rank, key)
            case ("listen",):
                asked += 1
                fabric.listen()
    assert fabric.refusals == []
    assert len(fabric.found) == wanted
    for source in range(1, ranks):
        mine = [key for key in fabric.found if key[0] == str(source)]
        assert mine == [(str(source), number) for number in range(count)]
    assert all(
        fabric.begun[key] == fabric.ended[key] == set(fabric.needs[key].members)
        for key in fabric.begun
    )
    assert not fabric.core.leases


def test_an_operation_that_all_asked_for_stands_in_the_queue_once() -> None:
    """Though the lease on which its channel ran before is settled only then."""
    core = ControllerCore(Layout(1), 3)
    lease = Configuration("pair", (0, 1))
    for rank in (0, 1):
        core.ask(rank, rank, ("a", 0), lease, 0, can_hold=True)
    core.switched(0, 0)
    hold = core.holds[lease].number
    core.listen(2, 9, {"x": (0, 0), "y": (1, 0)}, 0)
    ring = Configuration("ring", (0, 1, 2))
    for rank in (0, 1, 2):
        core.ask(rank, rank, ("w", 0), ring, 0, can_hold=True)
    core.recalled(0, lease, Report(hold, {"a": 0}), 0)
    core.ask(0, 0, ("a", 1), lease, 0, can_hold=True)
    core.ask(1, 1, ("a", 1), lease, 0, can_hold=True)
    core.recalled(1, lease, Report(hold, {"a": 0}), 0)
    assert [operation.key for operation in core.queue.values()] == [("w", 0), ("a", 1)]


@pytest.mark.parametrize("late", [False, True], ids=["waits", "comes later"])
def test_who_listens_is_told_of_a_send_that_failed_before(late: bool) -> None:
    """The send began under a lease, and its port is lost before the lease is back."""
    core = ControllerCore(Layout(1), 3)
    for rank in range(3):
        core.register(rank, rank)
    needs = Configuration("pair", (1, 2))
    core.ask(1, 0, ("s", 0), needs, 0, can_hold=True)
    core.ask(2, 0, ("s", 0), needs, 0, can_hold=True)
    core.switched(0, 1)
    hold = core.holds[needs].number
    if not late:
        core.listen(2, 7, {"s": (1, 1)}, 2)
    core.recalled(2, needs, Report(hold, {"s": 0}, frozenset()), 4)
    core.ports_lost([Port(2, "left")], "dirty", 5)
    told = core.recalled(1, needs, Report(hold, {"s": 1}, frozenset({("s", 1)})), 6)
    if late:
        told += core.listen(2, 7, {"s": (1, 1)}, 7)
    refusals = {(item.rank, item.request): item for item in told if isinstance(item, RefuseAction)}
    assert refusals.keys() == {(1, None), (2, 7)}
    assert refusals[2, 7].reason == "port"
    assert "the left port of GPU 2" in refusals[2, 7].message
    # Once, and nobody waits for it any more.
    assert core.listen(2, 8, {"s": (1, 1)}, 8) == []
    assert core.statistics()["tombstones"] == 0
