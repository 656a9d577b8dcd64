"""What is trained: corpora of sequence lengths, transformer arithmetic, clusters and cost models.

Import the modules themselves (``railx.workload.model``, ``railx.workload.corpus``, ...); this package imports none of them, so
that a bare GPU node can read a model's settings without scipy or pandas.
"""

__all__: list[str] = []
