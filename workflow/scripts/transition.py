"""Rule transition: two settings of the same optical switches -> the steps from one to
the other.
"""

from workflow.stages import circuits
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    circuits.run_transition(
        snakemake.wildcards.transition,
        snakemake.params.settings,
        before_path=snakemake.input.before,
        after_path=snakemake.input.after,
        plan_path=snakemake.output.plan,
        csv_path=snakemake.output.csv,
        summary_path=snakemake.output.summary,
    )
