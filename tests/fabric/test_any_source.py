"""Receives from any source: the controller tells who listens of the first sender that
stands before one of its channels, whatever it holds, and nobody waits for ever.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration, Layout, Port
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import RefuseAction
from railx.fabric.holdings import OperationKey, Report
from railx.fabric.serving.server import (
    FirstSender,
    Refusal,
    Senders,
    first_sender,
    unseen,
)
from tests.fabric.test_holdings import Fabric


def pair(source: int) -> Configuration:
    return Configuration("pair", (0, source))


class Listening(Fabric):
    """Rank 0 receives from whoever sends; the others send to it on channel "SOURCE"."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.found: list[OperationKey] = []
        self.listens = False
        self.numbers = dict.fromkeys((str(source) for source in range(1, ranks)), 0)

    def senders(self) -> Senders:
        return {name: (int(name), number) for name, number in self.numbers.items()}

    def listen(self) -> None:
        self.listens = True

    def ask_for_sender(self) -> None:
        """The rank asks, and is answered at once."""
        found = first_sender(self.core, 0, self.senders())
        if found is None:
            for leased in unseen(self.core, 0, self.senders()):
                self.act(self.core.recall(leased, self.now))
            return
        assert isinstance(found, FirstSender)
        assert found.key[0] == str(found.source)
        self.listens = False
        self.found.append(found.key)
        self.numbers[found.key[0]] += 1
        self.begin(0, found.key, pair(found.source))

    def settle(self) -> None:
        while True:
            super().settle()
            if self.listens:
                self.ask_for_sender()
            if not any(self.up) and not any(self.down):
                return


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


def test_a_lease_that_may_hide_a_send_is_recalled_while_a_rank_listens() -> None:
    fabric = Listening(3)
    fabric.run(("0>1", 0), pair(1))
    assert unseen(fabric.core, 0, fabric.senders()) == [pair(1)]
    fabric.listen()
    fabric.settle()
    assert fabric.core.holds == {}
    assert unseen(fabric.core, 0, fabric.senders()) == []


def test_a_sender_that_is_gone_ends_the_wait() -> None:
    core = ControllerCore(Layout(1), 3)
    senders = {"1": (1, 0), "2": (2, 0)}
    assert first_sender(core, 0, senders) is None
    core.leave(2, "has left", 0)
    gone = "rank 2 has left, but rank 0 receives from any source"
    assert first_sender(core, 0, senders) == Refusal(gone, "lost")
    itself = "rank 0 listens for rank 0; allowed: another rank, 0 to 2"
    assert first_sender(core, 0, {"0": (0, 0)}) == Refusal(itself, "listen")


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
    draw = random.Random(seed)
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
        # One after another, as the receives of a lane; it asks where the answer is new.
        through = len(fabric.found) == sum(0 in fabric.begun[key] for key in fabric.found)
        if len(fabric.found) < wanted and through:
            senders = fabric.senders()
            if first_sender(fabric.core, 0, senders) or unseen(fabric.core, 0, senders):
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
                fabric.ask_for_sender()
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
    ring = Configuration("ring", (0, 1, 2))
    for rank in (0, 1, 2):
        core.ask(rank, rank, ("w", 0), ring, 0, can_hold=True)
    core.recalled(0, lease, Report(hold, {"a": 0}), 0)
    core.ask(0, 0, ("a", 1), lease, 0, can_hold=True)
    core.ask(1, 1, ("a", 1), lease, 0, can_hold=True)
    core.recalled(1, lease, Report(hold, {"a": 0}), 0)
    assert [operation.key for operation in core.queue.values()] == [("w", 0), ("a", 1)]


def test_who_listens_is_told_of_a_send_that_failed_before() -> None:
    """The send began under a lease, and its port is lost before the lease is back."""
    core = ControllerCore(Layout(1), 3)
    for rank in range(3):
        core.register(rank, rank)
    needs = Configuration("pair", (1, 2))
    core.ask(1, 0, ("s", 0), needs, 0, can_hold=True)
    core.ask(2, 0, ("s", 0), needs, 0, can_hold=True)
    core.switched(0, 1)
    hold = core.holds[needs].number
    senders = {"s": (1, 1)}
    assert first_sender(core, 2, senders) is None
    core.recalled(2, needs, Report(hold, {"s": 0}, frozenset()), 4)
    core.ports_lost([Port(2, "left")], "dirty", 5)
    told = core.recalled(1, needs, Report(hold, {"s": 1}, frozenset({("s", 1)})), 6)
    assert {(item.rank, item.request) for item in told if isinstance(item, RefuseAction)} == {
        (1, None)
    }
    for _ in range(2):
        refusal = first_sender(core, 2, senders)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "port"
    # Nobody listens for the number before.
    assert first_sender(core, 2, {"s": (1, 2)}) is None
