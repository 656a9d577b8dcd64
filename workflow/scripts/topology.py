"""Rule topology: settings -> one file of links and circuits, and its metrics."""

from workflow.stages import topology
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    topology.run(
        snakemake.params.settings,
        name=snakemake.wildcards.topology,
        topology_path=snakemake.output.topology,
        metrics_path=snakemake.output.metrics,
    )
