"""Programs of the replay as objects, steps with their operations: small ones by hand,
of a few ranks drawn at random, of which none can lock up, and what arrays hold, step by
step and decision by decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.holdings import OperationKey
from railx.fabric.settings import Mode
from railx.replay.kernels import state
from railx.replay.programs import COLUMNS, DOES, KINDS, Programs
from railx.replay.run import Prepared, _carried_out, _settings
from railx.replay.wiring import CircuitModel, TableWiring, Wire

__all__ = [
    "Logged",
    "ReplayedOperation",
    "StageBits",
    "Step",
    "decisions",
    "from_steps",
    "programs",
    "rails",
    "steps_of",
]

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


TIMES = st.integers(0, 5)


class StageBits(TableWiring):
    """One bit for each stage of two ranks: its ports serve messages, or the ring."""

    def is_scale_up(self, members: object) -> bool:
        return False

    def wires(self, configuration: Configuration) -> tuple[Wire, ...]:
        stages = sorted({member // 2 for member in configuration.members})
        value = int(configuration.kind == "pair")
        return tuple(Wire(0, (stage, value), ((stage,),)) for stage in stages)


def rails() -> st.SearchStrategy[CircuitModel]:
    """Ours with one or two ranks in a server, and one bit a stage."""
    return st.sampled_from([Layout(1), Layout(2), StageBits()])


@st.composite
def programs(draw: st.DrawFn, most_operations: int = 14) -> dict[int, list[Step]]:
    """Members issue operations in one common order and wait for each at any time later.

    Some messages are waited for late or never, so that collectives overtake them.
    """
    ranks = draw(st.integers(2, 6))
    groups = draw(
        st.lists(
            st.sets(st.integers(0, ranks - 1), min_size=2).map(lambda item: tuple(sorted(item))),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    steps: dict[int, list[Step]] = {rank: [] for rank in range(ranks)}
    numbers: dict[str, int] = {}
    for iteration in range(draw(st.integers(1, 3))):
        open_: dict[int, list[ReplayedOperation]] = {rank: [] for rank in range(ranks)}
        for rank in range(ranks):
            steps[rank].append(Step(iteration, "begin", draw(TIMES)))
        for _ in range(draw(st.integers(0, most_operations))):
            operation = _operation(draw, draw(st.sampled_from(groups)), numbers)
            for rank in operation.configuration.members:
                steps[rank].append(
                    Step(iteration, "issue", draw(TIMES), operation, pickup_ns=draw(TIMES))
                )
                open_[rank].append(operation)
                for what in draw(st.permutations(open_[rank])):
                    if draw(st.integers(0, 2)) == 0:
                        open_[rank].remove(what)
                        steps[rank].append(
                            Step(iteration, "wait", draw(TIMES), what, resume_ns=draw(TIMES))
                        )
        for rank in range(ranks):
            steps[rank].append(Step(iteration, "end", draw(TIMES)))
    return steps


def _operation(
    draw: st.DrawFn, group: tuple[int, ...], numbers: dict[str, int]
) -> ReplayedOperation:
    is_pair = len(group) == 2 and draw(st.booleans())
    sender = draw(st.sampled_from(group)) if is_pair else None
    name = f"{sender}>" if is_pair else draw(st.sampled_from(("a", "b")))
    lane = f"{','.join(map(str, group))}:{name}"
    numbers[lane] = numbers.get(lane, -1) + 1
    return ReplayedOperation(
        (lane, numbers[lane]),
        Configuration("pair" if is_pair else "ring", group),
        {member: draw(TIMES) for member in group},
        frozenset({sender} if sender is not None and draw(st.booleans()) else ()),
        kind="send" if is_pair else "all_reduce",
        sender=sender,
    )


_ISSUE = DOES.index("issue")


@dataclass(frozen=True)
class Logged:
    """A decision of the controller: a grant of an operation, or a switch command.

    ``what`` is the operation's key, or the rail with the circuits that come up.
    """

    time_ns: int
    decision: Literal["grant", "switch"]
    what: tuple[Any, ...]


def decisions(
    prepared: Prepared, mode: Mode, latency_ns: int, *, keep_leases: bool, message_ns: int = 0
) -> list[Logged]:
    """The decisions in a replay by the compiled engine, in order."""
    counters = _settings(mode, latency_ns, keep_leases=keep_leases, message_ns=message_ns)
    count = int(_carried_out(prepared, counters).n[state.LOGGED])
    decided: list[Logged] = []
    for time_ns, decision, what in _carried_out(prepared, counters, count).log.tolist():
        if decision == state.LOG_GRANT:
            name = prepared.programs.channels[prepared.channels[what]]
            decided.append(Logged(time_ns, "grant", (name, int(prepared.sequences[what]))))
        elif decision == state.LOG_SWITCH:
            decided.append(Logged(time_ns, "switch", (prepared.rails[what],)))
        else:
            last = decided.pop()
            decided.append(Logged(last.time_ns, "switch", (*last.what, prepared.circuits[what])))
    return decided


def steps_of(programs: Programs) -> dict[int, list[Step]]:
    """The same programs as objects, by rank."""
    columns = {name: values.tolist() for name, values in programs.columns.items()}
    members: dict[tuple[int, int], list[int]] = {}
    for number in np.flatnonzero(programs.columns["does"] == _ISSUE).tolist():
        key = columns["channel"][number], columns["sequence"][number]
        members.setdefault(key, []).append(number)
    operations = {
        (channel, sequence): ReplayedOperation(
            (programs.channels[channel], sequence),
            programs.configurations[columns["configuration"][numbers[0]]],
            {columns["rank"][n]: columns["lasts_ns"][n] for n in numbers},
            frozenset(columns["rank"][n] for n in numbers if columns["alone"][n]),
            kind="" if columns["kind"][numbers[0]] < 0 else KINDS[columns["kind"][numbers[0]]],
            sender=next((columns["rank"][n] for n in numbers if columns["kind"][n] == _SEND), None),
        )
        for (channel, sequence), numbers in members.items()
    }
    steps: dict[int, list[Step]] = {rank: [] for rank in range(programs.ranks)}
    for number, rank in enumerate(columns["rank"]):
        key = columns["channel"][number], columns["sequence"][number]
        steps[rank].append(
            Step(
                columns["iteration"][number],
                DOES[columns["does"][number]],
                columns["gap_ns"][number],
                operations.get(key),
                columns["pickup_ns"][number],
                columns["resume_ns"][number],
            )
        )
    return steps
