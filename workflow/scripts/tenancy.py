"""Rule tenancy: settings -> largest jobs against failures, use by streams of jobs,
degraded lines and the summary.
"""

from workflow.stages import tenancy
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    tenancy.run(
        snakemake.params.settings,
        snakemake.params.seed,
        faults_path=snakemake.output.faults,
        utilisation_path=snakemake.output.utilisation,
        degraded_path=snakemake.output.degraded,
        summary_path=snakemake.output.summary,
    )
