"""Leases that last: exact accounts of small stories, and the safety of any interleaving
of ranks, controller, switch and late messages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from railx.fabric.circuits import Circuit, Configuration, Layout
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import (
    Action,
    GrantAction,
    RecallAction,
    RefuseAction,
    SwitchAction,
)
from railx.fabric.holdings import Holdings, OperationKey, Report

RING = Configuration("ring", (0, 1, 2, 3))
LEFT = Configuration("ring", (0, 1))
RIGHT = Configuration("ring", (2, 3))
PAIR = Configuration("pair", (1, 2))


class Fabric:
    """A core, the holdings of its ranks and the messages between them, each delivered
    when the test says so.
    """

    def __init__(self, ranks: int, gpus_per_server: int = 1) -> None:
        self.core = ControllerCore(Layout(gpus_per_server), ranks)
        self.holdings = [Holdings(self.core.layout) for _ in range(ranks)]
        self.now = 0
        self.up: list[deque[tuple[object, ...]]] = [deque() for _ in range(ranks)]
        self.down: list[deque[Action]] = [deque() for _ in range(ranks)]
        self.commands: dict[int, SwitchAction] = {}
        self.switches: list[SwitchAction] = []
        self.grants: list[GrantAction] = []
        self.refusals: list[RefuseAction] = []
        self.waiting: list[dict[OperationKey, Configuration]] = [{} for _ in range(ranks)]
        self.begun: dict[OperationKey, set[int]] = {}
        self.ended: dict[OperationKey, set[int]] = {}
        self.needs: dict[OperationKey, Configuration] = {}
        self.asked = 0

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SwitchAction):
                in_use = {
                    circuit
                    for key, members in self.begun.items()
                    if members == set(self.needs[key].members) != self.ended[key]
                    for circuit in self.core.layout.circuits(self.needs[key])
                }
                assert not in_use & set(action.disconnect), "a circuit in use was torn down"
                self.commands[action.command] = action
                self.switches.append(action)
            else:
                self.down[action.rank].append(action)

    def begin(self, rank: int, key: OperationKey, configuration: Configuration) -> None:
        """The rank comes to an operation: it begins at once or asks."""
        self.needs[key] = configuration
        self.begun.setdefault(key, set())
        self.ended.setdefault(key, set())
        if self.holdings[rank].begin(key, configuration):
            self.begun[key].add(rank)
        else:
            self.asked += 1
            self.waiting[rank][key] = configuration
            self.up[rank].append(("ask", key, configuration))

    def end(self, rank: int, key: OperationKey) -> None:
        self.ended[key].add(rank)
        if self.holdings[rank].end(key):
            self.up[rank].append(("release", key))

    def hint(self, rank: int, configuration: Configuration) -> None:
        for held in self.holdings[rank].in_the_way_of(configuration):
            self.give_back(rank, held)
        self.up[rank].append(("hint", configuration))

    def give_back(self, rank: int, held: Configuration, hold: int | None = None) -> None:
        report = self.holdings[rank].recall(held, hold)
        if report is not None:
            self.up[rank].append(("recalled", held, report))

    def arrive(self, rank: int, message: tuple[object, ...]) -> None:
        """A message of the rank reaches the core."""
        core, now = self.core, self.now
        match message:
            case ("ask", tuple() as key, Configuration() as configuration):
                self.act(core.ask(rank, rank, key, configuration, now, can_hold=True))
            case ("release", tuple() as key):
                self.act(core.release(rank, key, now))
            case ("hint", Configuration() as configuration):
                self.act(core.hint(rank, configuration, now))
            case ("recalled", Configuration() as configuration, Report() as report):
                self.act(core.recalled(rank, configuration, report, now))
            case _:
                raise AssertionError(message)

    def hear(self, rank: int, action: Action) -> None:
        """A message of the core reaches the rank."""
        if isinstance(action, RecallAction):
            self.give_back(rank, action.configuration, action.hold)
        elif isinstance(action, RefuseAction):
            self.refusals.append(action)
        elif isinstance(action, GrantAction):
            if action.request is None:
                self.holdings[rank].granted_late(action.key, action.configuration, action.hold)
            elif self.waiting[rank].pop(action.key, None) is not None:
                self.holdings[rank].granted(action.key, action.configuration, action.hold)
                self.begun[action.key].add(rank)
            else:
                return
            self.grants.append(action)

    def settle(self) -> None:
        """Deliver everything and let every switch report."""
        while any(self.up) or any(self.down) or self.commands:
            for rank, messages in enumerate(self.up):
                while messages:
                    self.arrive(rank, messages.popleft())
            for rank, actions in enumerate(self.down):
                while actions:
                    self.hear(rank, actions.popleft())
            if self.commands and not any(self.up):
                command = min(self.commands)
                del self.commands[command]
                self.act(self.core.switched(command, self.now))

    def run(self, key: OperationKey, configuration: Configuration) -> None:
        """An operation from begin to end, by all its members together."""
        for rank in configuration.members:
            self.begin(rank, key, configuration)
        self.settle()
        assert self.begun[key] == set(configuration.members)
        for rank in configuration.members:
            self.end(rank, key)
        self.settle()


def test_a_lease_stays_until_another_operation_needs_the_ports() -> None:
    fabric = Fabric(4)
    for number in range(5):
        fabric.run(("a", number), LEFT)
        fabric.run(("b", number), RIGHT)
    assert fabric.asked == 4, "the first operation of each group, by both members"
    fabric.run(("w", 0), RING)
    assert fabric.asked == 8
    fabric.run(("a", 5), LEFT)
    assert fabric.asked == 10
    statistics = fabric.core.statistics()
    assert statistics["requests"] == 10
    assert statistics["grants"] == 10
    assert statistics["reconfigurations"] == 4
    # Four members gave back what they held for the ring, and all of them the ring for
    # the last operation.
    assert (statistics["held"], statistics["recalls"]) == (16, 8)


def test_operations_of_other_channels_run_on_the_same_lease() -> None:
    fabric = Fabric(4)
    pair = Configuration("pair", (0, 1))
    fabric.run(("0>1", 0), pair)
    fabric.run(("1>0", 0), pair)
    fabric.run(("0>1", 1), pair)
    assert fabric.asked == 2


def test_who_asked_for_another_channel_begins_with_the_lease_of_the_first() -> None:
    fabric = Fabric(2)
    fabric.begin(0, ("1>0", 0), LEFT)
    fabric.settle()
    assert not fabric.begun["1>0", 0]
    fabric.run(("0>1", 0), LEFT)
    assert fabric.begun["1>0", 0] == {0}, "its peer will not ask any more"
    fabric.begin(1, ("1>0", 0), LEFT)
    assert fabric.begun["1>0", 0] == {0, 1}
    assert fabric.asked == 3


def _disagreement(fabric: Fabric) -> set[tuple[int, int | None]]:
    """Who was told that the ranks disagree about ``g 1``, and as the answer to what."""
    assert all(
        item.reason == "disagree" and "disagree about operation 1 of g" in item.message
        for item in fabric.refusals
    )
    assert not fabric.core.statistics()["open"]
    return {(item.rank, item.request) for item in fabric.refusals}


def test_who_asks_for_less_than_others_began_under_a_lease_is_told_and_they_too() -> None:
    """Rank 3 comes later; another group's lease and operation stay as they are."""
    fabric = Fabric(6)
    other = Configuration("ring", (4, 5))
    fabric.run(("g", 0), RING)
    fabric.run(("o", 0), other)
    for rank in (0, 2):
        fabric.begin(rank, ("g", 1), RING)
    assert fabric.begun["g", 1] == {0, 2}, "without a question"
    fabric.begin(1, ("g", 1), LEFT)
    fabric.settle()
    assert _disagreement(fabric) == {(0, None), (1, 1), (2, None)}
    assert fabric.refusals[0].message == (
        "the ranks disagree about operation 1 of g: rank 1 asked for ring 0,1, rank 0 for"
        " ring 0,1,2,3"
    )
    fabric.begin(3, ("g", 1), RING)
    fabric.settle()
    assert _disagreement(fabric) == {(0, None), (1, 1), (2, None), (3, 3)}
    assert not fabric.core.statistics()["tombstones"]
    assert all(fabric.holdings[rank].holds(other) for rank in other.members)
    for rank in (0, 2):
        fabric.end(rank, ("g", 1))
    fabric.settle()
    fabric.run(("g", 2), RING)
    assert not fabric.core.leases


def _crossing_grant() -> Fabric:
    """Rank 0 asked for ``g 1`` before the lease came, and was granted it with it."""
    fabric = Fabric(5)
    for number in (0, 1):
        fabric.begin(0, ("g", number), RING)
    for rank in (1, 2, 3):
        fabric.begin(rank, ("g", 0), RING)
    fabric.settle()
    assert fabric.begun["g", 1] == {0}
    for rank in RING.members:
        fabric.end(rank, ("g", 0))
    fabric.begin(2, ("g", 1), RING)
    return fabric


def test_who_asks_for_less_than_its_peer_was_granted_is_told_at_once() -> None:
    """Before any report comes; the others of the ring are told with theirs."""
    fabric = _crossing_grant()
    fabric.begin(1, ("g", 1), LEFT)
    fabric.arrive(1, fabric.up[1].popleft())
    refusal = next(item for item in fabric.down[1] if isinstance(item, RefuseAction))
    assert refusal.message == (
        "the ranks disagree about operation 1 of g: rank 1 asked for ring 0,1, rank 0 for"
        " ring 0,1,2,3"
    )
    fabric.settle()
    assert _disagreement(fabric) == {(0, None), (1, 1), (2, None)}
    fabric.begin(3, ("g", 1), RING)
    fabric.settle()
    assert _disagreement(fabric) == {(0, None), (1, 1), (2, None), (3, 3)}
    assert not fabric.core.statistics()["tombstones"]


def test_a_stranger_who_asks_for_what_was_granted_harms_only_itself() -> None:
    fabric = _crossing_grant()
    fabric.begin(4, ("g", 1), Configuration("ring", (0, 4)))
    fabric.settle()
    assert _disagreement(fabric) == {(4, 4)}
    assert fabric.core.statistics()["recalls"] == fabric.core.statistics()["tombstones"] == 0
    assert all(holdings.holds(RING) for holdings in fabric.holdings[:4])


def test_a_stranger_to_a_lease_harms_only_itself_with_its_number() -> None:
    """Rank 2 counts itself to a group whose members are in the middle of it."""
    for begun in ((0, 1), (0,)):
        fabric = Fabric(4)
        fabric.run(("g", 0), LEFT)
        for rank in begun:
            fabric.begin(rank, ("g", 1), LEFT)
        fabric.begin(2, ("g", 1), RING)
        fabric.settle()
        assert {(item.rank, item.reason) for item in fabric.refusals} == {(2, "disagree")}
        for rank in {0, 1} - set(begun):
            fabric.begin(rank, ("g", 1), LEFT)
        fabric.settle()
        assert fabric.begun["g", 1] == {0, 1}
        assert fabric.core.leases or fabric.core.holds, "they exchange data"
        for rank in (0, 1):
            fabric.end(rank, ("g", 1))
        fabric.settle()
        assert not fabric.core.leases
        assert len(fabric.refusals) == 1


def test_a_report_that_names_what_stands_asked_for_otherwise_has_the_lease_recalled() -> None:
    """The channel is new: nobody can know before rank 2 gives back what it holds."""
    fabric = Fabric(4)
    fabric.run(("a", 0), RING)
    fabric.run(("g", 0), RING)
    assert fabric.asked == 4, "no question named the channel"
    fabric.begin(2, ("g", 1), RING)
    fabric.begin(1, ("g", 1), LEFT)
    fabric.settle()
    assert not fabric.refusals
    fabric.give_back(2, RING)
    fabric.settle()
    assert _disagreement(fabric) == {(1, 1), (2, None)}


def test_who_disagrees_without_its_lease_makes_known_what_its_peers_began_on_it() -> None:
    """Rank 2 is no member of what rank 1 asked for, but rank 0 is, and has begun."""
    fabric = Fabric(4)
    fabric.run(("a", 0), RING)
    fabric.run(("g", 0), RING)
    fabric.begin(0, ("g", 1), RING)
    fabric.begin(1, ("g", 1), LEFT)
    fabric.give_back(2, RING)
    fabric.settle()
    assert not fabric.refusals, "all reports so far are about other operations"
    fabric.begin(2, ("g", 1), RING)
    fabric.settle()
    assert _disagreement(fabric) == {(0, None), (1, 1), (2, 2)}


def test_a_report_makes_known_which_channels_its_lease_carried() -> None:
    fabric = Fabric(4)
    fabric.run(("a", 0), RING)
    fabric.run(("g", 0), RING)
    fabric.begin(2, ("g", 1), RING)
    fabric.give_back(2, RING)
    fabric.settle()
    fabric.begin(1, ("g", 1), LEFT)
    fabric.settle()
    assert _disagreement(fabric) == {(1, 1), (2, None)}


def test_a_question_that_crossed_its_lease_makes_its_channel_known() -> None:
    fabric = Fabric(4)
    for rank in RING.members:
        fabric.begin(rank, ("a", 0), RING)
        fabric.arrive(rank, fabric.up[rank].popleft())
    for command in sorted(fabric.commands):
        fabric.act(fabric.core.switched(command, 0))
    fabric.commands.clear()
    fabric.begin(0, ("g", 1), RING)
    fabric.settle()
    assert fabric.begun["g", 1] == {0}
    fabric.begin(1, ("g", 1), LEFT)
    fabric.settle()
    assert {(item.rank, item.reason) for item in fabric.refusals} == {
        (0, "disagree"),
        (1, "disagree"),
    }


def test_who_has_begun_what_comes_later_does_not_disagree_with_its_own_question() -> None:
    """A channel whose operations need different circuits in turn."""
    fabric = Fabric(4)
    fabric.run(("g", 0), RING)
    fabric.begin(1, ("g", 1), LEFT)
    fabric.begin(1, ("g", 2), RING)
    fabric.settle()
    assert not fabric.refusals
    fabric.begin(0, ("g", 1), LEFT)
    fabric.settle()
    assert fabric.begun["g", 1] == {0, 1}
    assert not fabric.refusals


def test_no_lease_stays_where_members_disagree_about_the_channel_already() -> None:
    """Otherwise they would begin without asking what rank 1 has asked for otherwise."""
    fabric = Fabric(4)
    for rank in RING.members:
        fabric.begin(rank, ("g", 0), RING)
    fabric.begin(1, ("g", 1), LEFT)
    fabric.settle()
    assert not fabric.core.holds
    fabric.begin(0, ("g", 1), RING)
    fabric.settle()
    assert {(item.rank, item.reason) for item in fabric.refusals} == {
        (0, "disagree"),
        (1, "disagree"),
    }


def test_giving_up_says_who_may_have_begun_it_without_asking() -> None:
    fabric = Fabric(4)
    fabric.run(("a", 0), RING)
    fabric.begin(1, ("g", 0), LEFT)
    fabric.settle()
    fabric.act(fabric.core.abandon(1, ("g", 0), 0))
    fabric.settle()
    (refusal,) = fabric.refusals
    assert refusal.message == (
        "rank 1 gave up waiting for ring 0,1 (operation 0 of g): rank 0 has not asked for it"
        " (rank 0 holds ring 0,1,2,3, and may have begun it there without asking)"
    )


def test_what_all_have_begun_keeps_its_circuits_until_it_ends() -> None:
    fabric = Fabric(4)
    fabric.run(("a", 0), LEFT)
    for rank in (0, 1):
        fabric.begin(rank, ("a", 1), LEFT)
    fabric.end(0, ("a", 1))
    for rank in RING.members:
        fabric.begin(rank, ("w", 0), RING)
    fabric.settle()
    assert not fabric.begun["w", 0]
    assert fabric.core.leases == {circuit: {("a", 1)} for circuit in (Circuit(0, 1), Circuit(1, 0))}
    fabric.end(1, ("a", 1))
    fabric.settle()
    assert fabric.begun["w", 0] == {0, 1, 2, 3}


def test_what_only_some_have_begun_counts_as_asked() -> None:
    """The lone member waits without holding anything; its wait and the light it needs
    are told to it later.
    """
    fabric = Fabric(4)
    fabric.run(("a", 0), LEFT)
    fabric.begin(0, ("a", 1), LEFT)
    for rank in (1, 2):
        fabric.begin(rank, ("m", 0), PAIR)
    fabric.settle()
    assert fabric.begun["m", 0] == {1, 2}, "it needs the ports of a lone beginner"
    for rank in (1, 2):
        fabric.end(rank, ("m", 0))
    fabric.begin(1, ("a", 1), LEFT)
    fabric.now = 7
    fabric.settle()
    late = [grant for grant in fabric.grants if grant.request is None]
    assert [(grant.rank, grant.key, grant.wait_ns, grant.reconfigured) for grant in late] == [
        (0, ("a", 1), 7, 1)
    ]
    for rank in (0, 1):
        fabric.end(rank, ("a", 1))
    fabric.settle()
    assert not fabric.core.leases
    statistics = fabric.core.statistics()
    assert statistics["requests"] == statistics["grants"] == 6


def test_a_part_that_ended_before_its_peer_began_is_not_waited_for() -> None:
    """A buffered send, or the root of a broadcast."""
    for end_first in (True, False):
        fabric = Fabric(4)
        fabric.run(("0>1", 0), LEFT)
        fabric.begin(0, ("0>1", 1), LEFT)
        if end_first:
            fabric.end(0, ("0>1", 1))
        for rank in (1, 2):
            fabric.begin(rank, ("m", 0), PAIR)
        fabric.settle()
        if not end_first:
            fabric.end(0, ("0>1", 1))
        for rank in (1, 2):
            fabric.end(rank, ("m", 0))
        fabric.begin(1, ("0>1", 1), LEFT)
        fabric.settle()
        assert fabric.begun["0>1", 1] == {0, 1}
        fabric.end(1, ("0>1", 1))
        fabric.run(("m", 1), PAIR)
        assert not fabric.core.leases


def test_nobody_keeps_a_lease_for_which_others_wait_already() -> None:
    fabric = Fabric(4)
    for rank in RING.members:
        fabric.begin(rank, ("w", 0), RING)
        fabric.arrive(rank, fabric.up[rank].popleft())
    for rank in LEFT.members:
        fabric.begin(rank, ("a", 0), LEFT)
    fabric.settle()
    assert fabric.begun["w", 0] == set(RING.members)
    assert not fabric.core.holds, "the halves wait behind the ring"
    for rank in RING.members:
        fabric.end(rank, ("w", 0))
    fabric.settle()
    assert fabric.begun["a", 0] == {0, 1}
    assert fabric.core.statistics()["recalls"] == 0


def test_a_hint_gives_back_what_is_in_its_way_and_frees_it_of_the_others() -> None:
    fabric = Fabric(4)
    fabric.run(("w", 0), RING)
    fabric.hint(0, LEFT)
    fabric.settle()
    assert len(fabric.switches) == 1, "rank 1 has not hinted"
    fabric.hint(1, LEFT)
    fabric.settle()
    assert len(fabric.switches) == 2
    assert not fabric.holdings[2].holds(RING)
    fabric.run(("a", 0), LEFT)
    assert [grant.stall_ns for grant in fabric.grants if grant.key == ("a", 0)] == [0, 0]


def test_who_has_asked_for_what_its_peer_hints_is_asked_for_the_lease_in_the_way() -> None:
    """The last stage asks for the first pair of a step while it holds its ring.

    The switch is made in the window, and none is made that was not made without hints.
    """
    for hints in (True, False):
        fabric = Fabric(4)
        fabric.run(("w", 0), RIGHT)
        fabric.begin(2, ("m", 0), PAIR)
        fabric.settle()
        assert fabric.holdings[2].holds(RIGHT), "nobody else expects the pair"
        if hints:
            fabric.hint(1, PAIR)
        fabric.settle()
        assert len(fabric.switches) == 1 + hints
        assert fabric.holdings[3].holds(RIGHT) is not hints
        fabric.begin(1, ("m", 0), PAIR)
        fabric.settle()
        for rank in PAIR.members:
            fabric.end(rank, ("m", 0))
        fabric.run(("w", 1), RIGHT)
        statistics = fabric.core.statistics()
        assert statistics["reconfigurations"] == 3
        assert (statistics["speculative"], statistics["wasted"]) == (hints, 0)


def test_a_lease_that_came_after_the_hint_is_not_recalled_for_it() -> None:
    """Its member has hinted what comes later, and has not asked for it."""
    fabric = Fabric(4)
    fabric.begin(1, ("a", 0), LEFT)
    fabric.hint(1, PAIR)
    fabric.hint(2, PAIR)
    fabric.begin(0, ("a", 0), LEFT)
    fabric.settle()
    assert fabric.begun["a", 0] == {0, 1}
    assert fabric.core.statistics()["recalls"] == 0
    assert fabric.holdings[1].holds(LEFT)


def test_a_member_that_gave_its_part_back_can_still_run_with_the_others() -> None:
    fabric = Fabric(2)
    fabric.run(("a", 0), LEFT)
    fabric.begin(1, ("a", 1), LEFT)
    fabric.give_back(0, LEFT)
    fabric.begin(0, ("a", 1), LEFT)
    fabric.settle()
    assert fabric.begun["a", 1] == {0, 1}
    assert fabric.core.statistics()["reconfigurations"] == 1


def test_who_ran_ahead_on_a_lease_is_not_past_what_its_peers_ask_for() -> None:
    """Its report is here, but the lease lasts: what it has begun counts at the end."""
    trio = Configuration("ring", (0, 1, 2))
    fabric = Fabric(3)
    fabric.run(("t", 0), trio)
    for number in (1, 2):
        fabric.begin(0, ("t", number), trio)
    for rank in (0, 1):
        fabric.give_back(rank, trio)
    fabric.begin(1, ("t", 1), trio)
    fabric.begin(0, ("t", 3), trio)
    for rank in (1, 0):
        while fabric.up[rank]:
            fabric.arrive(rank, fabric.up[rank].popleft())
    fabric.settle()
    assert not fabric.refusals
    for number in (1, 2, 3):
        for rank in (1, 2):
            if (rank, number) != (1, 1):
                fabric.begin(rank, ("t", number), trio)
        fabric.settle()
        assert fabric.begun["t", number] == {0, 1, 2}
    assert not fabric.refusals


def test_what_was_given_up_or_refused_last_is_told_to_a_controller_that_knows_nothing() -> None:
    holdings = Holdings(Layout(1))
    for request in range(4):
        holdings.ask(request, ("a", request), LEFT)
    holdings.refused(0)
    holdings.refused(1)
    holdings.ask(4, ("b", 0), PAIR)
    holdings.give_up(4)
    expected = [(4, ("b", 0), PAIR), (1, ("a", 1), LEFT)]
    assert holdings.given_up() == expected
    holdings.present()
    assert holdings.given_up() == expected, "the next controller may end as well"
    holdings.refused(4)
    assert holdings.given_up() == [(1, ("a", 1), LEFT), (4, ("b", 0), PAIR)]
    holdings.answer(2, ("a", 2), LEFT, None)
    assert holdings.given_up() == [(4, ("b", 0), PAIR)], "who has begun a 2 is past a 1"


def test_late_and_repeated_messages_change_nothing() -> None:
    fabric = Fabric(4)
    fabric.run(("a", 0), LEFT)
    report = Report(0, {"a": 0})
    fabric.act(fabric.core.recalled(2, LEFT, report, 0))
    fabric.act(fabric.core.recalled(0, RIGHT, report, 0))
    fabric.act(fabric.core.recalled(0, LEFT, Report(9, {"a": 0}), 0))
    assert fabric.core.holds[LEFT].holders == {0, 1}
    fabric.hear(0, RecallAction(0, LEFT, 9))
    fabric.hear(0, RecallAction(0, RIGHT, 0))
    assert fabric.holdings[0].holds(LEFT)
    fabric.give_back(0, LEFT)
    fabric.hear(0, RecallAction(0, LEFT, 0))
    fabric.settle()
    fabric.run(("a", 1), LEFT)
    fabric.act(fabric.core.recalled(0, LEFT, report, 0))
    assert fabric.core.holds[LEFT].holders == {0, 1}, "a report of the last lease"


def test_a_dead_rank_ends_the_lease_and_is_named_to_those_under_way() -> None:
    fabric = Fabric(4)
    fabric.run(("w", 0), RING)
    for rank in (0, 1, 2):
        fabric.begin(rank, ("w", 1), RING)
    fabric.act(fabric.core.leave(3, "lost its connection to the controller", 0))
    recalls = [action for rank in (0, 1, 2) for action in fabric.down[rank]]
    assert all(
        isinstance(action, RecallAction)
        and action.reason == "rank 3 lost its connection to the controller"
        for action in recalls
    )
    fabric.settle()
    assert fabric.core.leases, "the others may still be exchanging"
    for rank in (0, 1, 2):
        fabric.end(rank, ("w", 1))
    fabric.settle()
    assert not fabric.core.leases
    fabric.run(("a", 0), LEFT)
    fabric.begin(0, ("w", 2), RING)
    fabric.settle()
    assert "but ring 0,1,2,3 (operation 2 of w) needs it" in fabric.refusals[-1].message


def test_the_next_program_on_the_same_controller_misses_nobody_of_the_last_one() -> None:
    core = ControllerCore(Layout(1), 2)
    for rank in (0, 1):
        assert core.register(rank) is None
    for rank in (0, 1):
        core.leave(rank, "has left", 0)
    assert core.register(0) is None
    assert core.ask(0, 0, ("a", 0), LEFT, 0) == []


def test_who_cannot_hold_releases_every_operation() -> None:
    core = ControllerCore(Layout(1), 2)
    core.ask(0, 0, ("a", 0), LEFT, 0, can_hold=True)
    core.ask(1, 0, ("a", 0), LEFT, 0)
    (grant, _) = core.switched(0, 50)
    assert isinstance(grant, GrantAction)
    assert grant.hold is None
    assert core.leases


@dataclass
class _Rank:
    program: list[tuple[OperationKey, Configuration]] = field(default_factory=list)
    next: int = 0


class RandomStory:
    """Any interleaving of ranks that run ahead, messages that are late or come twice,
    hints, and parts that end before the peers' begin.

    All ranks go through one global list of operations in order, each with up to three
    under way, so a run that stops has been stopped by the leases.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fabric = Fabric(6, random.choice([1, 1, 2, 3]))
        self.ranks = [_Rank() for _ in range(6)]
        self.old: list[tuple[int, tuple[object, ...] | Action]] = []
        known = random.choice([4, 6])
        groups = [
            Configuration("pair", tuple(random.sample(range(known), 2)))
            if random.random() < 0.5
            else Configuration("ring", tuple(random.sample(range(known), random.randint(2, 4))))
            for _ in range(random.randint(1, 4))
        ]
        counts: dict[str, int] = {}
        for _ in range(random.randint(1, 24)):
            configuration = random.choice(groups)
            name = f"{configuration.name}/{random.randint(0, 1)}"
            key = (name, counts.setdefault(name, 0))
            counts[name] += 1
            for rank in configuration.members:
                self.ranks[rank].program.append((key, configuration))

    def under_way(self, rank: int) -> list[OperationKey]:
        fabric = self.fabric
        return [
            key
            for key, _ in self.ranks[rank].program[: self.ranks[rank].next]
            if rank not in fabric.ended[key]
        ]

    def can_begin(self) -> list[int]:
        """Ranks with a next operation, whose channel has begun all before it."""
        return [
            rank
            for rank, state in enumerate(self.ranks)
            if state.next < len(state.program)
            and len(self.under_way(rank)) < 3
            and not any(
                key[0] == state.program[state.next][0][0] for key in self.fabric.waiting[rank]
            )
        ]

    def can_end(self, *, early: bool) -> list[tuple[int, OperationKey]]:
        fabric = self.fabric
        return [
            (rank, key)
            for rank in range(6)
            for key in self.under_way(rank)
            if rank in fabric.begun[key]
            and (early or fabric.begun[key] == set(fabric.needs[key].members))
        ]

    def step(self, rank: int) -> None:
        state = self.ranks[rank]
        state.next += 1
        self.fabric.now += 1
        self.fabric.begin(rank, *state.program[state.next - 1])

    def anything(self, early: float) -> None:
        """One thing that may happen now; ``early``: how often a part ends alone."""
        fabric, random = self.fabric, self.random
        chance = random.random()
        if chance < 0.25:
            for rank in random.sample(self.can_begin(), min(1, len(self.can_begin()))):
                self.step(rank)
        elif chance < 0.4:
            choices = self.can_end(early=random.random() < early)
            if choices:
                fabric.end(*random.choice(choices))
        elif chance < 0.45:
            rank = random.randrange(6)
            if self.ranks[rank].program:
                fabric.hint(rank, random.choice(self.ranks[rank].program)[1])
        elif chance < 0.65 and any(fabric.up):
            rank = random.choice([rank for rank in range(6) if fabric.up[rank]])
            message = fabric.up[rank].popleft()
            fabric.arrive(rank, message)
            if message[0] in ("release", "recalled"):
                self.old.append((rank, message))
        elif chance < 0.87 and any(fabric.down):
            rank = random.choice([rank for rank in range(6) if fabric.down[rank]])
            action = fabric.down[rank].popleft()
            fabric.hear(rank, action)
            self.old.append((rank, action))
        elif chance < 0.9 and self.old:
            rank, again = random.choice(self.old)
            if isinstance(again, tuple):
                fabric.arrive(rank, again)
            else:
                fabric.hear(rank, again)
        elif fabric.commands:
            command = random.choice(sorted(fabric.commands))
            del fabric.commands[command]
            fabric.now += 1
            fabric.act(fabric.core.switched(command, fabric.now))

    def check(self) -> None:
        """What holds at every moment."""
        core, fabric = self.fabric.core, self.fabric
        circuits = core.lit | set(core.moving.values())
        ports = {port for circuit in circuits for port in circuit.ports}
        assert len(ports) == 2 * len(circuits), "the circuits are no matching"
        assert (set(core.leases) | set(core.holds_by_circuit)) <= core.lit
        for rank, holdings in enumerate(fabric.holdings):
            for configuration in holdings.all():
                assert set(core.layout.circuits(configuration)) <= core.lit, (
                    f"rank {rank} may begin on {configuration.name} without light"
                )
        for key, members in fabric.begun.items():
            if members == set(fabric.needs[key].members) != fabric.ended[key]:
                assert set(core.layout.circuits(fabric.needs[key])) <= core.lit
        assert not fabric.refusals

    def finish(self) -> None:
        """Everybody goes on and everything comes to its end."""
        while True:
            self.fabric.settle()
            self.check()
            ending, ready = self.can_end(early=False), self.can_begin()
            for rank, key in ending:
                self.fabric.end(rank, key)
            for rank in ready:
                self.step(rank)
            if not ready and not ending:
                break
        assert all(state.next == len(state.program) for state in self.ranks), "a deadlock"
        assert not any(self.under_way(rank) for rank in range(6)), "a deadlock"
        counters = self.fabric.core.statistics()
        assert (counters["leased_circuits"], counters["queued"]) == (0, 0)
        assert counters["requests"] == counters["grants"]


@settings(max_examples=250, deadline=None)
@given(random=st.randoms(use_true_random=True))
def test_no_interleaving_tears_down_what_is_used_or_stops_for_ever(random: Random) -> None:
    story = RandomStory(random)
    early = random.random()
    for _ in range(150):
        story.anything(early)
        story.check()
    story.finish()
