"""Stage circuits: a topology -> the cross-connect list of its optical switches."""

from __future__ import annotations

from railx.errors import UserError
from workflow.cache_keys import remembered
from workflow.outputs import File
from workflow.stage import ByHand, Config, FromStage, Item, Job, Stage, Summary


def run(job: Job) -> Summary:
    """Write the cross-connects, if any (else UserError); return their counts."""
    from railx.families import read_topology
    from railx.vocabulary.cross_connects import write_circuits, write_circuits_csv

    graph = read_topology(job.file("topology"))
    circuits = graph.circuits
    if circuits is None:
        raise UserError(
            f"topology: {graph.family} has no optical switches, so nothing to cross-connect"
        )
    job.write("circuits", write_circuits, graph)
    job.write("csv", write_circuits_csv, graph)
    return {
        "family": graph.family,
        "optical_switches": int(circuits.ocs.max()) + 1,
        "circuits": len(circuits),
    }


def _switched(experiment: Config) -> list[str]:
    topologies = experiment["topologies"]
    return [name for name in topologies if _is_switched(topologies[name]["family"])]


def _is_switched(name: str) -> bool:
    """Whether a family has optical switches; one from outside the project is asked."""
    if name in _switched_families():
        return bool(_switched_families()[name])
    from railx.families import family_named

    return family_named(name).switched


@remembered
def _switched_families() -> dict[str, bool]:
    from railx.families import FAMILIES

    return {family.name: family.switched for family in FAMILIES}


STAGE = Stage(
    name="circuits",
    help="cross-connects of the optical switches of a topology, switch by switch",
    message="Cross-connects of {item}",
    item=Item("topology", _switched),
    inputs=lambda _, topology: {"topology": FromStage("topology.graph", topology)},
    outputs={"circuits": File("{topology}/circuits.json"), "csv": File("{topology}/circuits.csv")},
    run=run,
    by_hand=ByHand(
        groups=("topology",),
        example="railx circuits topology=railx_hyperx --out circuits.csv",
        out="the list to write (.json or .csv)",
        writes={".json": "circuits", ".csv": "csv"},
        settings=lambda _: None,
        before={"topology": "topology.graph"},
    ),
)
