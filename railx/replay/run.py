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
    from railx.replay.kernels import State

__all__ = ["Prepared", "Replayed", "prepare", "replay_programs"]

Array = npt.NDArray[Any]

_ISSUE, _WAIT = DOES.index("issue"), DOES.index("wait")
_SEND = KINDS.index("send")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Programs under a circuit model, as the compiled engine takes them."""

    programs: Programs
    model: CircuitModel
    state: State
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
    columns = programs.columns
    rank, does, channel = columns["rank"], columns["does"], columns["channel"]
    issues = np.flatnonzero(does == _ISSUE)
    keys, operation = _numbered(does, channel, columns["sequence"])
    row, rows = _rows(rank, columns["iteration"])
    slot = np.full(len(programs), -1, np.int32)
    wanted_slots = rank[issues].astype(np.int64) * max(len(programs.configurations), 1)
    slots, slot[issues] = np.unique(
        wanted_slots + columns["configuration"][issues], return_inverse=True
    )
    wires = _Wires(programs.configurations, model)
    own = {name: columns[name] for name in _KEPT} | _lanes(columns, issues, operation)
    own |= {"operation": operation, "slot": slot, "row": row}
    own |= {"sends": (columns["kind"] == _SEND) & (does == _ISSUE)}
    state = _state(programs, wires, own, keys, rows, len(slots))
    return Prepared(programs, model, state, wires.names, *keys, wires.rails)


def _state(
    programs: Programs,
    wires: _Wires,
    own: Mapping[str, Array],
    keys: tuple[Array, Array],
    rows: int,
    slots: int,
) -> State:
    """Where everything stands before the first event."""
    from railx.replay import kernels

    count, ranks, channels = len(programs), programs.ranks, len(programs.channels)
    steps = _records(kernels.STEP, count, **own)
    place = np.arange(ranks)
    first = np.searchsorted(programs.columns["rank"], place)
    stop = np.searchsorted(programs.columns["rank"], place, side="right")
    of_channel = np.full(channels, -1, np.int32)
    operates = programs.columns["channel"] >= 0
    of_channel[programs.columns["channel"][operates]] = programs.columns["configuration"][operates]
    ports = wires.fields["ports_stop"] - wires.fields["ports"]
    nodes = np.where(of_channel >= 0, ports[of_channel], 0) if channels else np.zeros(0, np.int64)
    circuits, configurations = len(wires.names), len(programs.configurations)
    results = np.zeros((rows, 7), np.int64)
    results[:, kernels.R_BEGIN] = -1

    def links(size: int) -> Array:
        return np.full((size, 2), -1, np.int32)

    return kernels.State(
        n=np.zeros(kernels.COUNTERS, np.int64),
        event=np.zeros(0, kernels.EVENT),
        log=np.zeros((0, 3), np.int64),
        results=results,
        steps=steps,
        ranks=_records(kernels.RANK, ranks, first=first, stop=stop, position=first, unasked=first),
        slots=_records(kernels.SLOT, slots, patience_ns=PATIENCE_NS),
        operations=_records(kernels.OPERATION, len(keys[0]), channel=keys[0]),
        channels=_records(
            kernels.CHANNEL,
            channels,
            configuration=of_channel,
            node=np.cumsum(nodes) - nodes,
        ),
        configurations=_records(kernels.CONFIGURATION, configurations, **wires.fields),
        circuits=_records(kernels.CIRCUIT, circuits, **wires.of_circuits),
        ports=_records(kernels.PORT, wires.port_count),
        watchers=_records(kernels.WATCHER, channels + configurations),
        items=wires.items,
        waiting=links(ranks),
        waiting_links=links(count),
        unsent=links(ranks),
        behind=links(ranks),
        step_links=links(count),
        queue=links(wires.port_count),
        node_links=links(int(nodes.sum())),
        granted=np.zeros(channels + 1, np.int32),
        starting=np.zeros(circuits + 1, np.int32),
        looked_at=np.zeros(channels + 1, kernels.PAIR),
        hinted=np.zeros(configurations + 1, kernels.PAIR),
    )


#: Fields of records that count, and so begin at 0; all others begin at -1, none.
_COUNTS = frozenset(
    (
        *("under_way", "at_begin", "hint_served", "expecting", "arrived", "released"),
        *("commands", "order", "expected", "unserved", "ahead", "leases", "lit"),
        *("looked_at", "ended", "asked", "asked_ns", "mispredicted"),
    )
)


def _records(kind: np.dtype[Any], count: int, **fields: Any) -> Array:
    """Records with these fields, the others as they begin."""
    made = np.zeros(count, kind)
    for name in kind.names or ():
        made[name] = fields.get(name, 0 if name in _COUNTS else -1)
    return made


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


def _lanes(columns: Mapping[str, Array], issues: Array, operation: Array) -> dict[str, Array]:
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
    return {"before": before, "after": after, "target": target}


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
        self.names, self.rails = tuple(circuits), tuple(rails)
        self.port_count = len(ports)
        self._lists: list[Sequence[int]] = []
        self._size = 0
        self.fields: dict[str, Array] = {
            "wanted": np.array([not model.is_scale_up(c.members) for c in configurations], bool),
            "ring": np.array([item.kind == "ring" for item in configurations], bool),
        }
        self.of_circuits: dict[str, Array] = {"rail": np.array(rail, np.int32)}
        self._add(self.fields, "members", [item.members for item in configurations])
        self._add(self.fields, "circuits", needs)
        self._add(
            self.fields,
            "ports",
            [list(dict.fromkeys(p for c in own for p in of_circuit[c])) for own in needs],
        )
        self._add(self.of_circuits, "ends", of_circuit)
        self._add(self.of_circuits, "users", users)
        self.items = np.array([item for own in self._lists for item in own], np.int32)

    def _add(self, fields: dict[str, Array], name: str, lists: Sequence[Sequence[int]]) -> None:
        """Put lists among the items; the fields say where each begins and ends."""
        sizes = np.array([len(own) for own in lists], np.int64)
        ends = self._size + np.cumsum(sizes)
        fields[name], fields[f"{name}_stop"] = ends - sizes, ends
        self._lists += lists
        self._size += int(sizes.sum())


#: Columns of programs that the compiled engine takes as they are.
_KEPT = (*("rank", "iteration", "does", "gap_ns", "lasts_ns", "pickup_ns", "resume_ns", "alone"),)
_COLUMNS = ("stall_ns", "wait_ns", "requests", "reconfigurations", "mispredictions")


def _compiled(
    prepared: Prepared, mode: Mode, latency_ns: int, active: tuple[Any, ...], keep_log: bool
) -> Replayed:
    from railx.replay import kernels

    places = {circuit: number for number, circuit in enumerate(prepared.circuits)}
    lit = np.array([places[circuit] for circuit in active if circuit in places], np.int32)

    def run(log_size: int) -> State:
        fresh = kernels.State(*(array.copy() for array in prepared.state))
        fresh = fresh._replace(log=np.zeros((log_size, 3), np.int64))
        setting = (mode != "electrical", mode == "provisioned", latency_ns)
        kernels.run(fresh, lit, *setting, IMPATIENT_NS, PATIENCE_NS)
        return fresh

    out = run(0)
    if keep_log:
        out = run(int(out.n[kernels.LOGGED]))
    _refuse_stuck(prepared, out)
    found = np.zeros((len(out.results), 3), np.int64)
    kernels.account(out, found)
    heads = np.flatnonzero(np.diff(out.steps["row"], prepend=-1))
    table = {
        "iteration": out.steps["iteration"][heads],
        "rank": out.steps["rank"][heads],
        "begin_ns": out.results[:, kernels.R_BEGIN],
        "end_ns": out.results[:, kernels.R_END],
        "compute_ns": found[:, 0],
        "communication_ns": found[:, 1],
        "hidden_ns": found[:, 2],
    }
    table |= {name: out.results[:, kernels.R_STALL + n] for n, name in enumerate(_COLUMNS)}
    return Replayed(
        table,
        out.steps["started_ns"].copy(),
        out.steps["ended_ns"].copy(),
        int(out.n[kernels.EVENTS]),
        int(out.n[kernels.COMMANDS]),
        _decisions(prepared, out.log) if keep_log else (),
    )


def _refuse_stuck(prepared: Prepared, out: State) -> None:
    """ValueError for the first rank that has not come to its end."""
    steps, position = out.steps, out.ranks["position"]
    left = np.flatnonzero((steps["does"] == _ISSUE) & (steps["ended"] == 0))
    stuck = set(np.flatnonzero(position < out.ranks["stop"]).tolist())
    stuck |= set(steps["rank"][left].tolist())
    if not stuck:
        return
    rank = min(stuck)
    number = int(position[rank])
    if number == out.ranks["stop"][rank]:
        number = int(left[steps["rank"][left] == rank][0])
    number -= int(out.ranks["first"][rank])
    raise ValueError(stuck_message(rank, number, prepared.programs.to_steps()[rank][number]))


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
            found.append(Logged(last.time_ns, "switch", (*last.what, prepared.circuits[what])))
    return found


def _by_core(prepared: Prepared, mode: Mode, latency_ns: int) -> Replayed:
    log: list[Logged] = []
    rows = replay(prepared.programs.to_steps(), prepared.model, mode, latency_ns, log=log)
    names = list(ReplayedIteration.__dataclass_fields__)
    table = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in names}
    none = np.full(len(prepared.programs), -1, np.int64)
    commands = sum(item.decision == "switch" for item in log)
    return Replayed(table, none, none, 0, commands, log)
