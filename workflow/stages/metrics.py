"""Stage metrics: the metrics of all topologies -> one table."""

from __future__ import annotations

from workflow.outputs import Table, columns
from workflow.stage import FromStage, Job, Stage, Summary


def run(job: Job) -> Summary:
    """Gather the metrics of topologies, a row each in the order of their names."""
    from railx.io import read_json

    rows = [
        {"topology": name, **read_json(path), "fidelity": "analytic"}
        for name, path in zip(job.settings, job.inputs["metrics"], strict=True)
    ]
    job.write_table("topologies", rows)
    return {"topologies": len(rows)}


_COLUMNS = columns(
    "text topology family,"
    " integer chips nodes switches links external_links circuits optical_switches optical_ports"
    " ports_per_chip, real injection_gb_s_per_chip, integer diameter_node_hops,"
    " real mean_node_hops, integer diameter_chip_hops, real mean_chip_hops,"
    " integer minimal_paths_min, real minimal_paths_mean, integer disjoint_paths_min,"
    " real bisection_gbps bisection_closed_form_gbps bisection_gb_s_per_chip,"
    " flag bisection_equal_halves, text fidelity"
)

STAGE = Stage(
    name="metrics",
    help="the metrics of all topologies as one table",
    message="Metrics of all topologies",
    settings=lambda experiment, _: list(experiment["topologies"]),
    inputs=lambda experiment, _: {
        "metrics": FromStage("topology.metrics", tuple(experiment["topologies"]))
    },
    outputs={"topologies": Table(_COLUMNS, printed="Topologies")},
    run=run,
)
