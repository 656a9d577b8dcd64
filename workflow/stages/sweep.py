"""Stage sweep: one topology, routing and traffic pattern -> latency against offered load and the saturation point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.io import write_json, write_table
from railx.network.packets.sweep import sweep_loads
from railx.network.routing import build_routing
from railx.network.settings import SweepSettings
from railx.settings import load
from railx.topology import read_topology

__all__ = ["run"]


def run(
    settings: Mapping[str, Any] | SweepSettings,
    *,
    seed: int,
    name: str,
    topology_path: str | Path,
    packets_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Sweep the loads on the topology of the file; write the rows and the summary where paths are given, return the summary.

    ``name`` is the sweep's; its rows carry it beside the topology's.
    """
    sweep: SweepSettings = load(SweepSettings, settings, f"sweeps.{name}")
    topology = read_topology(topology_path)
    table = build_routing(topology, sweep.network.routing)
    rows, summary = sweep_loads(topology, table, sweep, seed, sweep.topology)
    if packets_path is not None:
        write_table(packets_path, [{"sweep": name, **row} for row in rows])
    summary = {"sweep": name, **summary}
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary
