"""Stage bandwidth: topology -> bandwidth and latency by group size and placement."""

from __future__ import annotations

from workflow.outputs import Json, Table, columns
from workflow.stage import ByHand, Experiment, FromStage, Item, Job, Stage, Summary, Tracked


def run(job: Job) -> Summary:
    """Place a job, write bandwidths of its groups; those of consecutive ranks.

    By hand, a topology that the settings do not name takes the family's first routing.
    """
    from railx.families import family_of, read_topology
    from railx.network.group_bandwidth import group_bandwidth
    from railx.network.settings import BandwidthSettings

    settings: BandwidthSettings = job.load(BandwidthSettings)
    graph = read_topology(job.file("topology"))
    name = job.item or graph.family
    routing = settings.topologies.get(name, family_of(graph).routings[0])
    rows = group_bandwidth(graph, settings, routing, name)
    job.write_table("groups", rows)
    summary: Summary = {"topology": name, "family": graph.family, "ranks": settings.ranks}
    for row in rows:
        if row["stride"] == 1 and row["fidelity"] == settings.fidelities[0]:
            key = f"{row['operation']}_{row['group_size']}_{row['algorithm']}"
            summary[f"{key}_gb_s"] = row["gb_s"]
    summary["fidelity"] = settings.fidelities[0]
    return summary


_GROUPS = columns(
    "text topology operation algorithm, integer group_size stride, text placement,"
    " real gb_s latency_us, text fidelity"
)


def check(experiment: Experiment) -> None:
    """Refuse more ranks than a topology has chips."""
    from railx.families.sizes import vertex_count
    from railx.settings import SettingsError

    for name in experiment.bandwidth.topologies:
        vertices = vertex_count(experiment.topologies[name])
        if experiment.bandwidth.ranks > vertices:
            got = f"got {experiment.bandwidth.ranks:,}"
            allowed = f"fewer than the {vertices:,} chips and switches of {name}"
            raise SettingsError("bandwidth.ranks", f"{got}; allowed: {allowed}")


STAGE = Stage(
    name="bandwidth",
    help="bandwidth and latency of collectives on a topology, by group size and placement",
    message="Bandwidth of groups on {item}",
    item=Item("topology", lambda experiment: experiment["bandwidth"]["topologies"]),
    settings=lambda experiment, _: experiment["bandwidth"],
    inputs=lambda _, topology: {"topology": FromStage("topology.graph", topology)},
    outputs={"groups": Table(_GROUPS), "summary": Json()},
    run=run,
    by_hand=ByHand(
        groups=("topology", "bandwidth"),
        example="railx bandwidth topology=torus_2d bandwidth.ranks=16 --json",
        out="the table of bandwidths to write (.parquet)",
        writes={".parquet": "groups"},
        before={"topology": "topology.graph"},
    ),
    tracked=Tracked("summary", ("groups",)),
    check=check,
)
