"""Who expects which circuits: ranks that hint them, or stand before what needs them.

A configuration that all its members expect is ready to be switched ahead of its need.
"""

from __future__ import annotations

from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions.refusals import Refusals
from railx.fabric.decisions.state import Expected, Hint, discard

__all__ = ["Hints"]


class Hints(Refusals):
    """Keeps what ranks expect."""

    def _take_hint(self, rank: int, configuration: Configuration) -> bool:
        hint = self._take_back_hint(rank)
        mispredicted = hint is not None and hint.configuration != configuration
        if mispredicted:
            self._count(rank, "mispredictions")
        return mispredicted

    def _take_back_hint(self, rank: int) -> Hint | None:
        hint = self._hints.pop(rank, None)
        if hint is not None:
            expected = self._expected[hint.configuration]
            expected.hints.remove(rank)
            expected.unserved -= not hint.served
            self._expect(hint.configuration, rank, -1)
        return hint

    def _expect(self, configuration: Configuration, rank: int, change: int) -> None:
        """A rank expects a configuration for one reason more, or less."""
        expected = self._expected.get(configuration)
        if expected is None:
            expected = self._expected[configuration] = Expected()
        ranks = expected.ranks
        count = ranks.get(rank, 0) + change
        if count:
            ranks[rank] = count
        else:
            del ranks[rank]
            if not ranks:
                del self._expected[configuration]
        if not expected.unserved and expected.ready is None:
            return
        ready = expected.unserved > 0 and len(ranks) == len(configuration.members)
        if ready and expected.ready is None:
            expected.ready = self._turn()
            for port in ports_of(self.layout.circuits(configuration)):
                self._ready.setdefault(port, {})[configuration] = None
        elif not ready:
            self._not_ready(configuration, expected)
        if ready:
            self._touched_hints[configuration] = None

    def _not_ready(self, configuration: Configuration, expected: Expected) -> None:
        if expected.ready is not None:
            expected.ready = None
            for port in ports_of(self.layout.circuits(configuration)):
                discard(self._ready, port, configuration)
