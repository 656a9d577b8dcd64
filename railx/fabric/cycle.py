"""The circuits that a rank needs next: from a recorded schedule, or from its own cycle.

A schedule is recorded in one run and used to ask ahead in the next; operations inside a
server need no circuits and are left out. :class:`CycleFinder` needs no earlier run:
after a first iteration that differs (groups are made on first use, shapes are
exchanged) every iteration needs the same circuits in the same order, so a rank learns
the cycle from its own operations:

* Equal configurations in a row are one run, a configuration with a count. The history
  is a list of runs, so that a long row of gathers costs no more than a short one, and
  what it costs is counted: a search takes as many steps as there are runs, and an
  operation earns a fixed number of steps.
* A period p (in runs) explains the last runs of the history as far back as each equals
  the one p before it. One Z-function of the reversed history gives this for every p.
* A cycle is announced once it was seen twice. Where a longer one, not seen twice yet,
  explains more of the history (the inner repetition of A B A B C A B A B C), the
  shorter one has to be seen four times, so that it neither misleads in each round nor
  is held up for ever by a single operation out of turn.
* A cycle holds until an operation contradicts it. The history stays, and the search
  goes on in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from railx.errors import UserError
from railx.fabric.circuits import Configuration


@dataclass(frozen=True)
class CircuitSchedule:
    """What one rank's operations need, in the order of issue, for each iteration.

    Iterations are looked up by number and a prediction never crosses from one into the
    next (what comes next has to be known: Opus, arXiv 2602.12521).
    """

    iterations: Mapping[int, tuple[Configuration, ...]] = field(default_factory=dict)

    def following(self, iteration: int, issued: int) -> Configuration | None:
        """What operation ``issued`` (from 0) of an iteration needs, if known."""
        operations = self.iterations.get(iteration, ())
        return operations[issued] if issued < len(operations) else None


#: Runs that are remembered; a cycle has half as many at most.
_HISTORY = 1024
#: Steps of search that an operation earns, and the most that are saved up.
_EARNED = 32
_SAVED = 16 * _HISTORY
#: How often a cycle was seen when it is announced although a longer one explains more.
_INSISTENT = 4


@dataclass(frozen=True)
class _Run:
    """Operations in a row that need the same."""

    configuration: Configuration
    count: int

    @property
    def token(self) -> tuple[str, tuple[int, ...], int]:
        """What is compared: plain values, for the sake of speed."""
        return (self.configuration.kind, self.configuration.members, self.count)


class CycleFinder:
    """What one rank's operations need, in the order of issue, and what comes next."""

    def __init__(self, history: int = _HISTORY) -> None:
        """``history``: runs to remember, at least 4."""
        if history < 4:
            raise UserError(f"history: got {history}; allowed: at least 4")
        self._limit = history
        self._history: list[_Run] = []
        self._current: Configuration | None = None
        self._count = 0
        self._steps = 0
        #: The runs of the cycle, in order, beginning anywhere; none if it is unknown.
        self.cycle: tuple[_Run, ...] = ()
        #: Which run of the cycle the present one is.
        self._index = 0

    def following(self) -> Configuration | None:
        """What the next operation needs, by the cycle; None where none is known."""
        if not self.cycle:
            return None
        run = self.cycle[self._index]
        if self._count < run.count:
            return run.configuration
        return self.cycle[(self._index + 1) % len(self.cycle)].configuration

    def add(self, configuration: Configuration) -> None:
        """An operation that needs ``configuration`` was issued."""
        self._steps = min(self._steps + _EARNED, _SAVED)
        if self.cycle and configuration != self.following():
            self.cycle = ()
        if configuration == self._current:
            self._count += 1
            return
        if self._current is not None:
            self._remember(_Run(self._current, self._count))
        self._current, self._count = configuration, 1
        if self.cycle:
            self._index = (self._index + 1) % len(self.cycle)
        elif self._steps >= len(self._history):
            self._steps -= len(self._history)
            self._search(configuration)

    def _remember(self, run: _Run) -> None:
        self._history.append(run)
        if len(self._history) >= 2 * self._limit:
            del self._history[: -self._limit]

    def _search(self, present: Configuration) -> None:
        """Look for a cycle that ends with the history and goes on with ``present``."""
        recent = self._history[-self._limit :]
        explained = _explained([run.token for run in reversed(recent)])
        seen_twice = [
            period
            for period, runs in enumerate(explained)
            if runs >= period > 0 and recent[-period].configuration == present
        ]
        if not seen_twice:
            return
        period = max(seen_twice, key=lambda item: explained[item])
        if max(explained) <= explained[period] or explained[period] >= (_INSISTENT - 1) * period:
            self.cycle = tuple(recent[-period:])
            self._index = 0


def _explained(tokens: Sequence[object]) -> list[int]:
    """How many of the first ``tokens`` equal the one p later, by p > 0 (Z-function)."""
    length = len(tokens)
    explained = [0] * length
    left = right = 0
    for p in range(1, length):
        same = min(right - p, explained[p - left]) if p < right else 0
        while p + same < length and tokens[same] == tokens[p + same]:
            same += 1
        explained[p] = same
        if p + same > right:
            left, right = p, p + same
    return explained
