"""The pipeline around the science: configuration, stages, the ``railx`` command and the
Snakemake rules.
"""
