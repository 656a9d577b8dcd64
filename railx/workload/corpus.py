"""Corpora: the sequences that plans distribute and training reads.

Each is named by the source of its lengths. ``kind`` is one of ``real_text`` (tokens and
lengths), ``real_lengths`` (a user's lengths, no tokens), ``published_quantiles`` (drawn
from a published distribution) and ``synthetic`` (a stand-in where no lengths are
published).
"""

from __future__ import annotations

import hashlib
import itertools
import platform
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from railx.effort import Cost, Costs
from railx.errors import UserError
from railx.io import in_repository, read_metadata, read_table, write_table
from railx.settings import AtLeast, Between, Fraction, NotEmpty, Positive, SettingsError
from railx.workload import lengths as length_sources
from railx.workload.tokenizer import BYTES, Tokenizer, TokenizerName, token_type, train_tokenizer

CorpusKind = Literal["real_text", "real_lengths", "published_quantiles", "synthetic"]
_Name = Annotated[str, NotEmpty()]
_Path = Annotated[str, NotEmpty()]
#: Settings of a mixture that the draw takes.
_OF_MIXTURE = (
    *("sequences", "body_median_tokens", "body_sigma", "longest_tokens"),
    *("tail_fraction", "tail_start_tokens", "tail_exponent"),
)
#: Keys of a corpus file's metadata about its tokens.
_TOKENS_DESCRIBED = (
    *("tokenizer", "tokenizer_digest", "merges", "vocabulary_size", "token_bytes"),
    "beginning_of_sequence",
)


@dataclass(frozen=True)
class StdlibCorpusSettings:
    """The running interpreter's standard-library sources: real text with a long
    tail.
    """

    source: Literal["stdlib"]
    """Where the sequences come from: the standard library's sources."""
    name: _Name
    """Name that tables and figures show."""
    unit: Literal["file", "definition"]
    """What a document is: a whole file, or one top-level function or class."""
    sequences: Annotated[int, AtLeast(1)] | None = None
    """Documents to keep, drawn by the seed; null keeps all."""
    tokenizer: TokenizerName = "bytes"
    """What tokens are: bytes, or pairs of bytes merged as often as the text asks."""
    vocabulary: Annotated[int, Between(257, 2**24)] = 257
    """Token ids, that of the beginning of a sequence included; bytes have 257."""

    def __post_init__(self) -> None:
        _check_vocabulary(self.tokenizer, self.vocabulary)


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

    def costs(self) -> Costs:
        return {"sequences": Cost(1e-6, 80) * self.sequences}


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
    body_sigma: Annotated[float, Positive(), Between(0, 20)]
    """Standard deviation of the logarithm of the lengths in the body."""
    tail_fraction: Annotated[float, Fraction()]
    """Share of the sequences that belong to the tail."""
    tail_start_tokens: Annotated[float, Positive()]
    """Where the Pareto tail begins; below longest_tokens."""
    tail_exponent: Annotated[float, Positive()]
    """Exponent of the tail: the share of it beyond a length falls with this power of
    the length."""
    longest_tokens: Annotated[int, AtLeast(2)]
    """Longest sequence that is drawn."""

    def __post_init__(self) -> None:
        if self.tail_start_tokens >= self.longest_tokens:
            raise SettingsError(
                "tail_start_tokens",
                f"got {self.tail_start_tokens}; allowed: below longest_tokens,"
                f" {self.longest_tokens}",
            )

    def costs(self) -> Costs:
        return {"sequences": Cost(1e-6, 80) * self.sequences}


@dataclass(frozen=True)
class FileCorpusSettings:
    """A user's lengths from a file."""

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
    """A user's text: a document per file below ``path`` that matches the glob
    ``pattern``.
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
    tokenizer: TokenizerName
    """What tokens are: bytes, or pairs of bytes merged as often as the text asks."""
    vocabulary: Annotated[int, Between(257, 2**24)]
    """Token ids, that of the beginning of a sequence included; bytes have 257."""

    def __post_init__(self) -> None:
        _check_vocabulary(self.tokenizer, self.vocabulary)


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

    A text and its ids exclude the beginning-of-sequence token. A corpus of lengths
    alone has no texts and no tokenizer.
    """

    name: str
    source: str
    kind: CorpusKind
    description: str
    lengths: npt.NDArray[np.int64]
    documents: tuple[bytes, ...] | None
    tokenizer: Tokenizer | None = None
    ids: tuple[npt.NDArray[np.int64], ...] = ()


def build_corpus(settings: CorpusSettings, seed: int) -> Corpus:
    """Gather or draw a corpus. The same settings, seed and input give the same corpus.

    A document of n tokens is a sequence of n + 1, the first being the beginning of the
    sequence. A byte-pair tokenizer is trained on the selected documents. ValueError
    names a missing, empty or malformed file and the allowed values.
    """
    if isinstance(settings, StdlibCorpusSettings):
        version, documents = platform.python_version(), stdlib_documents(settings.unit)
        described = f"standard library of Python {version}, one {settings.unit} a document"
        return _text_corpus(settings, documents, described, seed)
    if isinstance(settings, FolderCorpusSettings):
        documents = folder_documents(in_repository(settings.path), settings.pattern)
        described = f"files that match {settings.pattern} in {Path(settings.path).name}"
        return _text_corpus(settings, documents, described, seed)
    kind: CorpusKind = "synthetic"
    if isinstance(settings, FileCorpusSettings):
        kind, described = "real_lengths", f"lengths given in {Path(settings.path).name}"
        drawn = length_sources.read_length_file(in_repository(settings.path), settings.column)
    elif isinstance(settings, QuantileCorpusSettings):
        points = length_sources.published_quantiles(in_repository(settings.quantiles))
        drawn = length_sources.sample_quantiles(*points, settings.sequences, seed)
        kind = "published_quantiles"
        described = (
            f"{settings.sequences} lengths drawn from published quantiles of Wikipedia"
            f" ({Path(settings.quantiles).name})"
        )
    else:
        described = f"synthetic lengths: {settings.anchors}"
        given = {name: getattr(settings, name) for name in _OF_MIXTURE}
        drawn = length_sources.sample_mixture(seed=seed, **given)
    return Corpus(settings.name, settings.source, kind, described, drawn, None)


def write_corpus(path: str | Path, corpus: Corpus) -> None:
    """Write a corpus as one Parquet table: sequence, length_tokens, tokens.

    Tokens are the ids of the text in order, each an unsigned integer of ``token_bytes``
    bytes, lowest first; null where only lengths are known. So bytes as tokens are the
    text itself. The metadata gives the corpus, its kind, the tokenizer with its merges,
    the vocabulary, the width of a token, the beginning-of-sequence token before the
    ids, and the summary of the lengths.
    """
    tokens: list[bytes | None] = [None] * len(corpus.lengths)
    described: dict[str, Any] = dict.fromkeys(_TOKENS_DESCRIBED)
    tokenizer = corpus.tokenizer
    if tokenizer is not None:
        kind = token_type(max((int(item.max(initial=0)) for item in corpus.ids), default=0))
        tokens = [item.astype(kind).tobytes() for item in corpus.ids]
        described = {
            "tokenizer": tokenizer.name,
            "tokenizer_digest": tokenizer.digest,
            "merges": tokenizer.merges,
            "vocabulary_size": tokenizer.vocabulary,
            "token_bytes": kind.itemsize,
            "beginning_of_sequence": tokenizer.beginning_of_sequence,
        }
    table = pa.table(
        {
            "sequence": pa.array(np.arange(len(corpus.lengths)), pa.int64()),
            "length_tokens": pa.array(corpus.lengths, pa.int64()),
            "tokens": pa.array(tokens, pa.binary()),
        }
    )
    metadata: dict[str, Any] = {
        "name": corpus.name,
        "source": corpus.source,
        "kind": corpus.kind,
        "description": corpus.description,
        **described,
        "digest": _digest(corpus.lengths, tokens),
        "statistics": length_sources.length_statistics(corpus.lengths),
    }
    write_table(path, table, metadata=metadata)


def read_corpus_lengths(path: str | Path) -> tuple[str, npt.NDArray[np.int64]]:
    """Name and lengths [n] in tokens of a corpus file."""
    lengths = read_table(path, ["length_tokens"]).column(0).to_numpy()
    return str(read_metadata(path).get("name", Path(path).stem)), lengths.astype(np.int64)


def _check_vocabulary(tokenizer: TokenizerName, vocabulary: int) -> None:
    if tokenizer == "bytes" and vocabulary != BYTES.vocabulary:
        raise SettingsError(
            "vocabulary", f"got {vocabulary}; allowed with bytes as tokens: {BYTES.vocabulary}"
        )


def _text_corpus(
    settings: StdlibCorpusSettings | FolderCorpusSettings,
    documents: list[bytes],
    described: str,
    seed: int,
) -> Corpus:
    chosen = documents
    if settings.sequences is not None and settings.sequences < len(documents):
        drawn = np.random.default_rng(seed).choice(
            len(documents), settings.sequences, replace=False
        )
        chosen = [documents[index] for index in np.sort(drawn)]
    if settings.tokenizer == "bytes":
        tokenizer, described = BYTES, f"{described}, bytes as tokens"
    else:
        tokenizer = train_tokenizer(chosen, settings.vocabulary)
        described += ", pairs of bytes as tokens"
    if len(chosen) < len(documents):
        described += f"; {len(chosen)} of {len(documents)} documents"
    ids, texts = tuple(tokenizer.encode(chosen)), tuple(chosen)
    lengths = np.array([len(document) + 1 for document in ids], dtype=np.int64)
    name, source = settings.name, settings.source
    return Corpus(name, source, "real_text", described, lengths, texts, tokenizer, ids)


def _digest(lengths: npt.NDArray[np.int64], tokens: Sequence[bytes | None]) -> str:
    digest = hashlib.sha256(lengths.astype("<i8").tobytes())
    for document in tokens:
        digest.update(document or b"")
    return digest.hexdigest()


# Third-party packages are not part of the interpreter; its tests are left out because
# many distributions do not ship them.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
# A top-level definition starts at its first decorator, or at def or class where it has
# none.
_DEFINITION = re.compile(rb"(?m)^(?:@[^\n]*\n(?:[ \t@)#][^\n]*\n)*)?(?:async def |def |class )")


def stdlib_documents(unit: Literal["file", "definition"]) -> list[bytes]:
    """The interpreter's standard-library Python sources in the order of their paths.

    ``unit`` "file": a document is a file; "definition": a file is cut at its top-level
    functions and classes, which gives many short documents and a long tail. Raises
    ValueError where the interpreter has no sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _LEFT_OUT & set(path.relative_to(root).parts)
    ]
    documents = [source for path in files if (source := path.read_bytes())]
    if unit == "definition":
        documents = [part for source in documents for part in split_definitions(source)]
    if not documents:
        raise UserError(
            f"{root}: no Python sources of the standard library; allowed: an interpreter installed"
            " with them"
        )
    return documents


def folder_documents(folder: str | Path, pattern: str) -> list[bytes]:
    """The files below ``folder`` whose path matches ``pattern``, sorted by path.

    A glob, ``**`` for any depth. Empty files hold no sequence and are left out. Raises
    ValueError where the folder is missing or nothing remains, and for a file that is no
    text in UTF-8.
    """
    return [_text(path) for path in folder_files(folder, pattern)]


def _text(path: Path) -> bytes:
    text = path.read_bytes()
    try:
        text.decode()
        at = text.find(b"\0")
    except UnicodeDecodeError as error:
        at = error.start
    if at >= 0:
        raise UserError(
            f"{path}: byte {at} is no text; allowed: text in UTF-8 (corpus.pattern chooses files)"
        )
    return text


def folder_files(folder: str | Path, pattern: str) -> list[Path]:
    """The paths of :func:`folder_documents`, unread; the same errors."""
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"{folder}: no such folder; allowed: a folder of text files")
    try:
        files = sorted(path for path in root.glob(pattern) if path.is_file())
    except NotImplementedError:
        raise UserError(
            f"{folder}: the pattern {pattern} begins at the root; allowed: one below the folder"
        ) from None
    if not files:
        raise UserError(f"{folder}: no file matches {pattern}; allowed: at least one")
    filled = [path for path in files if path.stat().st_size]
    if not filled:
        raise UserError(
            f"{folder}: all {len(files)} files that match {pattern} are empty; allowed: at least"
            " one with text"
        )
    return filled


def split_definitions(source: bytes) -> list[bytes]:
    """A Python source cut before each top-level function and class, decorators
    included.

    The parts join to the unchanged source.
    """
    starts = [match.start() for match in _DEFINITION.finditer(source)]
    bounds = [0, *(start for start in starts if start > 0), len(source)]
    return [source[start:stop] for start, stop in itertools.pairwise(bounds) if stop > start]
