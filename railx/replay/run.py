"""Replays of programs as arrays, by the compiled engine.

The tables of a job (:func:`prepare`) serve every mode and latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from railx.errors import UserError
from railx.fabric.settings import Mode
from railx.replay.engine import (
    IMPATIENT_NS,
    PATIENCE_NS,
    ReplayedIteration,
    stuck_message,
)
from railx.replay.prepared import Prepared, prepare
from railx.replay.programs import DOES, Programs
from railx.replay.wiring import CircuitModel

if TYPE_CHECKING:
    from railx.replay.kernels import EngineState

__all__ = ["Prepared", "Replayed", "prepare", "replay_programs"]

Array = npt.NDArray[Any]

_ISSUE = DOES.index("issue")
_COLUMNS = ("stall_ns", "wait_ns", "requests", "reconfigurations", "mispredictions")


@dataclass(frozen=True, eq=False)
class Replayed:
    """The results of a replay.

    ``table`` has a column for each field of
    :class:`railx.replay.engine.ReplayedIteration` and an entry for each rank and
    iteration. ``started_ns`` and ``ended_ns`` have one for each step of the programs,
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
    keep_leases: bool = False,
    message_ns: int = 0,
) -> Replayed:
    """Carry out programs on a virtual clock that starts at 0.

    ``model`` may be None where ``programs`` were prepared for one. ``keep_leases``:
    leases stay with their members until they are recalled, as in a run. ``message_ns``:
    time of a message between rank and controller. Raises ValueError where the programs
    cannot end, and with ``keep_leases`` where the operations of a channel do not count
    up by one.
    """
    from railx.replay import kernels
    from railx.replay.kernels import state

    if isinstance(programs, Prepared):
        prepared = programs
    else:
        if model is None:
            raise ValueError("model: got None; allowed: the one that the programs run under")
        prepared = prepare(programs, model)
    if keep_leases and not prepared.counts_up:
        raise UserError(
            "sequence: got operations of a channel that are not numbered one by one; allowed with"
            " leases that stay: each one more than the last, on every rank"
        )
    counters = _settings(mode, latency_ns, keep_leases=keep_leases, message_ns=message_ns)
    out = _carried_out(prepared, counters)
    _refuse_stuck(prepared, out)
    totals = np.zeros((len(out.results), 3), np.int64)
    kernels.account(out, totals)
    heads = np.flatnonzero(np.diff(out.steps["row"], prepend=-1))
    table = {
        "iteration": out.steps["iteration"][heads],
        "rank": out.steps["rank"][heads],
        "begin_ns": out.results[:, state.R_BEGIN],
        "end_ns": out.results[:, state.R_END],
        "compute_ns": totals[:, 0],
        "communication_ns": totals[:, 1],
        "hidden_ns": totals[:, 2],
    }
    table |= {name: out.results[:, state.R_STALL + n] for n, name in enumerate(_COLUMNS)}
    return Replayed(
        table,
        out.steps["started_ns"].copy(),
        out.steps["ended_ns"].copy(),
        int(out.n[state.EVENTS]),
        int(out.n[state.COMMANDS]),
    )


def run_graph(prepared: Prepared, mode: Mode, latency_ns: int) -> EngineState:
    """The engine's state after the steps of a graph, all of them ended or not."""
    from railx.replay.kernels import state

    counters = _settings(mode, latency_ns, keep_leases=False, message_ns=0)
    counters[state.GRAPH] = True
    return _carried_out(prepared, counters)


def _settings(mode: Mode, latency_ns: int, *, keep_leases: bool, message_ns: int) -> Array:
    """The counters of the compiled engine with the settings."""
    from railx.replay.kernels import state

    counters = np.zeros(state.COUNTERS, np.int64)
    counters[state.OPTICAL] = mode != "electrical"
    counters[state.PROVISIONED] = mode == "provisioned"
    counters[state.LEASES_LAST] = keep_leases
    counters[state.LATENCY_NS], counters[state.MESSAGE_NS] = latency_ns, message_ns
    counters[state.PATIENCE_NS], counters[state.IMPATIENT_NS] = PATIENCE_NS, IMPATIENT_NS
    return counters


def _carried_out(prepared: Prepared, counters: Array, log_size: int = 0) -> EngineState:
    """The state after the last event, with room for so many entries of the log."""
    from railx.replay import kernels
    from railx.replay.kernels import state

    room = 2 * (len(prepared.state.lanes) + len(prepared.state.slots)) + 16
    while True:
        fresh = kernels.EngineState(*(array.copy() for array in prepared.state))
        log, actions = np.zeros((log_size, 3), np.int64), np.zeros(room, state.ACTION)
        fresh = fresh._replace(n=counters.copy(), log=log, actions=actions)
        kernels.run(fresh)
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
    columns, channels = prepared.programs.columns, prepared.programs.channels
    channel, does = int(columns["channel"][number]), DOES[columns["does"][number]]
    key = (channels[channel], int(columns["sequence"][number])) if channel >= 0 else None
    iteration = int(columns["iteration"][number])
    number -= int(out.ranks["first"][rank])
    raise UserError(stuck_message(rank, number, iteration, does, key))
