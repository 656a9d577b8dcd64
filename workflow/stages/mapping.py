"""Stage mapping: one topology -> the time of a training step of every job, at equal
bandwidth and at equal cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.families import TopologySettings, build_topology, family_of, read_topology
from railx.io import write_json, write_table
from railx.mapping import MappingSettings, comparison_bases, equal_bandwidth, step_times
from railx.settings import SettingsError, load

__all__ = ["run"]


def run(
    mapping: Mapping[str, Any] | MappingSettings,
    *,
    name: str,
    topology_path: str | Path | None = None,
    topology: TopologySettings | None = None,
    reference: TopologySettings | Mapping[str, Any] | None = None,
    steps_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Lay every job on the topology of the file, as ``name`` of ``mapping.topologies``;
    return the step times as one flat summary. ``reference``: settings of the
    topology that the mapping names as its reference, which the file is priced against.

    Any other ``topology`` can be given by its settings: it takes the routings of
    ``name`` that its family has (else the family's first) and is compared at equal
    bandwidth alone.
    """
    settings: MappingSettings = load(MappingSettings, mapping, "mapping")
    if name not in settings.topologies:
        raise SettingsError(
            f"mapping.topologies.{name}", f"is missing; allowed: {', '.join(settings.topologies)}"
        )
    if (topology_path is None) == (topology is None):
        raise TypeError("one of topology_path and topology is needed")
    if (topology_path is None) != (reference is None):
        raise TypeError("reference is needed with topology_path, and only there")
    routings: tuple[str, ...] = settings.topologies[name].routings
    if topology_path is not None:
        graph = read_topology(topology_path)
        bases = comparison_bases(
            settings, graph, name, load(TopologySettings, reference, "topologies")
        )
    else:
        graph = build_topology(load(TopologySettings, topology, "topology"))
        offered = family_of(graph).routings
        routings = tuple(routing for routing in routings if routing in offered) or offered[:1]
        bases, name = [equal_bandwidth(settings, graph)], graph.family
    rows = step_times(graph, routings, settings.jobs, bases, name)
    if steps_path is not None:
        write_table(steps_path, rows)
    summary: dict[str, Any] = {"topology": name, "family": graph.family, "chips": graph.chips}
    for row in rows:
        for key in ("reason",) if row["step_ms"] is None else ("step_ms", "tokens_per_s"):
            summary[f"{row['job']}.{row['basis']}.{key}"] = row[key]
    summary["fidelity"] = rows[0]["fidelity"]
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary
