"""The controller's decisions: exact accounts of small stories under a virtual clock,
and invariants under random ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from railx.fabric.circuits import Circuit, Configuration, Layout, Port
from railx.fabric.core import ControllerCore
from railx.fabric.decisions import state
from railx.fabric.decisions.state import (
    GIVEN_UP,
    OPEN_OPERATIONS,
    TOMBSTONES,
    Action,
    GrantAction,
    RefuseAction,
    SwitchAction,
)
from railx.fabric.holdings import OperationKey, Presentation, Report
from railx.fabric.serving.server import FirstSender, first_sender

RING = Configuration("ring", (0, 1, 2, 3))
LEFT = Configuration("ring", (0, 1))
RIGHT = Configuration("ring", (2, 3))
LATENCY = 50


def _is_matching(circuits: Iterable[Circuit]) -> bool:
    """Whether every port is used by one circuit at most."""
    ports = [port for circuit in circuits for port in circuit.ports]
    return len(set(ports)) == len(ports)


class Story:
    """A core with a switch of latency 50 and a clock that the test moves."""

    def __init__(self, ranks: int = 4, gpus_per_server: int = 1) -> None:
        self.core = ControllerCore(Layout(gpus_per_server), ranks)
        self.now = 0
        self.due: list[tuple[int, int]] = []
        self.grants: list[GrantAction] = []
        self.refusals: list[RefuseAction] = []
        self.switches: list[SwitchAction] = []

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, GrantAction):
                self.grants.append(action)
            elif isinstance(action, RefuseAction):
                self.refusals.append(action)
            else:
                self.switches.append(action)
                self.due.append((self.now + LATENCY, action.command))

    def until(self, time: int) -> None:
        while self.due and min(self.due)[0] <= time:
            self.now, command = min(self.due)
            self.due.remove((self.now, command))
            self.take(self.core.switched(command, self.now))
        self.now = time

    def ask(self, key: OperationKey, configuration: Configuration, *ranks: int) -> None:
        for rank in ranks or configuration.members:
            self.take(self.core.ask(rank, 100 + rank, key, configuration, self.now))

    def release(self, key: OperationKey, *ranks: int) -> None:
        for rank in ranks:
            self.take(self.core.release(rank, key, self.now))

    def hint(self, configuration: Configuration, *ranks: int) -> None:
        for rank in ranks:
            self.take(self.core.hint(rank, configuration, self.now))

    def granted(self, key: OperationKey) -> list[tuple[int, int, int]]:
        """(rank, wait, stall) of an operation's grants."""
        return [
            (grant.rank, grant.wait_ns, grant.stall_ns) for grant in self.grants if grant.key == key
        ]


def test_first_operation_pays_the_latency_and_the_next_ones_do_not() -> None:
    story = Story(ranks=2)
    for number in range(3):
        story.ask(("g", number), LEFT)
        story.until(story.now + LATENCY)
        story.release(("g", number), 0, 1)
    assert [story.granted(("g", number)) for number in range(3)] == [
        [(0, 0, 50), (1, 0, 50)],
        [(0, 0, 0), (1, 0, 0)],
        [(0, 0, 0), (1, 0, 0)],
    ]
    assert [grant.reconfigured for grant in story.grants] == [1, 1, 0, 0, 0, 0]
    assert story.core.statistics()["reconfigurations"] == 1


def test_nothing_starts_before_all_members_asked_and_waiting_is_told_from_stalling() -> None:
    story = Story(ranks=2)
    story.ask(("g", 0), LEFT, 0)
    story.until(30)
    assert story.switches == []
    story.ask(("g", 0), LEFT, 1)
    story.until(79)
    assert story.grants == []
    story.until(80)
    assert story.granted(("g", 0)) == [(0, 30, 50), (1, 0, 50)]


def test_disjoint_groups_switch_at_the_same_time() -> None:
    story = Story()
    story.ask(("a", 0), LEFT)
    story.ask(("b", 0), RIGHT)
    story.until(50)
    assert [stall for _, _, stall in story.granted(("a", 0)) + story.granted(("b", 0))] == [50] * 4


def test_ring_to_pairs_keeps_common_circuits_and_switches_both_halves_at_once() -> None:
    story = Story()
    story.ask(("w", 0), RING)
    story.until(50)
    story.release(("w", 0), 0, 1, 2, 3)
    story.ask(("a", 0), LEFT)
    story.ask(("b", 0), RIGHT)
    assert [switch.connect for switch in story.switches[1:]] == [(Circuit(1, 0),), (Circuit(3, 2),)]
    assert story.switches[1].disconnect == (Circuit(1, 2), Circuit(3, 0))
    story.until(100)
    assert [stall for _, _, stall in story.granted(("a", 0)) + story.granted(("b", 0))] == [50] * 4


def test_a_leased_circuit_stays_until_every_member_released_it() -> None:
    story = Story()
    story.ask(("w", 0), RING)
    story.until(50)
    story.release(("w", 0), 0, 1, 2)
    story.ask(("a", 0), LEFT)
    story.until(500)
    assert len(story.switches) == 1
    assert set(RING.members) == {member for circuit in story.core.lit for member in circuit}
    story.release(("w", 0), 3)
    story.until(600)
    assert story.granted(("a", 0)) == [(0, 450, 50), (1, 450, 50)]


def test_operations_on_the_same_circuits_share_them() -> None:
    story = Story(ranks=2)
    pair = Configuration("pair", (0, 1))
    story.ask(("0>1", 0), pair)
    story.ask(("1>0", 0), pair)
    story.until(50)
    assert len(story.switches) == 1
    assert {grant.key for grant in story.grants} == {("0>1", 0), ("1>0", 0)}
    story.release(("0>1", 0), 0, 1)
    assert story.core.leases == {Circuit(0, 1): {("1>0", 0)}}


def test_the_queue_is_kept_in_order_where_ports_overlap() -> None:
    story = Story()
    story.ask(("a", 0), LEFT)
    story.until(50)
    story.ask(("w", 0), RING)
    story.release(("a", 0), 0)
    story.ask(("b", 0), RIGHT)
    story.until(200)
    assert not story.granted(("b", 0)), (
        "a later operation must not overtake one that waits for its ports"
    )
    story.release(("a", 0), 1)
    story.until(250)
    story.release(("w", 0), 0, 1, 2, 3)
    story.until(300)
    assert [grant.key for grant in story.grants[2::2]] == [("w", 0), ("w", 0), ("b", 0)]


def test_a_hint_of_all_members_hides_the_latency() -> None:
    story = Story()
    story.ask(("w", 0), RING)
    story.until(50)
    story.release(("w", 0), 0, 1, 2, 3)
    story.hint(LEFT, 0)
    assert len(story.switches) == 1
    story.hint(LEFT, 1)
    story.until(80)
    story.ask(("a", 0), LEFT)
    story.until(100)
    assert story.granted(("a", 0)) == [(0, 0, 20), (1, 0, 20)], "the stall is L - W"
    assert [grant.reconfigured for grant in story.grants if grant.key == ("a", 0)] == [1, 1]
    assert story.core.statistics()["speculative"] == 1
    assert story.core.statistics()["mispredictions"] == 0


def test_a_hint_and_a_question_together_start_the_switch() -> None:
    story = Story(ranks=2)
    story.ask(("a", 0), LEFT, 0)
    story.until(10)
    story.hint(LEFT, 1)
    story.until(60)
    story.ask(("a", 0), LEFT, 1)
    assert story.granted(("a", 0)) == [(0, 60, 0), (1, 0, 0)]


def test_a_hint_ends_with_the_next_one_and_with_its_rank() -> None:
    story = Story()
    story.hint(LEFT, 0)
    story.hint(RING, 0)
    story.hint(LEFT, 1)
    story.hint(RIGHT, 2)
    story.take(story.core.leave(2, "lost its connection", 0))
    story.hint(RIGHT, 3)
    assert story.switches == []
    story.hint(LEFT, 0)
    assert len(story.switches) == 1


def test_a_hint_that_no_rank_of_the_job_can_mean_is_refused_and_changes_nothing() -> None:
    story = Story(ranks=2)
    story.hint(LEFT, 0)
    story.hint(RIGHT, 0)
    story.hint(RING, 0)
    assert [(item.rank, item.request, item.reason) for item in story.refusals] == [
        (0, None, "member"),
        (0, None, "rank"),
    ]
    assert [item.message for item in story.refusals] == [
        "rank 0 asked for ring 2,3, of which it is no member",
        "rank 0 asked for ring 0,1,2,3; allowed: ranks 0 to 1",
    ]
    statistics = story.core.statistics()
    assert (statistics["hints"], statistics["refusals"]) == (1, {"member": 1, "rank": 1})
    story.hint(LEFT, 1)
    assert len(story.switches) == 1, "what rank 0 hinted before still counts"
    story.core.leave(1, "lost its connection", 0)
    story.hint(LEFT, 1)
    assert len(story.refusals) == 2, "there is nobody to tell"


def test_a_wrong_hint_is_counted_and_the_operation_served_on_demand() -> None:
    story = Story()
    story.hint(RING, 0, 1, 2, 3)
    story.until(10)
    story.ask(("a", 0), LEFT)
    story.until(200)
    assert story.granted(("a", 0)) == [(0, 40, 50), (1, 40, 50)], (
        "first the wrong switch has to end, then the right one is made"
    )
    assert [grant.mispredicted for grant in story.grants] == [True, True]
    statistics = story.core.statistics()
    assert (
        statistics["mispredictions"],
        statistics["speculative"],
        statistics["wasted"],
        statistics["reconfigurations"],
    ) == (
        2,
        1,
        1,
        2,
    )


def test_a_hint_never_takes_leased_or_claimed_ports() -> None:
    story = Story()
    story.ask(("w", 0), RING)
    story.until(50)
    story.hint(LEFT, 0, 1)
    story.until(500)
    assert len(story.switches) == 1
    story.ask(("w", 1), RING)
    story.release(("w", 0), 0, 1, 2, 3)
    assert len(story.switches) == 1
    story.release(("w", 1), 0, 1, 2, 3)
    assert len(story.switches) == 1, "the ranks asked for something else, so their hints are gone"


def test_a_hint_waits_behind_the_queue() -> None:
    story = Story()
    story.ask(("a", 0), LEFT)
    story.until(50)
    story.ask(("m", 0), Configuration("ring", (1, 2)))
    story.hint(RIGHT, 2, 3)
    story.until(100)
    assert len(story.switches) == 1, (
        "the ports of rank 2 are promised to the operation that waits for rank 1"
    )
    story.release(("a", 0), 0, 1)
    assert story.switches[-1].connect == (Circuit(1, 2), Circuit(2, 1))
    story.until(150)
    story.release(("m", 0), 1, 2)
    assert story.switches[-1].connect == (Circuit(2, 3), Circuit(3, 2))


def test_two_rails_switch_at_the_same_time_and_are_both_needed() -> None:
    story = Story(gpus_per_server=2)
    story.ask(("w", 0), RING)
    assert [switch.rail for switch in story.switches] == [0, 1]
    story.take(story.core.switched(story.switches[0].command, 20))
    assert story.grants == []
    story.take(story.core.switched(story.switches[1].command, 30))
    assert {grant.stall_ns for grant in story.grants} == {30}
    assert {grant.generation for grant in story.grants} == {2}


def test_a_repeated_question_changes_nothing_and_is_answered_again() -> None:
    story = Story(ranks=2)
    story.ask(("a", 0), LEFT, 0)
    story.ask(("a", 0), LEFT, 0)
    assert story.core.statistics()["requests"] == 1
    story.ask(("a", 0), LEFT, 1)
    story.until(50)
    story.take(story.core.ask(0, 777, ("a", 0), LEFT, 60))
    assert [grant.request for grant in story.grants] == [100, 101, 777]
    story.release(("a", 0), 0, 0)
    assert story.core.leases, "a repeated release must not end the other member's part"
    story.release(("a", 0), 1)
    story.ask(("a", 0), LEFT, 0)
    assert "which has ended" in story.refusals[-1].message


def test_disagreement_is_an_error_for_everyone() -> None:
    story = Story()
    story.ask(("a", 0), LEFT, 0)
    story.ask(("a", 0), RING, 1)
    assert {(refusal.rank, refusal.request) for refusal in story.refusals} == {(0, 100), (1, 101)}
    assert all("disagree" in refusal.message for refusal in story.refusals)


def test_questions_that_make_no_sense_are_refused() -> None:
    story = Story(ranks=2)
    story.ask(("a", 0), RIGHT, 0)
    story.ask(("a", 0), RIGHT, 2)
    assert [refusal.message for refusal in story.refusals] == [
        "rank 0 asked for ring 2,3, of which it is no member",
        "rank 2 asked for ring 2,3; allowed: ranks 0 to 1",
    ]
    assert story.core.register(2) == "rank 2 registered; allowed: 0 to 1"


def test_a_dead_rank_is_an_error_for_those_who_wait_and_frees_what_it_held() -> None:
    story = Story()
    story.ask(("w", 0), RING)
    story.until(50)
    story.ask(("a", 0), LEFT, 1)
    story.release(("w", 0), 1, 2)
    story.take(story.core.leave(0, "lost its connection to the controller", 60))
    assert [(refusal.rank, refusal.request) for refusal in story.refusals] == [(3, None), (1, 101)]
    assert all(
        refusal.message.startswith("rank 0 lost its connection to the controller during ring ")
        for refusal in story.refusals
    )
    assert story.core.leases, "rank 3 may still be sending"
    story.release(("w", 0), 3)
    assert not story.core.leases
    story.ask(("a", 1), LEFT, 1)
    assert "but ring 0,1 (operation 1 of a) needs it" in story.refusals[-1].message
    story.ask(("b", 0), RIGHT)
    story.until(200)
    assert story.granted(("b", 0)), "others go on"


def test_giving_up_names_who_was_missing() -> None:
    story = Story()
    story.ask(("w", 0), RING, 0, 2)
    story.take(story.core.abandon(0, ("w", 0), 10))
    message = (
        "rank 0 gave up waiting for ring 0,1,2,3 (operation 0 of w): rank 1, 3 has not asked for it"
    )
    assert [(refusal.rank, refusal.message) for refusal in story.refusals] == [
        (0, message),
        (2, message),
    ]


def test_giving_up_names_who_holds_the_ports() -> None:
    story = Story()
    story.ask(("a", 0), LEFT)
    story.until(50)
    story.ask(("w", 0), RING)
    story.take(story.core.abandon(0, ("w", 0), 60))
    assert "its ports are in use (held by ring 0,1)" in story.refusals[0].message


class RandomStories(RuleBasedStateMachine):
    """Any interleaving of questions, switch reports, releases, hints and deaths, over
    groups chosen at random.

    All ranks go through one global list of operations in order, some ahead of others,
    so a run that stops has been stopped by the core.
    """

    @initialize(
        gpus_per_server=st.sampled_from([1, 2, 3]),
        groups=st.lists(
            st.tuples(
                st.sampled_from(["pair", "ring"]),
                st.lists(st.integers(0, 5), min_size=2, max_size=6, unique=True),
            ),
            min_size=1,
            max_size=12,
        ),
    )
    def begin(self, gpus_per_server: int, groups: list[tuple[str, list[int]]]) -> None:
        self.core = ControllerCore(Layout(gpus_per_server), 6)
        self.programs: dict[int, list[tuple[OperationKey, Configuration]]] = {
            rank: [] for rank in range(6)
        }
        counts: dict[str, int] = {}
        for kind, members in groups:
            configuration = Configuration(kind, tuple(members[:2] if kind == "pair" else members))  # type: ignore[arg-type]
            key = (configuration.name, counts.setdefault(configuration.name, 0))
            counts[configuration.name] += 1
            for rank in configuration.members:
                self.programs[rank].append((key, configuration))
        self.asked: dict[OperationKey, set[int]] = {}
        self.in_flight: dict[OperationKey, tuple[Configuration, set[int]]] = {}
        self.waiting: set[int] = set()
        self.commands: dict[int, SwitchAction] = {}
        self.dead: set[int] = set()
        self.grants = 0
        self.now = 0

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SwitchAction):
                self.on_switch(action)
            elif isinstance(action, GrantAction):
                self.on_grant(action)
            else:
                assert self.dead, action.message
                assert action.rank not in self.dead
                if action.request is not None:
                    self.waiting.discard(action.rank)
                    self.programs[action.rank] = self.programs[action.rank][1:]

    def on_switch(self, action: SwitchAction) -> None:
        leased = {
            circuit
            for configuration, _ in self.in_flight.values()
            for circuit in self.core.layout.circuits(configuration)
        }
        assert not leased & set(action.disconnect), "a circuit in use was torn down"
        assert {self.core.layout.rail(circuit.right) for circuit in action.connect} == {action.rail}
        self.commands[action.command] = action

    def on_grant(self, action: GrantAction) -> None:
        configuration = next(item for key, item in self.programs[action.rank] if key == action.key)
        assert self.asked[action.key] == set(configuration.members), (
            "granted before all members asked"
        )
        assert set(self.core.layout.circuits(configuration)) <= self.core.lit, (
            "granted without light"
        )
        assert action.wait_ns >= 0
        assert action.stall_ns >= 0
        self.in_flight.setdefault(action.key, (configuration, set()))[1].add(action.rank)
        self.waiting.discard(action.rank)
        self.programs[action.rank] = self.programs[action.rank][1:]
        self.grants += 1

    def ready(self) -> list[int]:
        busy = {rank for _, members in self.in_flight.values() for rank in members}
        return [
            rank
            for rank, steps in self.programs.items()
            if steps and rank not in self.waiting | self.dead | busy
        ]

    @precondition(lambda self: self.ready())
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(self.ready()))
        key, configuration = self.programs[rank][0]
        self.now += 1
        self.waiting.add(rank)
        self.asked.setdefault(key, set()).add(rank)
        self.take(self.core.ask(rank, self.now, key, configuration, self.now))

    @precondition(lambda self: self.commands)
    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(sorted(self.commands)))
        del self.commands[command]
        self.now += 1
        self.take(self.core.switched(command, self.now))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_flight)))
        members = self.in_flight[key][1]
        rank = data.draw(st.sampled_from(sorted(members)))
        members.remove(rank)
        if not members:
            del self.in_flight[key]
        self.now += 1
        self.take(self.core.release(rank, key, self.now))

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), right=st.booleans())
    def hint(self, data: st.DataObject, right: bool) -> None:
        rank = data.draw(st.sampled_from(self.ready()))
        choices = [item for _, item in self.programs[rank]]
        configuration = choices[0] if right else data.draw(st.sampled_from(choices))
        self.now += 1
        self.take(self.core.hint(rank, configuration, self.now))

    @precondition(lambda self: not self.dead)
    @rule(rank=st.integers(0, 5), chance=st.integers(0, 9))
    def die(self, rank: int, chance: int) -> None:
        if chance:
            return
        self.dead.add(rank)
        self.waiting.discard(rank)
        for key, (_, members) in list(self.in_flight.items()):
            members.discard(rank)
            if not members:
                del self.in_flight[key]
        self.now += 1
        self.take(self.core.leave(rank, "has left", self.now))

    @rule()
    def pass_time(self) -> None:
        self.now += 1

    @invariant()
    def circuits_are_a_matching(self) -> None:
        if hasattr(self, "core"):
            assert _is_matching(self.core.lit | set(self.core.moving.values()))
            assert set(self.core.leases) <= self.core.lit
            assert set(self.core.active.values()) == self.core.lit
            held = {key for keys in self.core.leases.values() for key in keys}
            assert {
                key for key in self.in_flight if self.core.layout.circuits(self.in_flight[key][0])
            } <= held

    def teardown(self) -> None:
        """Whatever was going on comes to an end once everybody goes on: no deadlock,
        nobody left behind.
        """
        if not hasattr(self, "core"):
            return
        for _ in range(10_000):
            if self.commands:
                command = min(self.commands)
                del self.commands[command]
                self.take(self.core.switched(command, self.now))
            elif self.in_flight:
                key, (_, members) = next(iter(self.in_flight.items()))
                rank = members.pop()
                if not members:
                    del self.in_flight[key]
                self.take(self.core.release(rank, key, self.now))
            elif self.ready():
                rank = self.ready()[0]
                key, configuration = self.programs[rank][0]
                self.waiting.add(rank)
                self.asked.setdefault(key, set()).add(rank)
                self.take(self.core.ask(rank, 0, key, configuration, self.now))
            else:
                break
        alive = [rank for rank in self.programs if rank not in self.dead]
        assert not any(self.programs[rank] for rank in alive)
        assert not self.core.leases
        assert not self.core.statistics()["queued"]
        assert self.core.statistics()["grants"] == self.grants


RandomStories.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestRandomStories = RandomStories.TestCase


def test_giving_up_a_granted_operation_is_its_release() -> None:
    story = Story(ranks=2)
    story.ask(("a", 0), LEFT)
    story.until(50)
    story.take(story.core.abandon(0, ("a", 0), 60))
    assert story.core.leases, "the other member has it under way"
    story.release(("a", 0), 1)
    assert not story.core.leases
    assert not story.refusals


def test_a_question_behind_its_own_end_is_refused_and_nobody_waits_for_it() -> None:
    story = Story(ranks=2)
    story.take(story.core.abandon(0, ("a", 0), 0))
    story.ask(("a", 0), LEFT, 1, 0)
    assert {(refusal.rank, refusal.reason) for refusal in story.refusals} == {
        (0, "abandoned"),
        (1, "abandoned"),
    }
    assert story.core.statistics()["open"] == 0


def test_who_comes_late_to_a_failed_operation_is_told_at_once() -> None:
    story = Story()
    story.ask(("w", 0), RING, 0, 2)
    story.take(story.core.abandon(0, ("w", 0), 10))
    assert story.core.statistics()["tombstones"] == 1
    story.ask(("w", 0), RING, 1)
    story.ask(("w", 0), RING, 3)
    assert len({refusal.message for refusal in story.refusals}) == 1
    assert [refusal.rank for refusal in story.refusals] == [0, 2, 1, 3]
    statistics = story.core.statistics()
    assert (statistics["tombstones"], statistics["refusals"]) == (0, {"abandoned": 4})


def test_one_process_of_a_rank_at_a_time_and_no_dead_one_again() -> None:
    core = ControllerCore(Layout(1), 2)
    assert core.register(0, 7) is None
    assert core.register(1, 8) is None
    assert core.register(0, 9) == "rank 0 is already registered"
    core.leave(0, "lost its connection", 0)
    assert core.register(0, 7) == "rank 0 lost its connection; allowed: a new process"
    assert core.register(0, 9) is None
    late = core.register(1, 8, returning=True)
    assert late == "rank 1 is already registered"
    core.leave(1, "lost its connection", 0)
    assert "does not wait for it any more" in str(core.register(1, 10, returning=True))


def test_a_rank_that_came_back_is_not_answered_for_its_last_life() -> None:
    story = Story()
    for rank in range(4):
        story.core.register(rank, rank)
    story.ask(("a", 0), LEFT)
    story.until(50)
    story.take(story.core.leave(0, "lost its connection", 60))
    assert story.core.register(0, 9) is None
    grants = len(story.grants)
    story.ask(("a", 0), LEFT, 0)
    assert len(story.grants) == grants
    assert story.refusals[-1].reason == "ended"


def test_the_next_program_begins_anew() -> None:
    """It may use the names of the last, whatever that asked for, gave up or heard."""
    story = Story(ranks=2)
    core, pair = story.core, Configuration("pair", (0, 1))
    for life in (0, 10):
        for rank in LEFT.members:
            assert core.register(rank, life + rank) is None
        story.ask(("a", 0), LEFT)
        story.ask(("b", 0), LEFT)
        story.until(story.now + 50)
        story.release(("a", 0), 0, 1)
        assert first_sender(core, 0, {"c": (1, 0)}) is None
        core.ask(1, 300, ("c", 0), pair, 50)
        assert first_sender(core, 0, {"c": (1, 0)}) == FirstSender(1, ("c", 0))
        story.ask(("d", 0), LEFT) if life else core.abandon(0, ("d", 0), 50)
        for rank in LEFT.members:
            core.leave(rank, "has left", 60)
        assert len(story.granted(("a", 0))) == len(story.granted(("b", 0))) == 2 + 2 * (life > 0)
    assert not story.refusals


def test_a_lost_port_ends_its_leases_and_names_itself_until_it_is_back() -> None:
    story = Story()
    story.ask(("a", 0), LEFT)
    story.ask(("b", 0), RIGHT)
    story.until(50)
    story.ask(("w", 0), RING, 0)
    story.take(story.core.ports_lost([Port(1, "left")], "dust", 60))
    assert {(refusal.rank, refusal.request) for refusal in story.refusals} == {
        (0, 100),
        (0, None),
        (1, None),
    }
    assert all(
        "the left port of GPU 1 on rail 0 is lost (dust)" in r.message for r in story.refusals
    )
    assert story.core.lit == {Circuit(1, 0), Circuit(2, 3), Circuit(3, 2)}
    assert story.core.leases.keys() == story.core.lit, "nothing else is touched"
    story.release(("a", 0), 0, 1)
    story.ask(("a", 1), LEFT, 0, 1)
    assert [refusal.reason for refusal in story.refusals[-2:]] == ["port", "port"]
    story.until(70)
    story.take(story.core.ports_back([Port(1, "left")], 70))
    story.ask(("a", 2), LEFT)
    story.until(150)
    assert story.granted(("a", 2)) == [(0, 0, 50), (1, 0, 50)]
    assert story.core.statistics()["failures"] == {"switches": 0, "ports": 1, "ranks": 0}


def test_a_port_that_is_lost_after_the_recall_is_told_to_those_under_way() -> None:
    core = ControllerCore(Layout(1), 3)
    for rank in LEFT.members:
        core.ask(rank, rank, ("a", 0), LEFT, 0, can_hold=True)
    core.switched(0, 0)
    other = Configuration("ring", (1, 2))
    recalls = core.ask(1, 5, ("b", 0), other, 0) + core.ask(2, 6, ("b", 0), other, 0)
    assert len(recalls) == 2
    core.ports_lost([Port(0, "left")], "dust", 0)
    # Both have begun another one without asking.
    report = Report(0, {"a": 1}, frozenset({("a", 1)}), 1)
    assert core.recalled(0, LEFT, report, 0) == []
    told = [item for item in core.recalled(1, LEFT, report, 0) if isinstance(item, RefuseAction)]
    assert [(item.rank, item.request, item.reason) for item in told] == [
        (0, None, "port"),
        (1, None, "port"),
    ]
    assert all("the left port of GPU 0 on rail 0 is lost (dust)" in item.message for item in told)


def test_a_failed_command_is_an_error_for_who_waits_and_tried_again_for_the_next() -> None:
    story = Story(ranks=2)
    story.ask(("a", 0), LEFT)
    story.take(story.core.switch_failed(0, "no answer", 10))
    assert [refusal.message for refusal in story.refusals] == [
        "the switch of rail 0 failed (no answer) for ring 0,1 (operation 0 of a)"
    ] * 2
    story.due.clear()
    story.take(story.core.switched(0, 10))
    assert not story.core.lit, "it was not carried out, whatever comes later"
    story.ask(("a", 1), LEFT)
    story.until(100)
    assert len(story.granted(("a", 1))) == 2


def test_a_restarted_controller_waits_for_all_and_goes_on_with_what_was_under_way() -> None:
    lit = [Circuit(0, 1), Circuit(1, 0)]
    core = ControllerCore(Layout(1), 3, active=lit, recovering=True)
    assert core.awaited == {0, 1, 2}
    other = Configuration("ring", (1, 2))
    begun = Presentation({"a": (LEFT, 4)}, frozenset({("a", 4)}))
    for rank in (0, 1, 2):
        assert core.register(rank, rank, returning=True) is None
    assert core.ask(2, 1, ("b", 0), other, 0)[0].reason == "recovery"  # type: ignore[union-attr]
    assert core.present(2, Presentation(), 0) == []
    assert core.present(0, begun, 0) == []
    assert core.ask(2, 2, ("b", 0), other, 0) == []
    assert core.present(1, begun, 0) == []
    assert core.ask(1, 3, ("b", 0), other, 0) == [], "its circuits are in use"
    assert core.leases == {circuit: {("a", 4)} for circuit in lit}
    assert core.release(0, ("a", 4), 0) == []
    (switch,) = core.release(1, ("a", 4), 0)
    assert isinstance(switch, SwitchAction)
    assert switch.disconnect == tuple(lit)


def test_who_does_not_present_in_time_is_dead() -> None:
    core = ControllerCore(Layout(1), 2, active=[Circuit(0, 1), Circuit(1, 0)], recovering=True)
    core.register(0, 5, returning=True)
    core.present(0, Presentation({"a": (LEFT, 0)}, frozenset({("a", 0)})), 0)
    core.register(1, 6, returning=True)
    (told,) = core.end_recovery(0)
    assert isinstance(told, RefuseAction)
    assert "rank 1 did not come back after the controller was restarted" in told.message
    assert core.gone.get(1) is not None
    assert core.register(1, 6) is not None
    assert core.register(1, 7) is None


@pytest.mark.parametrize("presented", [False, True])
def test_who_dies_during_a_recovery_is_not_waited_for(presented: bool) -> None:
    core = ControllerCore(Layout(1), 2, active=[Circuit(0, 1), Circuit(1, 0)], recovering=True)
    for rank in LEFT.members:
        core.register(rank, rank, returning=True)
    begun = Presentation({"a": (LEFT, 0)}, frozenset({("a", 0)}))
    if presented:
        core.present(1, begun, 0)
    assert core.leave(1, "lost its connection", 0) == []
    (told,) = core.present(0, begun, 0)
    assert isinstance(told, RefuseAction)
    assert "rank 1 lost its connection during ring 0,1 (operation 0 of a)" in told.message
    core.release(0, ("a", 0), 0)
    assert not core.recovering
    assert not core.leases


def _recovering() -> ControllerCore:
    """A restarted controller to which ranks 0 and 1 have to present what they began."""
    core = ControllerCore(Layout(1), 3, active=[Circuit(0, 1), Circuit(1, 0)], recovering=True)
    for rank in range(3):
        core.register(rank, rank, returning=True)
    core.present(2, Presentation(), 0)
    return core


def _come_back(core: ControllerCore, rank: int, begun: int, asks: int | None = None) -> None:
    """Present, and say that the last operation was given up."""
    core.present(rank, Presentation({"a": (LEFT, begun)}), 0)
    if asks is not None:
        core.abandon(rank, ("a", asks), 0)
        core.ask(rank, 9, ("a", asks), LEFT, 0)


def test_nobody_is_waited_for_that_is_past_an_operation() -> None:
    """Of what it has not begun the last was given up, the others were refused to it."""
    for first in (0, 1):
        core = _recovering()
        for rank in (first, 1 - first):
            _come_back(core, rank, *((3, 7) if rank == 0 else (7,)))
        assert not core.recovering
        assert core.statistics()["open"] == 0, f"rank {first} came first"


def test_what_was_asked_during_a_recovery_was_not_begun() -> None:
    core = _recovering()
    core.ports_lost([Port(1, "left")], "pulled out", 0)
    core.present(0, Presentation({"a": (LEFT, 3)}), 0)
    (refusal,) = core.ask(0, 5, ("a", 7), LEFT, 0)
    assert isinstance(refusal, RefuseAction)
    assert refusal.reason == "port"
    core.ports_back([Port(1, "left")], 0)
    core.present(1, Presentation({"a": (LEFT, 3)}), 0)
    assert core.statistics()["open"] == 0, "rank 0 began nothing behind operation 3"


def test_who_goes_on_without_an_operation_is_not_waited_for() -> None:
    story = Story(ranks=3)
    story.ask(("a", 0), LEFT, 1)
    story.ask(("a", 2), LEFT, 0)
    assert [(item.rank, item.request, item.reason) for item in story.refusals] == [
        (1, 101, "ended")
    ]
    assert "rank 0 has gone on without ring 0,1 (operation 0 of a)" in story.refusals[0].message
    story.ask(("a", 2), LEFT, 1)
    story.until(100)
    assert len(story.granted(("a", 2))) == 2


def test_who_comes_to_a_failed_operation_will_not_come_to_one_before_it() -> None:
    """A new process of rank 1 begins behind what its peer waits for."""
    story = Story(ranks=3)
    story.ask(("a", 0), LEFT, 0)
    story.ask(("a", 1), LEFT, 0)
    story.take(story.core.abandon(0, ("a", 1), 0))
    story.ask(("b", 0), Configuration("ring", (0, 2)))
    story.ask(("a", 1), LEFT, 1)
    assert [(item.rank, item.reason) for item in story.refusals] == [
        (0, "abandoned"),
        (0, "ended"),
        (1, "abandoned"),
    ]
    assert "rank 1 has gone on without ring 0,1 (operation 0 of a)" in story.refusals[1].message
    assert story.core.statistics()["open"] == 1, "nothing but what ranks 0 and 2 wait for"


def test_open_operations_and_tombstones_are_bounded() -> None:
    core = ControllerCore(Layout(1), 2)
    for number in range(OPEN_OPERATIONS):
        assert core.ask(0, number, (f"g{number}", 0), LEFT, 0) == []
    (refusal,) = core.ask(0, 9999, ("one more", 0), LEFT, 0)
    assert isinstance(refusal, RefuseAction)
    assert refusal.reason == "limit"
    for number in range(TOMBSTONES + 10):
        core.ask(1, number, ("t", number), LEFT, 0)
        core.abandon(1, ("t", number), 0)
    assert core.statistics()["tombstones"] == TOMBSTONES


def test_what_is_remembered_of_a_rank_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest is kept, or the first of what the next report or recovery uses up."""
    monkeypatch.setattr(state, "CHANNELS", 8)
    core = ControllerCore(Layout(1), 2)
    for number in range(GIVEN_UP + 10):
        core.abandon(0, ("a", number), 0)
    assert list(core.given_up[0]) == [("a", number) for number in range(10, GIVEN_UP + 10)]
    for number in range(20):
        core.ask(0, number, (f"c{number}", 0), LEFT, 0)
    assert list(core.last[0]) == [f"c{number}" for number in range(12, 20)]
    for rank in LEFT.members:
        core.ask(rank, 50, ("a", GIVEN_UP + 20), LEFT, 0, can_hold=True)
    core.switched(0, 0)
    recovering = ControllerCore(Layout(1), 2, recovering=True)
    for number in range(2 * OPEN_OPERATIONS + 10):
        core.release(0, ("x", number), 0)
        recovering.release(0, ("x", number), 0)
    assert len(core.holds[LEFT].released) == OPEN_OPERATIONS
    assert len(recovering.ended_early) == 2 * OPEN_OPERATIONS


def test_an_event_costs_the_same_however_many_other_jobs_wait() -> None:
    """Counted, not timed: the lines of the core that one exchange runs through."""

    def lines(others: int) -> int:
        core = ControllerCore(Layout(1), 4 + 2 * others)
        for other in range(others):
            pair = Configuration("ring", (4 + 2 * other, 5 + 2 * other))
            core.ask(4 + 2 * other, 0, (f"o{other}", 0), pair, 0)
            core.hint(5 + 2 * other, pair, 0)
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        sys.settrace(trace)
        try:
            for rank in (0, 1):
                core.hint(rank, LEFT, 0)
            for rank in (0, 1):
                core.ask(rank, rank, ("a", 0), LEFT, 0)
            for command in list(core.commands):
                if core.commands[command].connect[0].right in (0, 1):
                    core.switched(command, 0)
            for rank in (0, 1):
                core.release(rank, ("a", 0), 0)
            core.leave(0, "has left", 0)
        finally:
            sys.settrace(None)
        return count

    few, many = lines(2), lines(200)
    assert many - few <= 2 * 198, "the test's own loop over commands, and nothing more"
