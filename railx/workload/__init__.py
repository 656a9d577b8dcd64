"""What is trained: corpora, transformer arithmetic, clusters, cost models and batches.

Needs the standard library, numpy and pyarrow alone, because a bare GPU node reads its
model's settings from here.
"""

from railx.workload.batches import BatchSettings, FilledBatchSettings, SampledBatch, sample_batches
from railx.workload.cluster import ClusterSettings
from railx.workload.corpus import (
    Corpus,
    CorpusSettings,
    build_corpus,
    read_corpus_lengths,
    write_corpus,
)
from railx.workload.cost import CostModel, CostModelSettings, build_cost_model
from railx.workload.lengths import length_statistics
from railx.workload.model import ModelSettings

__all__ = [
    "BatchSettings",
    "ClusterSettings",
    "Corpus",
    "CorpusSettings",
    "CostModel",
    "CostModelSettings",
    "FilledBatchSettings",
    "ModelSettings",
    "SampledBatch",
    "build_corpus",
    "build_cost_model",
    "length_statistics",
    "read_corpus_lengths",
    "sample_batches",
    "write_corpus",
]
