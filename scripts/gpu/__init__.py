"""What to measure with one GPU, step by step: ``python scripts/gpu --help``.

``folder`` prepares a folder on a machine with everything: the code, the plans and the
sequences of an experiment, its runs and profiles as resolved settings, and small
stand-ins of all of these. ``run`` needs that folder, torch, numpy and pyarrow, and no
network. ``record`` keeps what a run on a GPU found. Each step writes one record
(:mod:`training.records`) and ends with checks.
"""
