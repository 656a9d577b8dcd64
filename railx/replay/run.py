"""Replays of programs as arrays, by the compiled engine.

The tables of a job (:func:`prepare`) serve every mode and latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.fabric.settings import Mode
from railx.replay.kernels import state
from railx.replay.kernels.state import EngineState
from railx.replay.programs import DOES, IMPATIENT_NS, KINDS, PATIENCE_NS, Programs, stuck_message
from railx.replay.wiring import CircuitModel
from railx.vocabulary.arrays import Array

_ISSUE, _WAIT = DOES.index("issue"), DOES.index("wait")
_SEND, _RECV = KINDS.index("send"), KINDS.index("recv")
#: Columns of programs that the compiled engine takes as they are.
_AS_GIVEN = ("rank", "iteration", "does", "gap_ns", "lasts_ns", "pickup_ns", "resume_ns", "alone")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Programs under a circuit model, as the compiled engine takes them."""

    programs: Programs
    model: CircuitModel
    state: EngineState
    #: The circuits by their numbers, and the keys of the operations.
    circuits: tuple[Any, ...]
    channels: Array
    sequences: Array
    #: The rails by their numbers.
    rails: tuple[int, ...]
    #: Whether every rank's operations of a channel count up by one.
    counts_up: bool


@dataclass(frozen=True, eq=False)
class Dependencies:
    """Steps as nodes of a graph instead of one after another.

    ``dependencies[offsets[i]:offsets[i + 1]]`` are steps that end before step ``i``
    begins. Steps of one ``stream`` (int[steps], -1: none) run one at a time, the ready
    one with the least number first. ``lasts_ns`` of a receive counts from the start of
    its send.
    """

    offsets: Array
    dependencies: Array
    stream: Array

    @property
    def counts(self) -> Array:
        """How many steps each depends on."""
        return np.diff(self.offsets)

    def successors(self) -> tuple[Array, Array]:
        """The steps that depend on each: their numbers, and where each step's begin."""
        steps = len(self.offsets) - 1
        order = np.argsort(self.dependencies, kind="stable")
        return (
            np.repeat(np.arange(steps, dtype=np.int32), self.counts)[order],
            np.searchsorted(self.dependencies[order], np.arange(steps + 1)),
        )


def prepare(programs: Programs, model: CircuitModel, graph: Dependencies | None = None) -> Prepared:
    """The tables of a job; ValueError where steps of a rank go back to an iteration."""
    columns = programs.columns
    rank, does, channel = columns["rank"], columns["does"], columns["channel"]
    issues = np.flatnonzero(does == _ISSUE)
    keys, operation = _numbered(does, channel, columns["sequence"])
    row, rows = _rows(rank, columns["iteration"])
    slot = np.full(len(programs), -1, np.int32)
    keys_of_slots = rank[issues].astype(np.int64) * max(len(programs.configurations), 1)
    slot_keys, slot[issues] = np.unique(
        keys_of_slots + columns["configuration"][issues], return_inverse=True
    )
    wires = _Wires(programs, model)
    slots = wires.slots_of(slot_keys, programs.ranks)
    fields = {name: columns[name] for name in _AS_GIVEN} | _lanes(columns, issues, operation)
    fields |= {"operation": operation, "slot": slot, "row": row}
    fields["sends"] = (columns["kind"] == _SEND) & (does == _ISSUE)
    fields["lane"] = np.full(len(programs), -1, np.int32)
    fields["lane"][issues] = wires.first_lane[channel[issues]] + slots["member"][slot[issues]]
    tables = _state(programs, wires, fields, keys, rows, slots)
    if graph is not None:
        tables = _with_graph(tables, graph, (columns["kind"] == _RECV) & (does == _ISSUE))
    counts_up = _counts_up(issues, fields["lane"], operation, keys)
    return Prepared(programs, model, tables, wires.names, *keys, wires.rails, counts_up)


def _with_graph(alone: EngineState, graph: Dependencies, receives: Array) -> EngineState:
    """The state with the steps as nodes of a graph."""
    successors, starts = graph.successors()
    sizes = np.bincount(graph.stream[graph.stream >= 0])
    fields = {"successors": starts[:-1], "successors_stop": starts[1:], "stream": graph.stream}
    nodes = _records(state.NODE, len(receives), pending=graph.counts, receives=receives, **fields)
    streams = _records(state.STREAM, len(sizes), first=np.cumsum(sizes) - sizes)
    ready = np.zeros(int(sizes.sum()), state.PAIR)
    return alone._replace(nodes=nodes, successors=successors, streams=streams, ready=ready)


def _state(
    programs: Programs,
    wires: _Wires,
    fields: Mapping[str, Array],
    keys: tuple[Array, Array],
    rows: int,
    slots: Mapping[str, Array],
) -> EngineState:
    """The state before the first event."""
    count, ranks, channels = len(programs), programs.ranks, len(programs.channels)
    numbers = np.arange(ranks)
    first = np.searchsorted(programs.columns["rank"], numbers)
    stop = np.searchsorted(programs.columns["rank"], numbers, side="right")
    ports = wires.fields["ports_stop"] - wires.fields["ports"]
    of_channel = wires.of_channel
    nodes = np.where(of_channel >= 0, np.append(ports, 0)[of_channel], 0)
    circuits, configurations = len(wires.names), len(programs.configurations)
    lanes, operations = int(wires.lanes.sum()), len(keys[0])
    results = np.zeros((rows, 7), np.int64)
    results[:, state.R_BEGIN] = -1
    # Members that never come to an operation have no step of it.
    members = wires.lanes[keys[0]]
    of_operation = np.cumsum(members) - members
    step_of = np.full(int(members.sum()), -1, np.int32)
    issues = np.flatnonzero(fields["lane"] >= 0)
    at = of_operation[fields["operation"][issues]] + slots["member"][fields["slot"][issues]]
    step_of[at] = issues

    sizes = dict.fromkeys(("waiting", "unsent", "behind", "holding"), ranks)
    sizes |= dict.fromkeys(("waiting_links", "step_links"), count)
    sizes |= {"slot_links": len(slots["rank"]), "tracked": configurations}
    sizes |= {"operation_links": operations, "queue": wires.port_count}
    sizes["node_links"] = int(nodes.sum())
    return EngineState(
        sources=np.zeros(0, state.SOURCES),
        event=np.zeros(0, state.EVENT),
        n=np.zeros(state.COUNTERS, np.int64),
        log=np.zeros((0, 3), np.int64),
        results=results,
        steps=_records(state.STEP, count, **fields),
        step_of=step_of,
        ranks=_records(
            state.RANK,
            ranks,
            **dict.fromkeys(("first", "position", "unasked"), first),
            stop=stop,
            slots=np.searchsorted(slots["rank"], numbers),
            slots_stop=np.searchsorted(slots["rank"], numbers, side="right"),
        ),
        nodes=np.zeros(0, state.NODE),
        successors=np.zeros(0, np.int32),
        streams=np.zeros(0, state.STREAM),
        ready=np.zeros(0, state.PAIR),
        slots=_records(state.SLOT, len(slots["rank"]), patience_ns=PATIENCE_NS, **slots),
        lanes=_records(state.LANE, lanes),
        operations=_records(state.OPERATION, operations, channel=keys[0], steps=of_operation),
        channels=_records(
            state.CHANNEL,
            channels,
            configuration=of_channel,
            node=np.cumsum(nodes) - nodes,
            lanes=wires.first_lane,
            operations=np.searchsorted(keys[0], np.arange(channels)),
        ),
        configurations=_records(state.CONFIGURATION, configurations, **wires.fields),
        circuits=_records(state.CIRCUIT, circuits, **wires.of_circuits),
        ports=_records(state.PORT, wires.port_count, **wires.of_ports),
        watchers=_records(state.WATCHER, channels + configurations),
        items=wires.items(),
        **{name: np.full((size, 2), -1, np.int32) for name, size in sizes.items()},
        node_channels=np.repeat(np.arange(channels, dtype=np.int32), nodes),
        actions=np.zeros(0, state.ACTION),
        begun=np.zeros(channels + 1, np.int32),
        conflicting=np.zeros(configurations + 1, np.int32),
        starting=np.zeros(circuits + 1, np.int32),
        looked_at=np.zeros(channels + 1, state.PAIR),
        hinted=np.zeros(configurations + 1, state.PAIR),
    )


#: Numbers that count, and so begin at 0 as flags do; all others begin at -1, none.
_COUNTS = frozenset(
    (
        *("under_way", "expecting", "standing", "holders", "arrived", "asked", "released"),
        *("ready", "begun", "commands", "order", "expected", "unserved", "ahead", "leases"),
        "asked_ns",
    )
)


def _records(kind: np.dtype[Any], count: int, **fields: Any) -> Array:
    """Records with these fields, the others as they begin."""
    records = np.zeros(count, kind)
    for name in kind.names or ():
        first = 0 if name in _COUNTS or kind[name] == np.int8 else -1
        records[name] = fields.get(name, first)
    return records


def _numbered(does: Array, channel: Array, sequence: Array) -> tuple[tuple[Array, Array], Array]:
    """The operations (channel and sequence), and the number of each step's."""
    steps = np.flatnonzero(channel >= 0)
    number = np.full(len(does), -1, np.int32)
    if not len(steps):
        return (np.zeros(0, np.int64), np.zeros(0, np.int64)), number
    lowest = sequence[steps].min()
    span = int(sequence[steps].max() - lowest) + 1
    unique, number[steps] = np.unique(
        channel[steps].astype(np.int64) * span + (sequence[steps] - lowest), return_inverse=True
    )
    return (unique // span, unique % span + lowest), number


def _rows(rank: Array, iteration: Array) -> tuple[Array, int]:
    """The row of results of each step: its rank and iteration."""
    same = rank[1:] == rank[:-1]
    if (same & (iteration[1:] < iteration[:-1])).any():
        raise UserError("iteration: got one after a later one; allowed: in order on each rank")
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
    issue_keys = rank[issues] * operations + operation[issues]
    if len(np.unique(issue_keys)) < len(issue_keys):
        raise UserError("sequence: got one twice on a rank; allowed: one for each operation")
    waits = np.flatnonzero(columns["does"] == _WAIT)
    by_key = np.argsort(issue_keys)
    wait_keys = rank[waits] * operations + operation[waits]
    if len(issue_keys):
        at = np.minimum(np.searchsorted(issue_keys[by_key], wait_keys), len(issue_keys) - 1)
        there = issue_keys[by_key][at] == wait_keys
        target[waits[there]] = issues[by_key[at[there]]]
    return {"before": before, "after": after, "target": target}


def _counts_up(issues: Array, lane: Array, operation: Array, keys: tuple[Array, Array]) -> bool:
    """Whether the operations of each lane are those of its channel, one by one."""
    channels, sequences = keys
    same = channels[1:] == channels[:-1]
    if (np.diff(sequences)[same] != 1).any():
        return False
    order = issues[np.argsort(lane[issues], kind="stable")]
    new = np.concatenate(([True], lane[order][1:] != lane[order][:-1]))[: len(order)]
    number = operation[order] - np.searchsorted(channels, channels[operation[order]])
    turn = np.arange(len(order)) - np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    return bool((number == turn).all())


class _Wires:
    """The circuits and ports of a model under some programs, by numbers."""

    def __init__(self, programs: Programs, model: CircuitModel) -> None:
        configurations = programs.configurations
        circuits: dict[Any, int] = {}
        ports: dict[Any, int] = {}
        rails: dict[int, int] = {}
        needs: list[list[int]] = []
        in_turn: list[list[int]] = []
        of_circuit: list[list[int]] = []
        rail: list[int] = []
        asks = [not model.is_scale_up(item.members) for item in configurations]
        for configuration, asking in zip(configurations, asks, strict=True):
            needs.append([])
            needed: Any = model.circuits(configuration) if asking else ()
            for number, wires in model.rails(needed).items():
                for wire in wires:
                    if wire not in circuits:
                        circuits[wire] = len(circuits)
                        of_circuit.append([ports.setdefault(p, len(ports)) for p in wire.ports])
                        rail.append(rails.setdefault(number, len(rails)))
                    needs[-1].append(circuits[wire])
            in_turn.append([circuits[wire] for wire in needed])
        of_ports = [
            list(dict.fromkeys(p for c in numbers for p in of_circuit[c])) for numbers in needs
        ]
        self.names, self.rails = tuple(circuits), tuple(rails)
        self.port_count = len(ports)
        self.of_channel = programs.configuration_of
        sizes = np.array([len(item.members) for item in configurations], np.int64)
        #: The lanes of each channel.
        self.lanes = np.where(self.of_channel >= 0, np.append(sizes, 0)[self.of_channel], 0)
        self.first_lane = np.cumsum(self.lanes) - self.lanes
        self._lists: list[Sequence[int]] = []
        self._size = 0
        self._members = [item.members for item in configurations]
        self.fields: dict[str, Array] = {
            "asks": np.array(asks, bool),
            "ring": np.array([item.kind == "ring" for item in configurations], bool),
        }
        self.of_circuits: dict[str, Array] = {"rail": np.array(rail, np.int32)}
        self.of_ports: dict[str, Array] = {}
        named = sorted(range(len(configurations)), key=lambda number: configurations[number].name)
        self._add(self.fields, "members", self._members)
        self._add(self.fields, "circuits", needs)
        self._add(self.fields, "wires", in_turn)
        self._add(self.fields, "ports", of_ports)
        self._add(self.of_circuits, "ends", of_circuit)
        self._add(self.of_circuits, "users", _users(needs, len(circuits), named))
        self._add(self.of_ports, "users", _users(of_ports, len(ports), named))
        channels = np.flatnonzero(self.of_channel >= 0).tolist()
        channels_of: list[list[int]] = [[] for _ in configurations]
        for number in sorted(channels, key=programs.channels.__getitem__):
            channels_of[self.of_channel[number]].append(number)
        self._add(self.fields, "channels", channels_of)

    def slots_of(self, slot_keys: Array, ranks: int) -> dict[str, Array]:
        """The fields of slots, in order of ranks; ``slot_keys`` encode rank and
        configuration. ValueError where a rank is no member of what it takes part in.
        """
        count = max(len(self._members), 1)
        rank, configuration = slot_keys // count, slot_keys % count
        sizes = self.fields["members_stop"] - self.fields["members"]
        members = np.array([item for group in self._members for item in group], np.int64)
        keys = np.repeat(np.arange(len(sizes)), sizes) * (max(ranks, 1) + 1)
        keys += np.minimum(members, ranks)
        searched = configuration * (max(ranks, 1) + 1) + rank
        at = np.minimum(np.searchsorted(keys, searched), max(len(keys) - 1, 0))
        if len(searched) and (keys[at] != searched).any():
            slot = int(np.flatnonzero(keys[at] != searched)[0])
            raise UserError(
                f"configuration: got an operation of ranks {self._members[configuration[slot]]} on"
                f" rank {rank[slot]}; allowed: on its members"
            )
        member = at - (np.cumsum(sizes) - sizes)[configuration] if len(slot_keys) else at
        numbers = np.full(len(members), -1, np.int64)
        numbers[at[: len(slot_keys)]] = np.arange(len(slot_keys))
        slots = np.split(numbers, np.cumsum(sizes)[:-1]) if len(sizes) else []
        self._add(self.fields, "slots", [item.tolist() for item in slots])
        return {"rank": rank, "configuration": configuration, "member": member}

    def items(self) -> Array:
        """All lists, one after another."""
        return np.array([item for numbers in self._lists for item in numbers], np.int32)

    def _add(self, fields: dict[str, Array], name: str, lists: Sequence[Sequence[int]]) -> None:
        """Put lists among the items; the fields say where each begins and ends."""
        sizes = np.array([len(numbers) for numbers in lists], np.int64)
        ends = self._size + np.cumsum(sizes)
        fields[name], fields[f"{name}_stop"] = ends - sizes, ends
        self._lists += lists
        self._size += int(sizes.sum())


def _users(lists: Sequence[Sequence[int]], count: int, named: Sequence[int]) -> list[list[int]]:
    """For each item, the configurations in whose list it is, by name."""
    users: list[list[int]] = [[] for _ in range(count)]
    for number in named:
        for item in lists[number]:
            users[item].append(number)
    return users


_COLUMNS = ("stall_ns", "wait_ns", "requests", "reconfigurations", "mispredictions")


@dataclass(frozen=True, eq=False)
class Replayed:
    """The results of a replay.

    ``table`` has an entry for each rank and iteration, in ns of the virtual clock:
    ``iteration``, ``rank``, ``begin_ns``, ``end_ns``; ``compute_ns``: what its program
    computed; ``communication_ns``: the time in which any of its operations was under
    way, all members there and circuits up; ``hidden_ns``: the part of it in which the
    program computed; ``stall_ns``, ``wait_ns``, ``requests``, ``reconfigurations`` and
    ``mispredictions`` as in :class:`railx.fabric.decisions.state.GrantAction`.
    ``started_ns`` and ``ended_ns`` have one for each step of the programs,
    -1 where no operation began there. ``events`` says how many there were, ``commands``
    how many the switches were given.
    """

    table: Mapping[str, Array]
    started_ns: Array
    ended_ns: Array
    events: int
    commands: int

    def iteration_ns(self) -> dict[int, int]:
        """How long the slowest rank took, by iteration."""
        lasted = self.table["end_ns"] - self.table["begin_ns"]
        numbers = self.table["iteration"]
        return {int(i): int(lasted[numbers == i].max()) for i in np.unique(numbers)}


def replay_programs(
    prepared: Prepared,
    mode: Mode,
    latency_ns: int,
    *,
    keep_leases: bool = False,
    message_ns: int = 0,
) -> Replayed:
    """Carry out programs on a virtual clock that starts at 0.

    ``keep_leases``: leases stay with their members until they are recalled, as in a
    run. ``message_ns``: time of a message between rank and controller. Raises
    ValueError where the programs cannot end, and with ``keep_leases`` where the
    operations of a channel do not count up by one.
    """
    if keep_leases and not prepared.counts_up:
        raise UserError(
            "sequence: got operations of a channel that are not numbered one by one; allowed with"
            " leases that stay: each one more than the last, on every rank"
        )
    counters = _settings(mode, latency_ns, keep_leases=keep_leases, message_ns=message_ns)
    out = _carried_out(prepared, counters)
    _refuse_stuck(prepared, out)
    started_ns, ended_ns = out.steps["started_ns"].copy(), out.steps["ended_ns"].copy()
    heads = np.flatnonzero(np.diff(out.steps["row"], prepend=-1))
    table = {
        "iteration": out.steps["iteration"][heads],
        "rank": out.steps["rank"][heads],
        "begin_ns": out.results[:, state.R_BEGIN],
        "end_ns": out.results[:, state.R_END],
        **_account(out, started_ns, ended_ns, prepared.programs.columns["gap_ns"]),
    }
    table |= {name: out.results[:, state.R_STALL + n] for n, name in enumerate(_COLUMNS)}
    events, commands = out.n[[state.EVENTS, state.COMMANDS]].tolist()
    return Replayed(table, started_ns, ended_ns, events, commands)


def _account(
    out: EngineState, started_ns: Array, ended_ns: Array, gap_ns: Array
) -> dict[str, Array]:
    """For each row of results: time computed, communicated, and both at once.

    Operations of one rank may overlap; its computation does not.
    """
    begin_ns, end_ns = out.results[:, state.R_BEGIN], out.results[:, state.R_END]
    # The rows lie one behind another on one axis of time.
    stops = np.cumsum(end_ns - begin_ns + 1)
    ahead_ns, row = stops - end_ns, out.steps["row"]

    def inside(steps: Array, starts: Array, ends: Array) -> tuple[Array, Array, Array]:
        own = row[steps]
        low, high, ahead = begin_ns[own], end_ns[own], ahead_ns[own]
        return own, np.clip(starts, low, high) + ahead, np.clip(ends, low, high) + ahead

    begun = np.flatnonzero(started_ns >= 0)
    spans = merged(*inside(begun, started_ns[begun], ended_ns[begun])[1:])
    computed = np.flatnonzero(gap_ns)
    since_ns = out.steps["computing_ns"][computed]
    computed, since_ns = computed[since_ns >= 0], since_ns[since_ns >= 0]
    own, starts, ends = inside(computed, since_ns, since_ns + gap_ns[computed])
    hidden_ns = covered_before(*spans, ends) - covered_before(*spans, starts)
    return {
        "compute_ns": np.bincount(own, ends - starts, len(stops)).astype(np.int64),
        "communication_ns": covered_before(*spans, stops)
        - covered_before(*spans, begin_ns + ahead_ns),
        "hidden_ns": np.bincount(own, hidden_ns, len(stops)).astype(np.int64),
    }


def merged(starts: Array, ends: Array) -> tuple[Array, Array]:
    """The same moments as spans that do not overlap, in order."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    new = np.append(True, starts[1:] > ends[:-1])[: len(starts)]
    last = np.append(np.flatnonzero(new)[1:], len(starts)) - 1
    return starts[new], ends[last] if len(starts) else ends


def covered_before(begins: Array, ends: Array, time_ns: Array) -> Array:
    """How much of the time before each moment lies in spans that do not overlap."""
    at = np.searchsorted(begins, time_ns, side="right")
    before = np.append(0, np.cumsum(ends - begins))[at]
    covered: Array = before - np.where(at > 0, np.maximum(np.append(0, ends)[at] - time_ns, 0), 0)
    return covered


def run_graph(prepared: Prepared, mode: Mode, latency_ns: int) -> EngineState:
    """The engine's state after the steps of a graph, all of them ended or not."""
    counters = _settings(mode, latency_ns, keep_leases=False, message_ns=0)
    counters[state.GRAPH] = True
    return _carried_out(prepared, counters)


def _settings(mode: Mode, latency_ns: int, *, keep_leases: bool, message_ns: int) -> Array:
    """The counters of the compiled engine with the settings."""
    counters = np.zeros(state.COUNTERS, np.int64)
    counters[state.OPTICAL] = mode != "electrical"
    counters[state.PROVISIONED] = mode == "provisioned"
    counters[state.LEASES_LAST] = keep_leases
    counters[state.LATENCY_NS], counters[state.MESSAGE_NS] = latency_ns, message_ns
    counters[state.PATIENCE_NS], counters[state.IMPATIENT_NS] = PATIENCE_NS, IMPATIENT_NS
    return counters


def _carried_out(prepared: Prepared, counters: Array, log_size: int = 0) -> EngineState:
    """The state after the last event, with room for so many entries of the log."""
    from railx.replay.kernels.ranks import run

    room = 2 * (len(prepared.state.lanes) + len(prepared.state.slots)) + 16
    while True:
        fresh = EngineState(*(array.copy() for array in prepared.state))
        log, actions = np.zeros((log_size, 3), np.int64), np.zeros(room, state.ACTION)
        fresh = fresh._replace(n=counters.copy(), log=log, actions=actions)
        run(fresh)
        if not fresh.n[state.OVERFLOWED]:
            return fresh
        room *= 2


def _refuse_stuck(prepared: Prepared, out: EngineState) -> None:
    """ValueError for the first rank that has not finished."""
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
    names = ("channel", "sequence", "iteration", "does")
    columns, channels = prepared.programs.columns, prepared.programs.channels
    channel, sequence, iteration, does = (int(columns[name][number]) for name in names)
    key = (channels[channel], sequence) if channel >= 0 else None
    number -= int(out.ranks["first"][rank])
    raise UserError(stuck_message(rank, number, iteration, DOES[does], key))
