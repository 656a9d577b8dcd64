"""Rule cost: price catalogue and settings -> bill of materials, summary, sensitivity,
scale and claim map.
"""

from workflow.stages import cost
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    cost.run(
        snakemake.params.settings,
        bill_path=snakemake.output.bill,
        summary_path=snakemake.output.summary,
        sensitivity_path=snakemake.output.sensitivity,
        scale_path=snakemake.output.scale,
        claim_map_path=snakemake.output.claim_map,
    )
