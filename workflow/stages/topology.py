"""Stage topology: settings -> one file of links and circuits, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.families import TopologySettings, build_topology, write_topology
from railx.io import write_json
from railx.network.metrics import check_circuits, topology_metrics
from railx.settings import load

__all__ = ["run"]


def run(
    settings: Mapping[str, Any] | TopologySettings,
    *,
    name: str | None = None,
    topology_path: str | Path | None = None,
    metrics_path: str | Path | None = None,
) -> dict[str, Any]:
    """Build and check the topology; write it under its ``name`` (None: its family's)
    and its metrics where paths are given; return the metrics.
    """
    topology = build_topology(load(TopologySettings, settings, "topology"))
    if topology.circuits is not None:
        check_circuits(topology)
    metrics = topology_metrics(topology)
    if topology_path is not None:
        write_topology(topology_path, topology, name)
    if metrics_path is not None:
        write_json(metrics_path, metrics)
    return metrics
