"""Rule agreement: the flow model against the packet simulator."""

from workflow.stages import agreement
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    agreement.run(
        snakemake.params.settings,
        seed=snakemake.params.seed,
        topology_paths=dict(zip(snakemake.params.names, snakemake.input.topologies, strict=True)),
        agreement_path=snakemake.output.agreement,
        summary_path=snakemake.output.summary,
    )
