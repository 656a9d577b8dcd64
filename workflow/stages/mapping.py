"""Stage mapping: a topology -> step times of all jobs at equal bandwidth and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from railx.errors import UserError
from railx.settings import SettingsError, check_names
from workflow.outputs import Json, Table, columns
from workflow.stage import ByHand, Experiment, FromStage, Item, Job, Stage, Summary, Tracked
from workflow.stages.economics import check_price_set

if TYPE_CHECKING:
    from railx.mapping.settings import MappingSettings
    from railx.mapping.step import Basis
    from railx.vocabulary.topology import Topology


def run(job: Job) -> Summary:
    """Lay every job on the topology; return the step times as one flat summary.

    The topology is used as the item of the settings' topologies says. ``reference`` is
    the topology against which the others are priced.
    """
    from railx.families import read_topology
    from railx.mapping.cost import comparison_bases, node_price_rows
    from railx.mapping.settings import MappingSettings

    settings: MappingSettings = job.load(MappingSettings)
    if job.item not in settings.topologies:
        allowed = ", ".join(settings.topologies)
        raise SettingsError(f"mapping.topologies.{job.item}", f"is missing; allowed: {allowed}")
    graph = read_topology(job.file("topology"))
    reference = read_topology(job.file("reference"))
    bases = comparison_bases(settings, graph, job.item, reference.settings)
    routings = settings.topologies[job.item].routings
    if "node_prices" in job.outputs:
        job.write_table(
            "node_prices", node_price_rows(settings, graph, job.item, routings, reference)
        )
    return _lay(job, graph, routings, settings, bases, job.item)


def run_any_topology(job: Job) -> Summary:
    """Lay every job on any topology, at equal bandwidth alone; UserError: no room.

    It takes the reference's routings that the family has, else the family's first.
    """
    from railx.families import family_of, read_topology
    from railx.mapping.cost import equal_bandwidth
    from railx.mapping.settings import MappingSettings

    settings: MappingSettings = job.load(MappingSettings)
    graph = read_topology(job.file("topology"))
    offered = family_of(graph).routings
    routings = settings.topologies[settings.reference].routings
    routings = tuple(routing for routing in routings if routing in offered) or offered[:1]
    bases = [equal_bandwidth(settings, graph)]
    summary = _lay(job, graph, routings, settings, bases, graph.family)
    if not any(key.endswith(".step_ms") for key in summary):
        (reason, *_) = (value for key, value in summary.items() if key.endswith(".reason"))
        raise UserError(f"mapping: no job has room on {graph.family}: {reason}")
    return summary


def _lay(
    job: Job,
    graph: Topology,
    routings: tuple[str, ...],
    settings: MappingSettings,
    bases: list[Basis],
    name: str,
) -> Summary:
    from railx.mapping.step import step_times

    rows = step_times(graph, routings, settings.jobs, bases, name)
    job.write_table("steps", rows)
    summary: Summary = {"topology": name, "family": graph.family, "chips": graph.chips}
    for row in rows:
        for key in ("reason",) if row["step_ms"] is None else ("step_ms", "tokens_per_s"):
            summary[f"{row['job']}.{row['basis']}.{key}"] = row[key]
    summary["fidelity"] = rows[0]["fidelity"]
    return summary


_COLUMNS = columns(
    "text topology family, integer topology_chips, text job, integer chips, text placement basis,"
    " real port_factor cost_per_chip_usd, text part way routing, real ms step_ms tokens_per_s,"
    " text reason fidelity"
)

_NODE_PRICES = columns(
    "text topology reference job,"
    " real node_gb_s node_usd_per_chip node_low_usd_per_chip node_high_usd_per_chip"
    " difference_usd_per_chip difference_low_usd_per_chip difference_high_usd_per_chip"
    " break_even_usd_per_chip, flag faster_free faster_priced flips, text fidelity"
)

#: Chips and switches of all topologies up to which jobs are placed for a try.
_MOST_PLACED = 4_000


def check(experiment: Experiment) -> None:
    """Refuse routings that a topology lacks, and jobs without room."""
    from railx.economics import read_catalogue
    from railx.families import family_of
    from railx.families.sizes import vertex_count
    from railx.mapping.layout import has_room

    mapping, topologies = experiment.mapping, experiment.topologies
    if mapping.node_price_set is not None:
        sets = read_catalogue(mapping.catalogue).price_sets
        check_names("mapping.node_price_set", (mapping.node_price_set,), sets)
    for name, mapped in mapping.topologies.items():
        offered = family_of(topologies[name]).routings
        for routing in mapped.routings:
            if routing not in offered:
                raise SettingsError(
                    f"mapping.topologies.{name}.routings",
                    f"got {routing!r}; allowed on {name}: {', '.join(offered)}",
                )
    vertices = {name: vertex_count(topologies[name]) for name in mapping.topologies}
    for name, job in mapping.jobs.items():
        chips, names = job.layout.chips, ", ".join(vertices)
        if chips > max(vertices.values()):
            raise SettingsError(
                f"mapping.jobs.{name}.layout",
                f"got {chips:,} chips; allowed: what fits at least one of {names}, the"
                f" largest of {max(vertices.values()):,}",
            )
        if sum(vertices.values()) <= _MOST_PLACED and not any(
            has_room(topologies[topology], job.layout.sizes) for topology in vertices
        ):
            got = f"got {chips:,} chips as {' x '.join(map(str, job.layout.sizes))}"
            allowed = f"what fits at least one of {names}"
            raise SettingsError(f"mapping.jobs.{name}.layout", f"{got}; allowed: {allowed}")


STAGE = Stage(
    name="mapping",
    help="time of a training step of each job on a topology (laid out as the mapping's reference)",
    message="Step times on {item}",
    item=Item("topology", lambda experiment: experiment["mapping"]["topologies"]),
    settings=lambda experiment, _: experiment["mapping"],
    inputs=lambda experiment, topology: {
        "topology": FromStage("topology.graph", topology),
        "reference": FromStage("topology.graph", experiment["mapping"]["reference"]),
        "catalogue": Path(experiment["mapping"]["catalogue"]),
    },
    outputs={"steps": Table(_COLUMNS), "node_prices": Table(_NODE_PRICES), "summary": Json()},
    run=run,
    by_hand=ByHand(
        groups=("topology", "mapping"),
        example="railx mapping topology=railx_hyperx_m4n2 --json",
        out="the table of step times to write (.parquet)",
        writes={".parquet": "steps"},
        before={"topology": "topology.graph"},
        run=run_any_topology,
    ),
    tracked=Tracked("summary", ("steps",)),
    check_settings={"mapping": check_price_set},
    check=check,
)
