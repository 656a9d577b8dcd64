"""Every state that a small job can reach, with its faults.

``make explore`` goes through all scenarios; the tests go through small parts. A
depth-first search takes each event in each state of a :class:`tests.fabric.world.World`
once. No event may lead back to an earlier state of the run, so every run ends.

Fewer states, the same verdicts (``reduced``). What a rank does by itself (it hears its
next message, begins, ends, hints, listens, gives up, dies, or a message on its way down
is doubled or late) touches that rank and the end of its queue to the core, nothing
else. So it commutes with all that the core, the switches and other ranks do. In a state
where such events of one rank are all that can ever happen to it before one of them does
(:func:`_alone`), the search takes only these (a persistent set). What is left out is
the same runs in another order, and nothing that is checked can be lost with them:

* a run that has none of these events can have one of them before it, and it breaks the
  same rule then. What is used or held only grows by it, because circuits count until
  the core has been told of their end; the core itself is untouched;
* a run in which one of them comes later has the same states from there on when it comes
  first;
* where nothing goes on any more, none of them was left to do: final states are the same
  ones, and so is what is checked there;
* a run without end stays one with an event before it, so it would still close a circle.

A restart, and a connection that may break, can happen to a rank at any time and cut off
what it has not heard: while one of these is left, nothing is left out. A test compares
final states and verdicts with and without, for small jobs with every fault and for the
mutants of the core.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random
from typing import Any

from railx.fabric.circuits import Configuration, Port
from tests.fabric.fingerprint import fingerprint
from tests.fabric.world import FAULTS, Event, Rank, Scenario, Violation, World

__all__ = ["SCENARIOS", "Exploration", "Search", "explore", "random_scenario", "wander"]


@dataclass
class Exploration:
    """What a search found: states, events taken, the longest run, the states in which
    nothing is left to do, and whether it went through everything.
    """

    scenario: Scenario
    states: int = 0
    events: int = 0
    longest: int = 0
    complete: bool = False
    final: set[int] = field(default_factory=set)

    @property
    def ends(self) -> int:
        """How many final states there are."""
        return len(self.final)


class Search:
    """A depth-first search that can stop and go on."""

    def __init__(
        self, scenario: Scenario, draw: Random | None = None, *, reduced: bool = True
    ) -> None:
        """``draw`` shuffles what is tried first, which matters where not all is."""
        self.found = Exploration(scenario)
        self._draw, self._reduced = draw, reduced
        world = World(scenario)
        first = fingerprint(world)
        # States seen, and those of the run under way.
        self._seen, self._here = {first}, {first}
        self._path: list[tuple[World, int, Iterator[Event], Event]] = []
        self._path.append((world, first, iter(self._options(world)), ("start",)))

    def go_on(self, limit: int) -> Exploration:
        """Search until ``limit`` states were seen in all, or everything was.

        Raises Violation with the events that lead to a state that must not be.
        """
        found, path, seen, here = self.found, self._path, self._seen, self._here
        while path and len(seen) < limit:
            world, place, events, _ = path[-1]
            event = next(events, None)
            if event is None:
                here.discard(place)
                path.pop()
                continue
            after = world.copy()
            try:
                after.take(event)
                found.events += 1
                number = fingerprint(after)
                if number in seen:
                    if number in here:
                        raise Violation("a run that never ends")
                    continue
                after.check()
                seen.add(number)
                options = self._options(after)
            except Violation as error:
                steps = [str(step) for *_, step in path[1:]] + [str(event)]
                raise Violation("\n".join([str(error), *steps])) from error
            here.add(number)
            path.append((after, number, iter(options), event))
            found.longest = max(found.longest, len(path))
        found.states, found.complete = len(seen), not path
        return found

    def _options(self, world: World) -> list[Event]:
        """What is tried in a state: all that may happen, or enough of it."""
        events = _all_events(world, self.found)
        options = (_enough(world, events) or events) if self._reduced else events
        if self._draw is not None:
            self._draw.shuffle(options)
        return options


def explore(
    scenario: Scenario, limit: int, draw: Random | None = None, *, reduced: bool = True
) -> Exploration:
    """Go through the states of a scenario, at most ``limit`` of them, in one go."""
    return Search(scenario, draw, reduced=reduced).go_on(limit)


#: Events of a rank alone; faults of a message are so on its way down.
_OWN = frozenset({"down", "begin", "end", "hint", "listen", "die", "impatient", "give up"})
_OF_MESSAGES = frozenset({"double", "delay"})


def _enough(world: World, events: list[Event]) -> list[Event] | None:
    """The events of one rank, where they are enough; of several the one with fewest."""
    if world.faults.get("restart") or world.faults.get("lose") or world.core.recovering:
        return None
    best: list[Event] | None = None
    own: dict[int, list[Event]] = {}
    goes_on: set[int] = set()
    for event in events:
        name = event[0]
        if name in _OWN:
            own.setdefault(event[1], []).append(event)
            if name in ("down", "begin", "end", "listen"):
                goes_on.add(event[1])
        elif (name == "stray" and not world.ranks[event[1]].stray[event[2]][0]) or (
            name in _OF_MESSAGES and event[2] == "down"
        ):
            own.setdefault(event[1], []).append(event)
    for number in goes_on:
        mine = own[number]
        if (best is None or len(mine) < len(best)) and _alone(world, number, mine):
            best = mine
    return best


def _alone(world: World, number: int, mine: list[Event]) -> bool:
    """Whether nothing else can happen to a rank before one of its own events.

    Its connection stays, no operation under way waits for a peer before it can end, and
    where it has nothing to hear, nothing that changes it can come: it holds and asks
    for nothing, and the core has nothing to tell it.
    """
    rank = world.ranks[number]
    if not rank.connected or not rank.known or rank.broken:
        return False
    ends = {event[2] for event in mine if event[0] == "end"}
    if any(key not in rank.over and key not in ends for key in rank.begun):
        return False
    return bool(rank.down) or _hears_nothing(world, number, rank)


def _hears_nothing(world: World, number: int, rank: Rank) -> bool:
    core, holdings = world.core, rank.holdings
    return (
        not holdings._leases
        and not holdings._asked
        and not holdings._given_up
        and rank.listening is None
        and not any(up for up, _ in rank.stray)
        and all(message[0] == "release" for message in rank.up)
        and not any(
            number in hold.holders or number in hold.reports for hold in core.holds.values()
        )
        and not any(
            number in operation.asked and not operation.granted
            for operation in core.by_member.get(number, {}).values()
        )
    )


def wander(scenario: Scenario, draw: Random, chance: float = 0.05, *, late: float = 1.0) -> int:
    """One random run of a job of any size to its end; returns how many events it had.

    ``chance``: how often a fault happens, as long as some are left. ``late``: how often
    a message that was doubled or delayed may come at all, while others go on. Raises
    Violation as ``explore``.
    """
    world, found, path = World(scenario), Exploration(scenario), list[Event]()
    try:
        while True:
            faults = world.fault_events() if draw.random() < chance else []
            events = faults or _all_events(world, found, faults=False)
            if draw.random() >= late:
                events = [event for event in events if event[0] != "stray"] or events
            if not events:
                return len(path)
            path.append(draw.choice(events))
            world.take(path[-1])
            world.check()
    except Violation as error:
        raise Violation("\n".join([str(error), *map(str, path)])) from error


def random_scenario(draw: Random) -> Scenario:
    """A job of up to eight ranks in servers of one to three, and some faults."""
    ranks = draw.randint(2, 8)
    groups = [
        Configuration("pair", tuple(draw.sample(range(ranks), 2)))
        if draw.random() < 0.5
        else Configuration("ring", tuple(draw.sample(range(ranks), draw.randint(2, min(5, ranks)))))
        for _ in range(draw.randint(1, 5))
    ]
    counts: Counter[str] = Counter()
    operations = []
    for _ in range(draw.randint(2, 16)):
        configuration = draw.choice(groups)
        name = f"{configuration.name}/{draw.randint(0, 1)}"
        operations.append(((name, counts[name]), configuration))
        counts[name] += 1
    kinds = draw.sample(FAULTS, draw.choice([0, 1, 1, 2, 3, len(FAULTS)]))
    return Scenario(
        "random",
        ranks,
        tuple(operations),
        tuple((name, draw.randint(1, 3)) for name in kinds),
        ahead=draw.randint(1, 3),
        hints=draw.random() < 0.5,
        gpus_per_server=draw.choice([1, 1, 2, 3]),
        ports=tuple(Port(draw.randrange(ranks), side) for side in ("left", "right")),
    )


def _all_events(world: World, found: Exploration, *, faults: bool = True) -> list[Event]:
    """What may happen next; giving up only where nothing else goes on."""
    events = world.events()
    if not events:
        world.check_end()
        events = world.give_ups()
        if not events:
            found.final.add(fingerprint(world))
            world.check_final()
    return events + world.fault_events() if faults else events


def _ring(*members: int) -> Configuration:
    return Configuration("ring", members)


def _pair(low: int, high: int) -> Configuration:
    return Configuration("pair", (low, high))


#: DP 2 x PP 2: two pipelines 0 - 2 and 1 - 3, data-parallel groups (0, 1) and (2, 3).
_STEP = (
    (("02", 0), _pair(0, 2)),
    (("13", 0), _pair(1, 3)),
    (("01", 0), _ring(0, 1)),
    (("23", 0), _ring(2, 3)),
    (("02", 1), _pair(0, 2)),
    (("13", 1), _pair(1, 3)),
)
#: Two groups that share both ports of GPU 1.
_SHARED = (
    (("a", 0), _ring(0, 1)),
    (("b", 0), _ring(1, 2)),
    (("a", 1), _ring(0, 1)),
    (("b", 1), _ring(1, 2)),
    (("a", 2), _ring(0, 1)),
    (("b", 2), _ring(1, 2)),
)
_PORTS = (Port(1, "left"), Port(1, "right"))


#: Rank 2 receives three times from any source, of two groups that share its left port.
_ANY = (
    (("02", 0), _pair(0, 2)),
    (("12", 0), _pair(1, 2)),
    (("02", 1), _pair(0, 2)),
)


def _scenarios() -> Iterator[Scenario]:
    jobs: tuple[tuple[str, int, Any, tuple[tuple[int, int], ...], tuple[Port, ...]], ...] = (
        ("dp2 pp2", 4, _STEP, (), _PORTS),
        ("shared port", 3, _SHARED, (), _PORTS),
        ("any source", 3, _ANY, ((2, 3),), (Port(2, "left"), Port(0, "right"))),
    )
    for name, ranks, operations, listens, ports in jobs:
        job = Scenario(name, ranks, operations, ports=ports, listens=listens)
        yield job
        yield replace(job, name=f"{name}, two ahead", ahead=2)
        yield replace(job, name=f"{name}, hints", hints=True)
        for fault, count in product(FAULTS, (1, 2)):
            faults: tuple[tuple[str, int], ...] = ((fault, count),)
            if fault == "return":
                faults = (("die", count), ("return", count))
            yield replace(job, name=f"{name}, {count} {fault}", faults=faults)
        every = tuple((fault, 2) for fault in FAULTS)
        yield replace(job, name=f"{name}, 2 of all", faults=every, ahead=2)


SCENARIOS = {scenario.name: scenario for scenario in _scenarios()}
#: So many states of each scenario at first, and twice as many in each later turn.
_FIRST = 2000
#: No scenario takes more than this part of all states while others wait.
_SHARE = 10


def main(arguments: list[str] | None = None) -> int:
    """The command line: all scenarios, and what was found.

    After a look at each, those with fewer faults come before those with more. Among
    equals they take turns, so that small ones end and leave the rest to the others;
    what is left at last is for those that were cut. Ctrl-C ends the search with what it
    has.
    """
    parser = argparse.ArgumentParser(description="explore the states of small jobs")
    parser.add_argument("--states", type=int, default=1_000_000, help="at most, in all")
    parser.add_argument("--only", default="", help="the scenarios whose name begins so")
    options = parser.parse_args(arguments)
    searches = [Search(item) for name, item in SCENARIOS.items() if name.startswith(options.only)]
    begin, left = time.process_time(), options.states
    by_faults: dict[int, list[Search]] = {}
    for search in searches:
        by_faults.setdefault(_faults(search.found.scenario), []).append(search)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            left -= _take_turns(searches, left, _FIRST)
            for _, those in sorted(by_faults.items()):
                left -= _take_turns(those, left, options.states // _SHARE)
            left -= _take_turns(searches, left, options.states)
    except Violation as error:
        print(error, file=sys.stderr)
        return 1
    cut = [search.found for search in searches if not search.found.complete]
    for found in cut:
        print(_line(found))
    print(
        f"{sum(search.found.states for search in searches)} states, nothing broken;"
        f" {len(searches) - len(cut)} of {len(searches)} scenarios to their end,"
        f" {time.process_time() - begin:.0f} s"
    )
    return 0


def _faults(scenario: Scenario) -> int:
    """How many faults there are: a return is one with the death before it."""
    return sum(count for name, count in scenario.faults if name != "return")


def _take_turns(searches: Sequence[Search], left: int, most: int) -> int:
    """Search in turns, until all is seen, ``left`` states more were seen or each search
    has ``most``; returns how many more. Raises Violation.
    """
    each, states = _FIRST, 0
    while states < left and each < 2 * most:
        for search in searches:
            before = search.found.states
            if search.found.complete or states >= left:
                continue
            try:
                search.go_on(min(each, most, before + left - states))
            except Violation as error:
                name = search.found.scenario.name
                raise Violation(f"{name}: {error}") from error
            states += search.found.states - before
            if search.found.complete:
                print(_line(search.found), flush=True)
        each *= 2
    return states


def _line(found: Exploration) -> str:
    return (
        f"{found.scenario.name:24} {found.states:8} states {found.events:8} events"
        f" {found.ends:6} ends, longest run {found.longest:3},"
        f" {'all' if found.complete else 'a part'}"
    )


if __name__ == "__main__":
    sys.exit(main())
