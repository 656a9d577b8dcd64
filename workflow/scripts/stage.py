"""Every rule: its stage, named as the rule, run on the rule's files and settings."""

from workflow.watch import watched

watched(" ".join([snakemake.rule, *snakemake.wildcards]), snakemake.log[0])

# After the fork: what is loaded here may start threads.
from workflow.job import leave, make  # noqa: E402

make(snakemake)
leave()
