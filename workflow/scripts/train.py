"""Rule train: a plan and its corpus -> measured iterations, traces and losses under
every fabric setting.
"""

from pathlib import Path

from workflow.stages import train
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    train.run(
        snakemake.params.settings,
        snakemake.params.model,
        name=snakemake.wildcards.run,
        plan_path=snakemake.input.plan,
        corpus_path=snakemake.input.corpus,
        folder=Path(snakemake.output.result).parent,
    )
