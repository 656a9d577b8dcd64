"""Replays of programs as arrays, by the compiled engine or by the plain one.

The tables of a job are made once (:func:`prepare`) and serve every mode and latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from railx.fabric.circuits import Configuration
from railx.fabric.settings import Mode
from railx.replay.engine import (
    IMPATIENT_NS,
    PATIENCE_NS,
    Logged,
    ReplayedIteration,
    replay,
    stuck_message,
)
from railx.replay.programs import DOES, KINDS, Programs
from railx.replay.wiring import CircuitModel

if TYPE_CHECKING:
    from railx.replay.kernels import Job

__all__ = ["Prepared", "Replayed", "prepare", "replay_programs"]

Array = npt.NDArray[Any]

_ISSUE, _WAIT = DOES.index("issue"), DOES.index("wait")
_SEND = KINDS.index("send")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Programs under a circuit model, as the compiled engine takes them."""

    programs: Programs
    model: CircuitModel
    job: Job
    #: The circuits by their numbers, and the keys of the operations.
    circuits: tuple[Any, ...]
    channels: Array
    sequences: Array
    #: The rails by their numbers.
    rails: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Replayed:
    """What came of a replay.

    ``table`` has a column for each field of
    :class:`railx.replay.engine.ReplayedIteration` and an entry for each rank and
    iteration. ``started_ns`` and ``ended_ns`` have one for each step of the programs,
    -1 where no operation began there (the plain engine does not keep them). ``events``
    says how many there were, ``commands`` how many the switches were given.
    """

    table: Mapping[str, Array]
    started_ns: Array
    ended_ns: Array
    events: int
    commands: int
    log: Sequence[Logged]

    def iteration_ns(self) -> dict[int, int]:
        """How long the slowest rank took, by iteration."""
        lasted = self.table["end_ns"] - self.table["begin_ns"]
        numbers = self.table["iteration"]
        return {int(i): int(lasted[numbers == i].max()) for i in np.unique(numbers)}

    def rows(self) -> list[ReplayedIteration]:
        """The table as objects, by iteration and rank."""
        columns = {name: values.tolist() for name, values in self.table.items()}
        rows = [
            ReplayedIteration(**dict(zip(columns, row, strict=True)))
            for row in zip(*columns.values(), strict=True)
        ]
        return sorted(rows, key=lambda row: (row.iteration, row.rank))


def replay_programs(
    programs: Programs | Prepared,
    model: CircuitModel | None,
    mode: Mode,
    latency_ns: int,
    *,
    engine: Literal["compiled", "core"] = "compiled",
    active: Iterable[Any] = (),
    keep_log: bool = False,
) -> Replayed:
    """Carry out programs on a virtual clock that starts at 0.

    ``model`` may be None where ``programs`` were prepared for one. ``active`` are
    circuits that carry light at the start. Raises ValueError where the programs cannot
    end.
    """
    if isinstance(programs, Prepared):
        prepared = programs
    else:
        if model is None:
            raise ValueError("model: got None; allowed: the one that the programs run under")
        prepared = prepare(programs, model)
    if engine == "core":
        if tuple(active):
            raise ValueError("active: got circuits; allowed with engine core: none")
        return _by_core(prepared, mode, latency_ns)
    return _compiled(prepared, mode, latency_ns, tuple(active), keep_log)


def prepare(programs: Programs, model: CircuitModel) -> Prepared:
    """The tables of a job; ValueError where steps of a rank go back to an iteration."""
    from railx.replay.kernels import Job

    columns = programs.columns
    rank, does, channel = columns["rank"], columns["does"], columns["channel"]
    steps, ranks = len(programs), programs.ranks
    first = np.searchsorted(rank, np.arange(ranks + 1)).astype(np.int32)
    issues = np.flatnonzero(does == _ISSUE)
    keys, operation = _numbered(does, channel, columns["sequence"])
    row, rows = _rows(rank, columns["iteration"])
    before, after, target = _lanes(columns, issues, operation)
    slot = np.full(steps, -1, np.int32)
    wanted_slots = rank[issues].astype(np.int64) * max(len(programs.configurations), 1)
    slots, slot[issues] = np.unique(
        wanted_slots + columns["configuration"][issues], return_inverse=True
    )
    wires = _Wires(programs.configurations, model)
    of_channel = np.full(len(programs.channels), -1, np.int32)
    of_channel[channel[issues]] = columns["configuration"][issues]
    node = np.zeros(len(of_channel) + 1, np.int64)
    ports = np.diff(wires.ports)
    if len(of_channel):
        node[1:] = np.cumsum(np.where(of_channel >= 0, ports[of_channel], 0))
    job = Job(
        first=first,
        rank=rank,
        does=does,
        iteration=columns["iteration"],
        gap_ns=columns["gap_ns"],
        lasts_ns=columns["lasts_ns"],
        pickup_ns=columns["pickup_ns"],
        resume_ns=columns["resume_ns"],
        alone=columns["alone"],
        sends=(columns["kind"] == _SEND) & (does == _ISSUE),
        operation=operation,
        target=target,
        before=before,
        after=after,
        slot=slot,
        row=row,
        rows=rows,
        slots=len(slots),
        channel=keys[0].astype(np.int32),
        node=node,
        wanted=wires.wanted,
        ring=np.array([item.kind == "ring" for item in programs.configurations], np.bool_),
        configuration=of_channel,
        members=wires.members,
        member=wires.member,
        circuits=wires.circuits,
        circuit=wires.circuit,
        ports=wires.ports,
        port=wires.port,
        ends=wires.ends,
        end=wires.end,
        users=wires.users,
        user=wires.user,
        rail=wires.rail,
        port_count=wires.port_count,
    )
    return Prepared(programs, model, job, wires.names, *keys, wires.rails)


def _numbered(does: Array, channel: Array, sequence: Array) -> tuple[tuple[Array, Array], Array]:
    """The operations (channel and sequence), and the number of each step's."""
    steps = np.flatnonzero(channel >= 0)
    number = np.full(len(does), -1, np.int32)
    if not len(steps):
        return (np.zeros(0, np.int64), np.zeros(0, np.int64)), number
    least = sequence[steps].min()
    span = int(sequence[steps].max() - least) + 1
    found, number[steps] = np.unique(
        channel[steps].astype(np.int64) * span + (sequence[steps] - least), return_inverse=True
    )
    return (found // span, found % span + least), number


def _rows(rank: Array, iteration: Array) -> tuple[Array, int]:
    """The row of results of each step: its rank and iteration."""
    same = rank[1:] == rank[:-1]
    if (same & (iteration[1:] < iteration[:-1])).any():
        raise ValueError("iteration: got one after a later one; allowed: in order on each rank")
    new = ~same | (iteration[1:] != iteration[:-1])
    row = np.concatenate(([0], np.cumsum(new))).astype(np.int32)[: len(rank)]
    return row, int(row[-1]) + 1 if len(row) else 0


def _lanes(columns: Mapping[str, Array], issues: Array, operation: Array) -> tuple[Array, ...]:
    """The neighbours of each issue in its lane, and what each wait waits for."""
    rank, channel = columns["rank"].astype(np.int64), columns["channel"]
    steps = len(rank)
    before, after, target = (np.full(steps, -1, np.int32) for _ in range(3))
    lane = rank[issues] * (int(channel.max(initial=0)) + 1) + channel[issues]
    order = issues[np.argsort(lane, kind="stable")]
    together = np.diff(np.sort(lane, kind="stable")) == 0
    after[order[:-1][together]] = order[1:][together]
    before[order[1:][together]] = order[:-1][together]
    operations = int(operation.max(initial=0)) + 1
    own = rank[issues] * operations + operation[issues]
    if len(np.unique(own)) < len(own):
        raise ValueError("sequence: got one twice on a rank; allowed: one for each operation")
    waits = np.flatnonzero(columns["does"] == _WAIT)
    by_key = np.argsort(own)
    wanted = rank[waits] * operations + operation[waits]
    if len(own):
        place = np.minimum(np.searchsorted(own[by_key], wanted), len(own) - 1)
        there = own[by_key][place] == wanted
        target[waits[there]] = issues[by_key[place[there]]]
    return before, after, target


class _Wires:
    """The circuits and ports of a model for some configurations, by numbers."""

    def __init__(self, configurations: Sequence[Configuration], model: CircuitModel) -> None:
        circuits: dict[Any, int] = {}
        ports: dict[Any, int] = {}
        rails: dict[int, int] = {}
        needs: list[list[int]] = []
        of_circuit: list[list[int]] = []
        rail: list[int] = []
        for configuration in configurations:
            needs.append([])
            if model.is_scale_up(configuration.members):
                continue
            for number, wires in model.rails(model.circuits(configuration)).items():
                for wire in wires:
                    if wire not in circuits:
                        circuits[wire] = len(circuits)
                        of_circuit.append([ports.setdefault(p, len(ports)) for p in wire.ports])
                        rail.append(rails.setdefault(number, len(rails)))
                    needs[-1].append(circuits[wire])
        users: list[list[int]] = [[] for _ in circuits]
        for number, own in enumerate(needs):
            for circuit in own:
                users[circuit].append(number)
        self.wanted = np.array(
            [not model.is_scale_up(item.members) for item in configurations], np.bool_
        )
        self.names, self.rails = tuple(circuits), tuple(rails)
        self.rail = np.array(rail, np.int32)
        self.port_count = len(ports)
        self.circuits, self.circuit = _joined(needs)
        self.ports, self.port = _joined(
            [list(dict.fromkeys(p for c in own for p in of_circuit[c])) for own in needs]
        )
        self.ends, self.end = _joined(of_circuit)
        self.users, self.user = _joined(users)
        self.members, self.member = _joined([list(item.members) for item in configurations])


def _joined(lists: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Lists one after another: where each begins (and one more), and their items."""
    first = np.zeros(len(lists) + 1, np.int32)
    first[1:] = np.cumsum([len(own) for own in lists]) if lists else []
    items = [item for own in lists for item in own]
    return first, np.array(items, np.int32)


_COLUMNS = ("stall_ns", "wait_ns", "requests", "reconfigurations", "mispredictions")


def _compiled(
    prepared: Prepared, mode: Mode, latency_ns: int, active: tuple[Any, ...], keep_log: bool
) -> Replayed:
    from railx.replay import kernels

    job = prepared.job
    places = {circuit: number for number, circuit in enumerate(prepared.circuits)}
    lit = np.array([places[circuit] for circuit in active if circuit in places], np.int32)
    setting = (mode != "electrical", mode == "provisioned", latency_ns, PATIENCE_NS, IMPATIENT_NS)
    out = kernels.run(job, lit, *setting, 0)
    size = int(out.counters[kernels._LOGGED])
    if keep_log and size:
        out = kernels.run(job, lit, *setting, size)
    _refuse_stuck(prepared, out)
    found = np.zeros((job.rows, 3), np.int64)
    kernels.account(job, out, found)
    heads = np.flatnonzero(np.concatenate(([True], np.diff(job.row) > 0))[: len(job.row)])
    table = {
        "iteration": job.iteration[heads],
        "rank": job.rank[heads],
        "begin_ns": out.results[:, kernels.R_BEGIN],
        "end_ns": out.results[:, kernels.R_END],
        "compute_ns": found[:, 0],
        "communication_ns": found[:, 1],
        "hidden_ns": found[:, 2],
    }
    table |= {name: out.results[:, kernels.R_STALL + n] for n, name in enumerate(_COLUMNS)}
    return Replayed(
        table,
        out.started_ns,
        out.ended_ns,
        int(out.counters[kernels._EVENTS]),
        int(out.counters[kernels._COMMANDS]),
        _decisions(prepared, out.log) if keep_log else (),
    )


def _refuse_stuck(prepared: Prepared, out: Any) -> None:
    job = prepared.job
    ended = out.ended_ns[job.first[0] :] if len(job.first) else out.ended_ns
    left = np.flatnonzero((job.does == _ISSUE) & (ended < 0))
    short = np.flatnonzero(out.position < job.first[1:])
    if not len(left) and not len(short):
        return
    rank = int(short[0]) if len(short) else int(job.rank[left[0]])
    if len(left):
        rank = min(rank, int(job.rank[left[0]])) if len(short) else rank
    issued = left[(job.rank[left] == rank) & (left < out.position[rank])]
    number = int(out.position[rank] if out.position[rank] < job.first[rank + 1] else issued[0])
    steps = prepared.programs.to_steps()[rank]
    number -= int(job.first[rank])
    raise ValueError(stuck_message(rank, number, steps[number]))


def _decisions(prepared: Prepared, log: Array) -> list[Logged]:
    from railx.replay import kernels

    found: list[Logged] = []
    for time_ns, decision, what in log.tolist():
        if decision == kernels.LOG_GRANT:
            name = prepared.programs.channels[prepared.channels[what]]
            found.append(Logged(time_ns, "grant", (name, int(prepared.sequences[what]))))
        elif decision == kernels.LOG_SWITCH:
            found.append(Logged(time_ns, "switch", (prepared.rails[what],)))
        else:
            last = found.pop()
            found.append(
                Logged(last.time_ns, "switch", (*last.what, prepared.circuits[what]))
            )
    return found


def _by_core(prepared: Prepared, mode: Mode, latency_ns: int) -> Replayed:
    log: list[Logged] = []
    rows = replay(prepared.programs.to_steps(), prepared.model, mode, latency_ns, log=log)
    names = list(ReplayedIteration.__dataclass_fields__)
    table = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in names}
    none = np.full(len(prepared.programs), -1, np.int64)
    commands = sum(item.decision == "switch" for item in log)
    return Replayed(table, none, none, 0, commands, log)
