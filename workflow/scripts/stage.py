"""Every rule: its stage, named as the rule, run on the rule's files and settings."""

from workflow.log import logged
from workflow.stages import STAGES

with logged(snakemake.log[0]):
    STAGES[snakemake.rule].make(
        snakemake.params.settings,
        item=next(iter(snakemake.wildcards), ""),
        inputs={
            name: files if isinstance(files, str) else list(files)
            for name, files in snakemake.input.items()
        },
        outputs=dict(snakemake.output.items()),
    )
