"""Small programs written by hand, as objects: steps with their operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from railx.fabric.circuits import Configuration
from railx.fabric.holdings import OperationKey
from railx.replay.programs import COLUMNS, DOES, KINDS, Programs

__all__ = ["ReplayedOperation", "Step", "from_steps"]

_SEND, _RECV = KINDS.index("send"), KINDS.index("recv")


@dataclass(frozen=True)
class ReplayedOperation:
    """One collective or message of a replay.

    It has its key (alike on all members), what it needs between servers, and how long
    it takes a member (``lasts_ns``) once all have come and its circuits are up. Members
    in ``alone`` wait for nobody else, as the sender of a message that is buffered.
    """

    key: OperationKey
    configuration: Configuration
    lasts_ns: Mapping[int, int]
    alone: frozenset[int] = frozenset()
    kind: str = ""
    sender: int | None = None


@dataclass(frozen=True)
class Step:
    """One step of a program, ``gap_ns`` after the step before it.

    * ``begin`` an iteration: all together, ``gap_ns`` after the last rank is there.
    * ``issue`` an operation. It begins ``pickup_ns`` after it is the first of its lane.
    * ``wait`` for an operation. The program goes on ``resume_ns`` after it has ended.
    * ``end`` of the iteration.
    """

    iteration: int
    does: Literal["begin", "issue", "wait", "end"]
    gap_ns: int = 0
    operation: ReplayedOperation | None = None
    pickup_ns: int = 0
    resume_ns: int = 0


def from_steps(programs: Mapping[int, Sequence[Step]]) -> Programs:
    """Programs by rank as arrays."""
    channels: dict[str, int] = {}
    configurations: dict[Configuration, int] = {}
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    for rank, steps in sorted(programs.items()):
        for step in steps:
            row = {name: default or 0 for name, (_, default) in COLUMNS.items()}
            row |= {"rank": rank, "iteration": step.iteration, "gap_ns": step.gap_ns}
            row |= {"does": DOES.index(step.does), "channel": -1, "sequence": -1}
            row |= {"configuration": -1}
            operation = step.operation
            if operation is not None:
                name, number = operation.key
                row |= {
                    "channel": channels.setdefault(name, len(channels)),
                    "sequence": number,
                    "configuration": configurations.setdefault(
                        operation.configuration, len(configurations)
                    ),
                    "kind": _kind_of(operation, rank),
                }
            if operation is not None and step.does == "issue":
                row |= {
                    "lasts_ns": operation.lasts_ns[rank],
                    "alone": int(rank in operation.alone),
                }
            row |= {"pickup_ns": step.pickup_ns, "resume_ns": step.resume_ns}
            for column, value in row.items():
                columns[column].append(value)
    return Programs.from_columns(columns, list(channels), list(configurations))


def _kind_of(operation: ReplayedOperation, rank: int) -> int:
    """The number of an operation's kind on a member: send on its sender."""
    if operation.sender is not None:
        return _SEND if operation.sender == rank else _RECV
    return KINDS.index(operation.kind) if operation.kind else -1
