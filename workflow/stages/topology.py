"""Stage topology: settings -> one file of links and circuits, and its metrics."""

from __future__ import annotations

from typing import Any

from railx.effort import LimitSettings
from workflow.outputs import Json, Table, columns
from workflow.stage import ByHand, Item, Job, Stage, Summary, Tracked
from workflow.stages import named_files


def run(job: Job) -> Summary:
    """Build and check the topology; write it and its metrics; return the metrics."""
    from railx.families import TopologySettings, build_topology, write_topology
    from railx.network.metrics import check_optical_circuits, topology_metrics

    topology = build_topology(job.load(TopologySettings))
    if topology.circuits is not None:
        check_optical_circuits(topology)
    metrics = topology_metrics(topology)
    job.write("graph", write_topology, topology, job.item or None)
    job.write_json("metrics", metrics)
    return {name: value for name, value in metrics.items() if value is not None}


_LINKS = columns(
    "category element, int32 src dst, category kind, real gbps latency_ns, int32 rail lanes"
)
_CIRCUITS = columns("int32 ocs port_a port_b, category dimension, int32 line node_a node_b")


def check_topology(settings: Any, key: str, limits: LimitSettings) -> None:
    """Refuse topologies beyond the limits of memory."""
    from railx.families.sizes import check_size

    check_size(settings, limits, key)


STAGE = Stage(
    name="topology",
    help="build a topology: chips, links, optical circuits, metrics",
    message="Topology {item}",
    item=Item("topology", lambda experiment: experiment["topologies"]),
    settings=lambda experiment, topology: experiment["topologies"][topology],
    inputs=lambda experiment, topology: {"source": named_files(experiment["topologies"][topology])},
    outputs={"graph": Table(_LINKS, claims=False, optional=_CIRCUITS), "metrics": Json()},
    run=run,
    by_hand=ByHand(
        groups=("topology",),
        example="railx topology topology=railx_hyperx topology.m=2 topology.n=2 --json",
        out="the topology file to write (.parquet)",
        writes={".parquet": "graph"},
    ),
    tracked=Tracked("metrics", ("metrics",), fidelity="analytic"),
    check_settings={"topology": check_topology},
)
