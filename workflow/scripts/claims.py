"""Rule claims: result tables and published numbers -> verdicts."""

from pathlib import Path

from workflow.stages import claims
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    claims.run(
        Path(snakemake.input.claims[0]).parent,
        Path(snakemake.input.published[0]).parent,
        snakemake.params.results,
        snakemake.input.results,
        claims_path=snakemake.output.claims,
        counts_path=snakemake.output.counts,
    )
