"""Rule simulate: one topology -> bounds, channel loads and collective times."""

from workflow.stages import simulate
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    simulate.run(
        snakemake.params.traffic,
        snakemake.params.networks,
        snakemake.params.collective,
        seed=snakemake.params.seed,
        name=snakemake.wildcards.topology,
        topology_path=snakemake.input.topology,
        network_path=snakemake.output.network,
        channels_path=snakemake.output.channels,
        collectives_path=snakemake.output.collectives,
        summary_path=snakemake.output.summary,
    )
