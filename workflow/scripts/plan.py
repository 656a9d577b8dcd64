"""Rule plan: a corpus and settings -> a plan, its table and its schedule."""

from workflow.stages import plan
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    plan.run(
        snakemake.params.settings,
        name=snakemake.wildcards.plan,
        corpus_path=snakemake.input.corpus,
        plan_path=snakemake.output.plan,
        table_path=snakemake.output.table,
        schedule_path=snakemake.output.schedule,
        summary_path=snakemake.output.summary,
    )
