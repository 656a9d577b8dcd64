"""Stage corpus: gather or draw sequences and write them as one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.io import write_json
from railx.settings import load
from railx.workload.corpus import CorpusSettings, build_corpus, write_corpus
from railx.workload.lengths import length_statistics

__all__ = ["run"]


def run(
    settings: Mapping[str, Any] | CorpusSettings,
    *,
    seed: int,
    corpus_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Build the corpus; write it and its summary where paths are given; return the
    summary.
    """
    corpus = build_corpus(load(CorpusSettings, settings, "corpus"), seed)
    summary = {
        "name": corpus.name,
        "source": corpus.source,
        "kind": corpus.kind,
        "description": corpus.description,
        **length_statistics(corpus.lengths),
    }
    if corpus_path is not None:
        write_corpus(corpus_path, corpus)
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary
