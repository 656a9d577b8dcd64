"""Latency against offered load, and the load at which a network saturates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from railx.network.settings import SweepSettings
from railx.progress import counted
from railx.vocabulary.routing.analysis import with_virtual_channels
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

if TYPE_CHECKING:
    from railx.network.packets.simulate import PacketResult

#: Overload, as a multiple of the saturation point, of the run for the largest accepted
#: rate.
_OVERLOAD = 1.25
#: What the rows of a seed repeat from its summary.
_IN_EVERY_ROW = (
    "saturation_flits_per_chip_cycle",
    "bound_flits_per_chip_cycle",
    "ideal_flits_per_chip_cycle",
)


@dataclass(frozen=True)
class Sweep:
    """A sweep: rows by seed and ascending load, a summary, and speeds by row."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    speed: list[dict[str, Any]]


@dataclass(eq=False)
class _Runs:
    """The runs of one sweep by load; each load is simulated once."""

    topology: Topology
    table: RoutingTable
    settings: SweepSettings
    seed: int
    results: dict[float, PacketResult] = dataclasses.field(default_factory=dict)

    def at(self, load: float) -> PacketResult:
        from railx.network.packets.simulate import simulate_packets

        if load not in self.results:
            traffic = dataclasses.replace(self.settings.traffic, load=load)
            self.results[load] = simulate_packets(
                self.topology, self.table, traffic, self.settings.network, self.seed
            )
        return self.results[load]

    def saturated(self, load: float) -> bool:
        """Whether less than the accepted share of what was offered has arrived."""
        result = self.at(load)
        return (
            result.accepted_flits_per_chip_cycle
            < self.settings.accepted_share * result.offered_flits_per_chip_cycle
        )


def sweep_loads(
    topology: Topology,
    table: RoutingTable,
    settings: SweepSettings,
    seed: int,
    name: str,
    *,
    bound: float | None = None,
    ideal: float | None = None,
) -> Sweep:
    """Run the loads of ``settings`` under one seed and search the saturation point.

    The search brackets the point (by the given loads, else by ``bound`` or doubling)
    and bisects until the bracket is no wider than ``precision`` of its upper end.
    ``saturation_flits_per_chip_cycle`` is its lower end, the highest unsaturated load
    (0 where even ``precision`` of the lowest load is saturated).
    ``max_accepted_flits_per_chip_cycle`` is the highest rate accepted in any run,
    including one at 1.25 times the saturation point. ``bound`` and ``ideal``
    (flits/(chip cycle), from the static loads) add the accepted share of each.
    """
    from railx.network.packets.simulate import speed_of, summary_row
    from railx.network.packets.zero_load import zero_load_latency_cycles

    table = with_virtual_channels(topology, table, settings.network.virtual_channels)
    runs = _Runs(topology, table, settings, seed)
    for load in counted(settings.loads, "loads"):
        runs.at(load)
    low, high = _bracket(runs, bound)
    while low > 0 and high - low > settings.precision * high:
        middle = (low + high) / 2
        if runs.saturated(middle):
            high = middle
        else:
            low = middle
    runs.at(_OVERLOAD * high)
    rows, speed = [], []
    for load in sorted(runs.results):
        traffic = dataclasses.replace(settings.traffic, load=load)
        row = summary_row(topology, name, traffic, settings.network, runs.at(load), seed)
        rows.append({**row, "saturated": runs.saturated(load)})
        named = {key: row[key] for key in ("seed", "offered_flits_per_chip_cycle")}
        speed.append({**named, **speed_of(runs.at(load))})
    accepted = max(row["accepted_flits_per_chip_cycle"] for row in rows)
    summary = {
        "topology": name,
        "family": topology.family,
        "chips": topology.chips,
        "traffic": settings.traffic.pattern,
        "routing": settings.network.routing,
        "virtual_channels": runs.at(high).virtual_channels,
        "saturation_flits_per_chip_cycle": low,
        "max_accepted_flits_per_chip_cycle": accepted,
        "zero_load_latency_cycles": zero_load_latency_cycles(topology, table, settings.network),
        "runs": len(rows),
        "seed": seed,
        "fidelity": "packet",
    }
    for key, limit in (("bound", bound), ("ideal", ideal)):
        if limit is not None:
            summary[f"{key}_flits_per_chip_cycle"] = limit
            summary[f"accepted_of_{key}"] = accepted / limit
            summary[f"saturation_of_{key}"] = low / limit
    return Sweep(rows, summary, speed)


def shard_of(seeds: Sequence[int], shard: int, shards: int) -> tuple[int, ...]:
    """The seeds of part ``shard`` (from 0) of ``shards``, in order."""
    first, last = (part * len(seeds) // shards for part in (shard, shard + 1))
    return tuple(seeds[first:last])


def swept_seeds(
    topology: Topology,
    table: RoutingTable,
    settings: SweepSettings,
    seeds: Sequence[int],
    name: str,
    limits: Callable[[int], tuple[float, float]],
) -> list[Sweep]:
    """:func:`sweep_loads` under each seed, whose bound and ideal ``limits`` gives."""
    sweeps = []
    for sweep_seed in counted(seeds, "seeds"):
        bound, ideal = limits(sweep_seed)
        sweeps.append(
            sweep_loads(topology, table, settings, sweep_seed, name, bound=bound, ideal=ideal)
        )
    return sweeps


def merged(sweeps: Sequence[Sweep]) -> Sweep:
    """The sweeps of all seeds, in their order, as one.

    The rows carry saturation, bound and ideal of their seed. The summary has the
    medians over the seeds, and the smallest and the largest saturation point.
    """
    rows = [
        {**row, **{key: sweep.summary[key] for key in _IN_EVERY_ROW}}
        for sweep in sweeps
        for row in sweep.rows
    ]
    first = sweeps[0].summary
    summary = {
        key: median(sweep.summary[key] for sweep in sweeps) if isinstance(value, float) else value
        for key, value in first.items()
    }
    points = [sweep.summary["saturation_flits_per_chip_cycle"] for sweep in sweeps]
    summary |= {
        "saturation_least_flits_per_chip_cycle": min(points),
        "saturation_most_flits_per_chip_cycle": max(points),
        "runs": len(rows),
        "repeats": len(sweeps),
    }
    return Sweep(rows, summary, [run for sweep in sweeps for run in sweep.speed])


def _bracket(runs: _Runs, bound: float | None) -> tuple[float, float]:
    """An unsaturated load (or nearly 0) and a saturated one, guessed by ``bound``."""
    loads = sorted(runs.results) or [0.1]
    high = next((load for load in loads if runs.saturated(load)), None)
    below = [load for load in loads if high is None or load < high]
    low = below[-1] if below else 0.0
    if high is None:
        # Loads far beyond saturation take longest to simulate. Uniform traffic is never
        # accepted beyond the bound.
        beyond = 0.0 if bound is None else 1.01 * bound / runs.settings.accepted_share
        high = beyond if low < beyond < 2 * low else 2 * low
        while not runs.saturated(high):
            low, high = high, 2 * high
    precision = runs.settings.precision * loads[0]
    while low == 0.0 and high > precision:
        if runs.saturated(high / 2):
            high /= 2
        else:
            low = high / 2
    return low, high
