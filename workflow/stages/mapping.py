"""Stage mapping: one topology -> the time of a training step of every job.

At equal bandwidth and at equal cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workflow.stage import (
    ByHand,
    Item,
    Job,
    Json,
    Made,
    Stage,
    Summary,
    Table,
    Tracked,
    real,
    text,
    whole,
)

if TYPE_CHECKING:
    from railx.mapping import Basis, MappingSettings
    from railx.vocabulary.topology import Topology

__all__ = ["STAGE", "run", "run_any_topology"]


def run(job: Job) -> Summary:
    """Lay every job on the topology; return the step times as one flat summary.

    The topology is used as the item of the settings' topologies says. ``reference`` is
    the topology against which the others are priced.
    """
    from railx.families import read_topology
    from railx.mapping import MappingSettings, comparison_bases
    from railx.settings import SettingsError, load

    settings: MappingSettings = load(MappingSettings, job.settings, "mapping")
    if job.item not in settings.topologies:
        raise SettingsError(
            f"mapping.topologies.{job.item}",
            f"is missing; allowed: {', '.join(settings.topologies)}",
        )
    graph = read_topology(job.file("topology"))
    reference = read_topology(job.file("reference")).settings
    bases = comparison_bases(settings, graph, job.item, reference)
    return _lay(job, graph, settings.topologies[job.item].routings, settings, bases, job.item)


def run_any_topology(job: Job) -> Summary:
    """Lay every job on any topology, compared at equal bandwidth alone.

    It takes the routings of the settings' reference that its family has (else the
    family's first).
    """
    from railx.families import family_of, read_topology
    from railx.mapping import MappingSettings, equal_bandwidth
    from railx.settings import load

    settings: MappingSettings = load(MappingSettings, job.settings, "mapping")
    graph = read_topology(job.file("topology"))
    offered = family_of(graph).routings
    wanted = settings.topologies[settings.reference].routings
    routings = tuple(routing for routing in wanted if routing in offered) or offered[:1]
    return _lay(job, graph, routings, settings, [equal_bandwidth(settings, graph)], graph.family)


def _lay(
    job: Job,
    graph: Topology,
    routings: tuple[str, ...],
    settings: MappingSettings,
    bases: list[Basis],
    name: str,
) -> Summary:
    from railx.mapping import step_times

    rows = step_times(graph, routings, settings.jobs, bases, name)
    job.write_table("steps", rows)
    summary: Summary = {"topology": name, "family": graph.family, "chips": graph.chips}
    for row in rows:
        for key in ("reason",) if row["step_ms"] is None else ("step_ms", "tokens_per_s"):
            summary[f"{row['job']}.{row['basis']}.{key}"] = row[key]
    summary["fidelity"] = rows[0]["fidelity"]
    job.write_json("summary", summary)
    return summary


_COLUMNS = (
    text("topology", "family")
    | whole("topology_chips")
    | text("job")
    | whole("chips")
    | text("placement", "basis")
    | real("port_factor", "cost_per_chip_usd")
    | text("part", "way", "routing")
    | real("ms", "step_ms", "tokens_per_s")
    | text("reason", "fidelity")
)

STAGE = Stage(
    name="mapping",
    help="time of a training step of each job on a topology (laid out as the mapping's reference)",
    message="Step times on {item}",
    item=Item("topology", lambda experiment: experiment["mapping"]["topologies"]),
    settings=lambda experiment, _: experiment["mapping"],
    inputs=lambda experiment, topology: {
        "topology": Made("topology.graph", topology),
        "reference": Made("topology.graph", experiment["mapping"]["reference"]),
        "catalogue": Path(experiment["mapping"]["catalogue"]),
    },
    outputs={
        "steps": Table("{topology}/steps.parquet", _COLUMNS, claims=True),
        "summary": Json("{topology}/summary.json", claims=True),
    },
    run=run,
    by_hand=ByHand(
        groups=("topology", "mapping"),
        example="railx mapping topology=railx_hyperx_m4n2 --json",
        out="the table of step times to write (.parquet)",
        writes={".parquet": "steps"},
        settings=lambda chosen: chosen["mapping"],
        before={"topology": "topology.graph"},
        run=run_any_topology,
    ),
    tracked=Tracked("summary", ("steps",)),
)
