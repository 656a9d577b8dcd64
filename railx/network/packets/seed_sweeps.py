"""Packet sweeps by seed: simulated on a topology in a file, or read from shards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np

from railx.families import build_routing, family_of, read_topology
from railx.io import read_json, read_rows
from railx.network.packets.sweep import Sweep, swept_seeds
from railx.network.settings import SweepSettings, TrafficSettings
from railx.network.throughput import ideal_bound
from railx.network.traffic import circuits_for, traffic_flows
from railx.vocabulary.routing.analysis import table_lane_loads
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology


def sweep_seeds(graph: Path, sweep: SweepSettings, seed: int, seeds: Sequence[int]) -> list[Sweep]:
    """The sweeps of ``seeds`` on the topology in a file; ``seed``: the experiment's.

    Circuits that follow the traffic are set for what each seed draws.
    """
    topology, traffic = read_topology(graph), sweep.traffic
    if family_of(topology).traffic_circuits is None or traffic.pattern == "uniform":
        return _swept(topology, sweep, seed, seeds)
    wired = ((circuits_for(topology, traffic, drawn), drawn) for drawn in seeds)
    return [one for network, drawn in wired for one in _swept(network, sweep, seed, [drawn])]


def _swept(
    topology: Topology, sweep: SweepSettings, seed: int, seeds: Sequence[int]
) -> list[Sweep]:
    table = build_routing(topology, sweep.network.routing, grouped=True)

    @cache
    def limits(drawn_by: int) -> tuple[float, float]:
        return _limits(topology, table, sweep.traffic, drawn_by)

    return swept_seeds(
        topology,
        table,
        sweep,
        seeds,
        sweep.topology,
        # uniform traffic is the same under any seed
        lambda drawn_seed: limits(seed if sweep.traffic.pattern == "uniform" else drawn_seed),
    )


def read_sweeps(rows: Path, summaries: Path) -> list[Sweep]:
    """The sweeps of a shard, seed by seed, as stage seeds wrote them."""
    left = iter(read_rows(rows))
    return [
        Sweep(list(islice(left, summary["runs"])), summary, []) for summary in read_json(summaries)
    ]


def _limits(
    topology: Topology, table: RoutingTable, traffic: TrafficSettings, seed: int
) -> tuple[float, float]:
    """Loads at which the busiest lane is full (bound), or all external ones (ideal)."""
    demand = (
        None if traffic.pattern == "uniform" else traffic_flows(topology, traffic, seed).demand()
    )
    lane_load = table_lane_loads(topology, table, demand)
    width = topology.links.gbps / topology.settings.port_gbps
    bound = float((width / np.maximum(lane_load, 1e-12)).min())
    return bound, ideal_bound(topology, lane_load)
