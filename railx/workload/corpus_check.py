"""Checks of corpora, and of the batches drawn from them, that need no corpus file.

They take a fraction of a second and run before any job.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from railx.errors import UserError
from railx.io import in_repository
from railx.settings import SettingsError
from railx.workload.batches import BatchSettings, check_batch
from railx.workload.corpus import (
    CorpusSettings,
    FileCorpusSettings,
    FolderCorpusSettings,
    MixtureCorpusSettings,
    QuantileCorpusSettings,
    build_corpus,
    folder_files,
    stdlib_documents,
)
from railx.workload.lengths import published_quantiles, read_length_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Files of lengths up to this size are read; larger ones take seconds.
_MOST_READ_BYTES = 2**24
#: Most lengths that a check draws in a fraction of a second.
_MOST_DRAWN = 1_000_000
#: A lower bound on the documents of the standard library; reading it takes half a
#: second.
_SURELY_STANDARD = 256


def _resolved(path: str, folder: Path) -> Path:
    """Where a corpus's path leads; files of resources/ come with the code."""
    return in_repository(path) if Path(path).parts[:1] == ("resources",) else folder / path


def check_corpus(corpus: CorpusSettings, key: str, folder: Path = Path()) -> None:
    """Refuse missing or unreadable lengths and text, below ``key``.

    Paths are relative to ``folder``. Only small files of lengths are read.
    """
    if isinstance(corpus, FileCorpusSettings | FolderCorpusSettings):
        file = _resolved(corpus.path, folder)
        try:
            if isinstance(corpus, FolderCorpusSettings):
                folder_files(file, corpus.pattern)
            elif not file.is_file() or file.stat().st_size <= _MOST_READ_BYTES:
                read_length_file(file, corpus.column)
        except (UserError, OSError) as error:
            said = str(error).replace(str(file), corpus.path)
            raise SettingsError(f"{key}.path", f"got {said}") from None
    if isinstance(corpus, QuantileCorpusSettings):
        key, table = f"{key}.quantiles", corpus.quantiles
        if not in_repository(table).is_file():
            raise SettingsError(key, f"got {table!r}, which is not there; allowed: a CSV table")
        try:
            published_quantiles(in_repository(table))
        except (UserError, OSError) as error:
            raise SettingsError(key, f"got {error}") from None


def check_drawn_batch(
    corpus: CorpusSettings, batch: BatchSettings, seed: int, key: str, folder: Path = Path()
) -> None:
    """Refuse a batch for which the corpus has too few sequences, below ``key``."""
    try:
        lengths = _lengths(corpus, batch, seed, folder)
        if lengths is not None:
            check_batch(lengths, batch.filled(lengths))
    except SettingsError as error:
        raise error.under(key) from None


def _lengths(
    corpus: CorpusSettings, batch: BatchSettings, seed: int, folder: Path
) -> NDArray[np.int64] | None:
    """Lengths int64 [n] if known without work, else None.

    Sequences of text count with the least length, the beginning and one token, so there
    are never fewer sequences here than in the corpus.
    """
    asked, limit = batch.batch_size or 1, batch.max_length_tokens
    if isinstance(corpus, FileCorpusSettings):
        file = _resolved(corpus.path, folder)
        large = file.stat().st_size > _MOST_READ_BYTES
        return None if large else read_length_file(file, corpus.column)
    if isinstance(corpus, QuantileCorpusSettings | MixtureCorpusSettings):
        return _drawn(corpus, seed) if corpus.sequences <= _MOST_DRAWN else None
    if isinstance(corpus, FolderCorpusSettings):
        count = len(folder_files(_resolved(corpus.path, folder), corpus.pattern))
    elif asked > _SURELY_STANDARD:
        count = _standard_documents(corpus.unit)
    else:
        count = max(asked, corpus.sequences or 1)
    available = min(count, corpus.sequences or count)
    if asked <= available and (limit is None or limit >= 2):
        return None
    return np.full(available, 2, dtype=np.int64)


@lru_cache
def _drawn(corpus: QuantileCorpusSettings | MixtureCorpusSettings, seed: int) -> NDArray[np.int64]:
    return build_corpus(corpus, seed).lengths


@cache
def _standard_documents(unit: Literal["file", "definition"]) -> int:
    return len(stdlib_documents(unit))
