"""The order in which a rank needs circuits.

It is recorded in one run and used to ask ahead in the next. Operations inside a server
need none and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from railx.fabric.circuits import Configuration

__all__ = ["CircuitSchedule"]


@dataclass(frozen=True)
class CircuitSchedule:
    """What one rank's operations need, in the order of issue, for each iteration.

    Iterations are looked up by number and a prediction never crosses from one into the
    next (what comes next has to be known: Opus, arXiv 2602.12521).
    """

    iterations: Mapping[int, tuple[Configuration, ...]] = field(default_factory=dict)

    def following(self, iteration: int, issued: int) -> Configuration | None:
        """What operation number ``issued`` (from 0) of an iteration needs.

        None where nothing is known.
        """
        operations = self.iterations.get(iteration, ())
        return operations[issued] if issued < len(operations) else None
