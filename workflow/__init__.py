"""The pipeline around the science.

Configuration, stages, the ``railx`` command and the Snakemake rules.
"""
