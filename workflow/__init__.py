"""The pipeline around the science: configuration, stages, command, Snakemake rules."""
