"""Corpora: the sequences that plans distribute and training reads.

Each is named by where its lengths come from. ``kind`` says how real a corpus is:
``real_text`` (tokens and lengths), ``real_lengths`` (a user's lengths, no tokens),
``published_quantiles`` (drawn from a published distribution) and ``synthetic`` (a
stand-in where no lengths are published).
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from railx.io import in_repository, read_metadata, read_table, write_table
from railx.settings import AtLeast, Fraction, NotEmpty, Positive, SettingsError
from railx.workload import lengths as length_sources
from railx.workload.text import (
    BEGINNING_OF_SEQUENCE,
    VOCABULARY,
    folder_documents,
    stdlib_documents,
)

__all__ = [
    "Corpus",
    "CorpusKind",
    "CorpusSettings",
    "FileCorpusSettings",
    "FolderCorpusSettings",
    "MixtureCorpusSettings",
    "QuantileCorpusSettings",
    "StdlibCorpusSettings",
    "build_corpus",
    "read_corpus_lengths",
    "write_corpus",
]

CorpusKind = Literal["real_text", "real_lengths", "published_quantiles", "synthetic"]
_Name = Annotated[str, NotEmpty()]
_Path = Annotated[str, NotEmpty()]


@dataclass(frozen=True)
class StdlibCorpusSettings:
    """The running interpreter's own standard-library sources.

    Real text with a real long tail, without a network.
    """

    source: Literal["stdlib"]
    """Where the sequences come from: the standard library's sources."""
    name: _Name
    """Name that tables and figures show."""
    unit: Literal["file", "definition"]
    """What a document is: a whole file, or one top-level function or class."""
    sequences: Annotated[int, AtLeast(1)] | None
    """Documents to keep, drawn by the seed; null keeps all."""


@dataclass(frozen=True)
class QuantileCorpusSettings:
    """Lengths drawn from the published quantiles of Wikipedia."""

    source: Literal["wikipedia_quantiles"]
    """Where the lengths come from: published quantiles."""
    name: _Name
    """Name that tables and figures show."""
    quantiles: _Path
    """CSV table of the quantiles, relative to the repository."""
    sequences: Annotated[int, AtLeast(1)]
    """Lengths to draw."""


@dataclass(frozen=True)
class MixtureCorpusSettings:
    """Synthetic lengths: a log-normal body and a Pareto tail."""

    source: Literal["mixture"]
    """Where the lengths come from: a mixture of two distributions."""
    name: _Name
    """Name that tables and figures show."""
    anchors: Annotated[str, NotEmpty()]
    """In words, the published facts that the numbers were chosen to meet."""
    sequences: Annotated[int, AtLeast(1)]
    """Lengths to draw."""
    body_median_tokens: Annotated[float, Positive()]
    """Median of the log-normal body."""
    body_sigma: Annotated[float, Positive()]
    """Standard deviation of the logarithm of the lengths in the body."""
    tail_fraction: Annotated[float, Fraction()]
    """Share of the sequences that belong to the tail."""
    tail_start_tokens: Annotated[float, Positive()]
    """Where the Pareto tail begins; below longest_tokens."""
    tail_exponent: Annotated[float, Positive()]
    """Exponent of the tail: the share of it beyond a length falls with this power of
    the length.
    """
    longest_tokens: Annotated[int, AtLeast(2)]
    """Longest sequence that is drawn."""

    def __post_init__(self) -> None:
        if self.tail_start_tokens >= self.longest_tokens:
            raise SettingsError(
                "tail_start_tokens",
                f"got {self.tail_start_tokens}; allowed: below longest_tokens,"
                f" {self.longest_tokens}",
            )


@dataclass(frozen=True)
class FileCorpusSettings:
    """A user's own lengths from a file."""

    source: Literal["file"]
    """Where the lengths come from: a file."""
    name: _Name
    """Name that tables and figures show."""
    path: _Path
    """JSON list, text with one length per line, or CSV or Parquet table."""
    column: _Name
    """Column of the table that holds the lengths; lists and text have none."""


@dataclass(frozen=True)
class FolderCorpusSettings:
    """A user's own text.

    Each file below ``path`` that matches the glob ``pattern`` is a document.
    """

    source: Literal["folder"]
    """Where the sequences come from: the files of a folder."""
    name: _Name
    """Name that tables and figures show."""
    path: _Path
    """The folder."""
    pattern: Annotated[str, NotEmpty()]
    """Which files below it are documents, as in ``**/*.txt``."""
    sequences: Annotated[int, AtLeast(1)] | None
    """Documents to keep, drawn by the seed; null keeps all."""


CorpusSettings = (
    StdlibCorpusSettings
    | QuantileCorpusSettings
    | MixtureCorpusSettings
    | FileCorpusSettings
    | FolderCorpusSettings
)


@dataclass(frozen=True)
class Corpus:
    """Sequences in a fixed order: ``lengths`` int64 [n] in tokens, and the texts.

    The beginning-of-sequence token is not included in a text.
    """

    name: str
    source: str
    kind: CorpusKind
    description: str
    lengths: npt.NDArray[np.int64]
    documents: tuple[bytes, ...] | None


def build_corpus(settings: CorpusSettings, seed: int) -> Corpus:
    """Gather or draw a corpus. The same settings, seed and input give the same corpus.

    A document of n bytes is a sequence of n + 1 tokens, the first being the beginning
    of the sequence. ValueError names a missing, empty or malformed file and what is
    allowed.
    """
    if isinstance(settings, StdlibCorpusSettings):
        described = (
            f"standard library of Python {platform.python_version()}, one {settings.unit} a"
            " document, bytes as tokens"
        )
        return _text_corpus(settings, stdlib_documents(settings.unit), described, seed)
    if isinstance(settings, FolderCorpusSettings):
        described = (
            f"files that match {settings.pattern} in {Path(settings.path).name}, bytes as tokens"
        )
        return _text_corpus(
            settings, folder_documents(settings.path, settings.pattern), described, seed
        )
    if isinstance(settings, FileCorpusSettings):
        given = length_sources.read_length_file(settings.path, settings.column)
        described = f"lengths given in {Path(settings.path).name}"
        return Corpus(settings.name, settings.source, "real_lengths", described, given, None)
    if isinstance(settings, QuantileCorpusSettings):
        points = length_sources.published_quantiles(in_repository(settings.quantiles))
        drawn = length_sources.sample_quantiles(*points, settings.sequences, seed)
        described = (
            f"{settings.sequences} lengths drawn from published quantiles of Wikipedia"
            f" ({Path(settings.quantiles).name})"
        )
        return Corpus(settings.name, settings.source, "published_quantiles", described, drawn, None)
    return _mixture_corpus(settings, seed)


def write_corpus(path: str | Path, corpus: Corpus) -> None:
    """Write a corpus as one Parquet table: sequence, length_tokens, tokens.

    Tokens are the bytes of the text, null where only lengths are known. The metadata
    names the corpus, its kind, the vocabulary and the beginning-of-sequence token that
    stands before the bytes, and gives the summary of its lengths.
    """
    text = corpus.documents is not None
    table = pa.table(
        {
            "sequence": pa.array(np.arange(len(corpus.lengths)), pa.int64()),
            "length_tokens": pa.array(corpus.lengths, pa.int64()),
            "tokens": pa.array(
                list(corpus.documents) if corpus.documents else [None] * len(corpus.lengths),
                pa.binary(),
            ),
        }
    )
    metadata: dict[str, Any] = {
        "name": corpus.name,
        "source": corpus.source,
        "kind": corpus.kind,
        "description": corpus.description,
        "vocabulary_size": VOCABULARY if text else None,
        "beginning_of_sequence": BEGINNING_OF_SEQUENCE if text else None,
        "digest": _digest(corpus),
        "statistics": length_sources.length_statistics(corpus.lengths),
    }
    write_table(path, table, metadata=metadata)


def read_corpus_lengths(path: str | Path) -> tuple[str, npt.NDArray[np.int64]]:
    """Name and lengths [n] in tokens of a corpus file."""
    lengths = read_table(path, ["length_tokens"]).column(0).to_numpy()
    return str(read_metadata(path).get("name", Path(path).stem)), lengths.astype(np.int64)


def _text_corpus(
    settings: StdlibCorpusSettings | FolderCorpusSettings,
    documents: list[bytes],
    described: str,
    seed: int,
) -> Corpus:
    if settings.sequences is not None and settings.sequences < len(documents):
        kept = np.sort(
            np.random.default_rng(seed).choice(len(documents), settings.sequences, replace=False)
        )
        documents, total = [documents[index] for index in kept], len(documents)
        described += f"; {settings.sequences} of {total} documents"
    lengths = np.array([len(document) + 1 for document in documents], dtype=np.int64)
    return Corpus(settings.name, settings.source, "real_text", described, lengths, tuple(documents))


def _mixture_corpus(settings: MixtureCorpusSettings, seed: int) -> Corpus:
    drawn = length_sources.sample_mixture(
        sequences=settings.sequences,
        seed=seed,
        body_median_tokens=settings.body_median_tokens,
        body_sigma=settings.body_sigma,
        tail_fraction=settings.tail_fraction,
        tail_start_tokens=settings.tail_start_tokens,
        tail_exponent=settings.tail_exponent,
        longest_tokens=settings.longest_tokens,
    )
    return Corpus(
        settings.name,
        settings.source,
        "synthetic",
        f"synthetic lengths: {settings.anchors}",
        drawn,
        None,
    )


def _digest(corpus: Corpus) -> str:
    digest = hashlib.sha256(corpus.lengths.astype("<i8").tobytes())
    for document in corpus.documents or ():
        digest.update(document)
    return digest.hexdigest()
