"""Networks under a trace of faults: the largest job and small jobs over time.

The trace names servers; a server that is down takes its chips. Servers get positions at
random, the same for all networks of a draw, as a trace does not say where they stand.
Networks smaller than the trace take the first servers of the draw. Cables and switches
do not fail.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.io import in_repository
from railx.progress import counted
from railx.tenancy.places import NetworkPlaces
from railx.tenancy.settings import FaultTraceSettings, TraceSettings
from railx.vocabulary.arrays import BoolArray, FloatArray

Rows = list[dict[str, Any]]
_COLUMNS = ("time_days", "node", "event")
_FIDELITY = "analytic"


@dataclass(frozen=True, eq=False)
class FaultTrace:
    """Times at which servers fail or come back, and which are down after each.

    ``from_days`` (float[times]) begins with 0; ``down`` is bool[times, servers].
    ``days`` is the end of the last interval.
    """

    from_days: FloatArray
    down: BoolArray
    days: float

    def sampled(self, step_days: float | None) -> Iterator[tuple[float, float, BoolArray]]:
        """Start, length and servers down of every interval, or at every step."""
        if step_days is None:
            lengths = np.diff([*self.from_days, self.days])
            for start, length, down in zip(self.from_days, lengths, self.down, strict=True):
                if length > 0:
                    yield float(start), float(length), down
            return
        for start in np.arange(0.0, self.days, step_days):
            at = int(np.searchsorted(self.from_days, start, side="right")) - 1
            yield float(start), min(step_days, self.days - float(start)), self.down[at]


def read_trace(path: str | Path, servers: int, days: float) -> FaultTrace:
    """Read the events of a trace (columns time_days, node, event and others).

    A server is down from the first fault_start until every fault has its fault_end.
    UserError names file and line.
    """
    path = in_repository(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; allowed: a CSV trace of faults")
    times: dict[float, list[tuple[int, int]]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if not set(_COLUMNS) <= set(reader.fieldnames or ()):
            raise UserError(f"{path}: allowed: the columns {', '.join(_COLUMNS)}")
        for number, row in enumerate(reader, start=2):
            try:
                at, server = float(row["time_days"]), int(row["node"])
                change = {"fault_start": 1, "fault_end": -1}[row["event"]]
            except (KeyError, TypeError, ValueError):
                raise UserError(
                    f"{path}, line {number}: allowed: a time, a server's number, and fault_start or"
                    " fault_end"
                ) from None
            if not 0 <= server < servers or not 0 <= at <= days:
                raise UserError(
                    f"{path}, line {number}: got server {server} at {at} days; allowed: servers 0"
                    f" to {servers - 1}, 0 to {days:g} days"
                )
            times.setdefault(at, []).append((server, change))
    faults = np.zeros(servers, dtype=np.int64)
    starts, down = [0.0], [faults > 0]
    for at in sorted(times):
        for server, change in times[at]:
            faults[server] += change
        if (faults < 0).any():
            raise UserError(f"{path}: a fault ends at {at} days that has not begun")
        starts.append(at)
        down.append(faults > 0)
    return FaultTrace(np.array(starts), np.array(down), days)


def trace_table(settings: TraceSettings, seed: int) -> Rows:
    """One row per network, draw, interval and size of small jobs.

    Shares are of all chips of the network. ``largest_share`` is the largest job's,
    ``usable_share`` that of the small jobs which fit at once; ``days`` is the length of
    the interval.
    """
    trace = read_trace(settings.file, settings.servers, settings.days)
    networks = {name: NetworkPlaces(of) for name, of in settings.networks.items()}
    return [
        {"network": name} | row
        for draw in counted(range(settings.draws), "draws of positions")
        for name, network in networks.items()
        for row in network_rows(settings, trace, network, draw, seed)
    ]


def network_rows(
    settings: FaultTraceSettings, trace: FaultTrace, network: NetworkPlaces, draw: int, seed: int
) -> Iterator[dict[str, Any]]:
    """The rows of one network and draw, without its name."""
    order = np.random.default_rng([seed, draw]).permutation(settings.servers)
    solved: dict[bytes, tuple[int, ...]] = {}
    for start, length, down in trace.sampled(settings.step_days):
        failed = np.repeat(down[order], settings.chips_per_server)[: network.chips]
        key = failed.tobytes()
        if key not in solved:
            solved[key] = (
                network.largest(~failed),
                *(network.usable(~failed, size) for size in settings.job_chips),
            )
        largest, *usable = solved[key]
        for size, chips in zip(settings.job_chips, usable, strict=True):
            yield {
                "chips": network.chips,
                "draw": draw,
                "from_days": start,
                "days": length,
                "failed_servers": int(down.sum()),
                "healthy_share": 1 - float(failed.mean()),
                "largest_share": largest / network.chips,
                "job_chips": size,
                "usable_share": chips / network.chips,
                "fidelity": _FIDELITY,
            }


def spare_table(settings: TraceSettings, rows: Rows) -> Rows:
    """One row per network, draw and share of spare chips: for how much of the time a
    job of all other chips fits.
    """
    first = settings.job_chips[0]
    series: dict[tuple[str, int], Rows] = {}
    for row in rows:
        if row["job_chips"] == first:
            series.setdefault((row["network"], row["draw"]), []).append(row)
    return [
        {
            "network": network,
            "chips": intervals[0]["chips"],
            "draw": draw,
            "spare_share": spare,
            "time_share": sum(
                row["days"] for row in intervals if row["largest_share"] >= 1 - spare - 1e-12
            )
            / sum(row["days"] for row in intervals),
            "fidelity": _FIDELITY,
        }
        for (network, draw), intervals in series.items()
        for spare in settings.spare_shares
    ]
