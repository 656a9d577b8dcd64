"""The order in which a rank needs circuits, recorded in one run and used to ask ahead
in the next; and its phases.

A phase is a maximal run of operations of one rank that need the same circuits;
operations inside a server belong to no phase (Opus, arXiv 2602.12521).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from railx.fabric.circuits import Configuration

__all__ = ["Phase", "Schedule", "phases", "transitions"]


@dataclass(frozen=True)
class Phase:
    """``operations`` consecutive operations, from number ``first`` on, that need the
    same circuits.
    """

    configuration: Configuration
    first: int
    operations: int


@dataclass(frozen=True)
class Schedule:
    """What one rank's operations need, in the order of issue, for each iteration.

    Iterations are looked up by number and a prediction never crosses from one into the
    next (the next phase has to be known: Opus, arXiv 2602.12521).
    """

    iterations: Mapping[int, tuple[Configuration, ...]] = field(default_factory=dict)

    def following(self, iteration: int, issued: int) -> Configuration | None:
        """What operation number ``issued`` (from 0) of an iteration needs; None where
        nothing is known.
        """
        operations = self.iterations.get(iteration, ())
        return operations[issued] if issued < len(operations) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the configurations that occur, and per iteration their
        places in that list.
        """
        distinct = list(
            dict.fromkeys(item for operations in self.iterations.values() for item in operations)
        )
        places = {configuration: place for place, configuration in enumerate(distinct)}
        return {
            "schema": "railx.schedule/1",
            "configurations": [
                {"kind": item.kind, "members": list(item.members)} for item in distinct
            ],
            "iterations": {
                str(number): [places[item] for item in operations]
                for number, operations in self.iterations.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schedule:
        """The schedule that :meth:`to_dict` wrote; raises ValueError on another schema."""
        if data.get("schema") != "railx.schedule/1":
            raise ValueError(
                f"schema of a schedule: got {data.get('schema')!r}; allowed: railx.schedule/1"
            )
        distinct = [
            Configuration(item["kind"], tuple(item["members"])) for item in data["configurations"]
        ]
        return cls(
            {
                int(number): tuple(distinct[place] for place in places)
                for number, places in data["iterations"].items()
            }
        )


def phases(operations: Iterable[Configuration]) -> tuple[Phase, ...]:
    """The phases of one rank's operations in order."""
    found: list[Phase] = []
    for number, configuration in enumerate(operations):
        if found and found[-1].configuration == configuration:
            last = found.pop()
            found.append(Phase(configuration, last.first, last.operations + 1))
        else:
            found.append(Phase(configuration, number, 1))
    return tuple(found)


def transitions(operations: Iterable[Configuration], *, cyclic: bool = True) -> int:
    """How often the configuration changes in one iteration; ``cyclic`` also counts the
    change from the last to the first phase.

    This is N of the on-demand cost N * L (Opus, arXiv 2602.12521).
    """
    names = [phase.configuration for phase in phases(operations)]
    inner = max(len(names) - 1, 0)
    return inner + int(cyclic and len(names) > 1 and names[0] != names[-1])
