"""Stage sweep: one topology, routing and traffic pattern -> latency against offered
load and the saturation point.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from railx.families import build_routing, read_topology
from railx.io import write_json, write_table
from railx.network.packets.sweep import sweep_loads
from railx.network.settings import SweepSettings, TrafficSettings
from railx.network.throughput import ideal_bound
from railx.network.traffic import traffic_flows
from railx.settings import load
from railx.vocabulary.routing.analysis import table_lane_loads
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

__all__ = ["run"]

#: What the rows of a sweep repeat from its summary.
_OF_THE_SWEEP = (
    "saturation_flits_per_chip_cycle",
    "bound_flits_per_chip_cycle",
    "ideal_flits_per_chip_cycle",
)


def run(
    settings: Mapping[str, Any] | SweepSettings,
    *,
    seed: int,
    name: str,
    topology_path: str | Path,
    packets_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Sweep the loads on the topology of the file; write the rows and the summary where
    paths are given, return the summary.

    ``name`` is the sweep's; its rows carry it beside the topology's, and the sweep's
    saturation point and static limits.
    """
    sweep: SweepSettings = load(SweepSettings, settings, f"sweeps.{name}")
    topology = read_topology(topology_path)
    table = build_routing(topology, sweep.network.routing)
    bound, ideal = _limits(topology, table, sweep.traffic, seed)
    rows, summary = sweep_loads(
        topology, table, sweep, seed, sweep.topology, bound=bound, ideal=ideal
    )
    if packets_path is not None:
        own = {key: summary[key] for key in _OF_THE_SWEEP}
        write_table(packets_path, [{"sweep": name, **row, **own} for row in rows])
    summary = {"sweep": name, **summary}
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary


def _limits(
    topology: Topology, table: RoutingTable, traffic: TrafficSettings, seed: int
) -> tuple[float, float]:
    """Offered loads at which the busiest lane is full (bound) and at which the external
    ones would be, evenly loaded (ideal).
    """
    demand = (
        None if traffic.pattern == "uniform" else traffic_flows(topology, traffic, seed).demand()
    )
    lane_load = table_lane_loads(topology, table, demand)
    width = topology.links.gbps / topology.settings.port_gbps
    bound = float((width / np.maximum(lane_load, 1e-12)).min())
    return bound, ideal_bound(topology, lane_load)
