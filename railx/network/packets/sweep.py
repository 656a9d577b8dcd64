"""Latency against offered load, and the load at which a network saturates."""

from __future__ import annotations

import dataclasses
from typing import Any

from railx.network.packets.simulate import simulate_packets, summary_row
from railx.network.routing import build_routing
from railx.network.settings import SweepSettings
from railx.topology import Topology, ports_per_chip, settings_of

__all__ = ["sweep_loads"]


def sweep_loads(topology: Topology, sweep: SweepSettings, seed: int, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of every load that was tried, in ascending order, and a summary.

    The search halves the gap between the largest load that is not saturated and the smallest that is until it is
    ``precision`` of the latter. ``saturation_flits_per_chip_cycle`` is the largest load found unsaturated,
    ``most_accepted_flits_per_chip_cycle`` the most that any load delivered.
    """
    table = build_routing(topology, sweep.network.routing)
    most = 2.0 * ports_per_chip(settings_of(topology))
    tried: dict[float, dict[str, Any]] = {}

    def saturated(load: float) -> bool:
        if load not in tried:
            traffic = dataclasses.replace(sweep.traffic, load=load)
            result = simulate_packets(topology, table, traffic, sweep.network, seed)
            row = summary_row(topology, name, traffic, sweep.network, result, seed)
            # What depends on the machine stays out of a table that is compared between runs.
            row = {key: value for key, value in row.items() if not key.endswith("_per_second")}
            full = result.accepted_flits_per_chip_cycle < sweep.accepted_share * result.offered_flits_per_chip_cycle
            tried[load] = {**row, "saturated": full}
        return bool(tried[load]["saturated"])

    for load in sweep.loads:
        saturated(load)
    below = max((load for load, row in tried.items() if not row["saturated"]), default=0.0)
    above = min((load for load, row in tried.items() if row["saturated"] and load > below), default=None)
    while above is None and below < most:
        load = min(most, 2 * below or 1.0)
        if saturated(load):
            above = load
        else:
            below = load
    while above is not None and above - below > sweep.precision * above:
        middle = (below + above) / 2
        if saturated(middle):
            above = middle
        else:
            below = middle
    rows = [tried[load] for load in sorted(tried)]
    settings = settings_of(topology)
    accepted = max(row["accepted_flits_per_chip_cycle"] for row in rows)
    summary = {
        "topology": name,
        "family": topology.family,
        "chips": topology.chips,
        "traffic": sweep.traffic.pattern,
        "routing": table.routing,
        "saturation_flits_per_chip_cycle": below,
        "most_accepted_flits_per_chip_cycle": accepted,
        "most_accepted_gb_s_per_chip": accepted * settings.port_gbps / 8,
        "least_latency_cycles": rows[0]["latency_mean_cycles"],
        "loads_tried": len(rows),
        "seed": seed,
        "fidelity": "packet",
    }
    return rows, summary
