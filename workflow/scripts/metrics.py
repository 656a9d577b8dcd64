"""Rule metrics: one table of all topologies."""

from workflow.stages import metrics
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    metrics.run(
        dict(zip(snakemake.params.names, snakemake.input.metrics, strict=True)),
        table_path=snakemake.output.metrics,
    )
