"""Workloads: corpora, transformer arithmetic, clusters, cost models and batches.

Needs the standard library, numpy and pyarrow alone, because a bare GPU node reads its
model's settings from here.
"""
