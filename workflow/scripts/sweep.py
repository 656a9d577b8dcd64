"""Rule sweep: one topology, routing and traffic pattern -> latency against load."""

from workflow.stages import sweep
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    sweep.run(
        snakemake.params.settings,
        seed=snakemake.params.seed,
        name=snakemake.wildcards.sweep,
        topology_path=snakemake.input.topology,
        packets_path=snakemake.output.packets,
        summary_path=snakemake.output.summary,
    )
