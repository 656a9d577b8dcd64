"""Stage mapping: one topology -> the time of a training step of every job, at equal bandwidth and at equal cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.io import read_table, write_json, write_table
from railx.mapping import MappingSettings, injection_factor, step_times
from railx.settings import SettingsError, load
from railx.topology import Topology, TopologySettings, build_topology, read_topology

__all__ = ["run"]


def run(
    mapping: Mapping[str, Any] | MappingSettings,
    *,
    name: str,
    topology_path: str | Path | None = None,
    topology: TopologySettings | None = None,
    scale_path: str | Path | None = None,
    steps_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Lay every job on the topology of the file, or on the one that ``topology`` describes, as ``name`` of ``mapping.topologies``.

    ``scale_path``: the table of network costs by design; without it only equal bandwidth is compared. Returns the step times as
    one flat summary.
    """
    settings: MappingSettings = load(MappingSettings, mapping, "mapping")
    if name not in settings.topologies:
        raise SettingsError(f"mapping.topologies.{name}", f"is missing; allowed: {', '.join(settings.topologies)}")
    if (topology_path is None) == (topology is None):
        raise TypeError("one of topology_path and topology is needed")
    graph = (
        read_topology(topology_path) if topology_path is not None else build_topology(load(TopologySettings, topology, "topology"))
    )
    factors = _rate_factors(settings, graph, name, scale_path)
    rows = step_times(graph, settings.topologies[name].routing, settings.jobs, factors, name)
    if steps_path is not None:
        write_table(steps_path, rows)
    summary: dict[str, Any] = {"topology": name, "family": graph.family, "chips": graph.chips}
    for row in rows:
        summary[f"{row['job']}.{row['basis']}.step_ms"] = row["step_ms"]
        summary[f"{row['job']}.{row['basis']}.tokens_per_s"] = row["tokens_per_s"]
    summary["fidelity"] = rows[0]["fidelity"]
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary


def _rate_factors(settings: MappingSettings, topology: Topology, name: str, scale_path: str | Path | None) -> dict[str, float]:
    """What scales the ports, by basis of comparison."""
    equal = injection_factor(topology, settings.injection_gb_s_per_chip)
    factors = {"equal_bandwidth": equal}
    design = settings.topologies[name].design
    reference = settings.topologies[settings.reference].design
    if scale_path is not None and design is not None:
        costs = {
            row["topology"]: row["cost_per_chip_usd"]
            for row in read_table(scale_path).to_pylist()
            if row["target_chips"] == settings.cost_chips and row["price_set"] == settings.price_set
        }
        for wanted in (design, reference):
            if wanted not in costs:
                raise SettingsError(
                    "mapping",
                    f"{scale_path} has no cost of {wanted} for {settings.cost_chips} chips at prices {settings.price_set}; "
                    f"allowed: {', '.join(costs)}",
                )
        factors["equal_cost"] = equal * costs[reference] / costs[design]
    return factors
