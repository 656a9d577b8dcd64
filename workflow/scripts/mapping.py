"""Rule mapping: one topology -> step times of every job."""

from workflow.stages import mapping
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    mapping.run(
        snakemake.params.settings,
        name=snakemake.wildcards.topology,
        topology_path=snakemake.input.topology,
        reference=snakemake.params.reference,
        steps_path=snakemake.output.steps,
        summary_path=snakemake.output.summary,
    )
