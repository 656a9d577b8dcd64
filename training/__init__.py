"""Real training with torch.

Model, attention, sequence parallelism, the pipeline runtime and the loop that runs
plans. Needs torch, numpy and pyarrow only, so that a bare GPU node can run it; see
``python -m training.run --help``.
"""
