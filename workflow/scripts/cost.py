"""Rule cost: price catalogue and settings -> bill of materials, summary and sensitivity."""

from workflow.stages import cost
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    cost.run(
        snakemake.params.settings,
        bill_path=snakemake.output.bill,
        summary_path=snakemake.output.summary,
        sensitivity_path=snakemake.output.sensitivity,
    )
