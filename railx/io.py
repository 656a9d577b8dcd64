"""Reading and writing the files that stages pass on: Parquet tables and JSON.

Writing is always atomic: a writer fills a temporary file beside the target and renames
it, so that a killed run leaves the old file or the new one, never a partial one. Only
numpy and pyarrow are needed, so that a bare GPU node can write its results.
"""

from __future__ import annotations

import glob
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from railx.errors import DISK_FULL, UserError, is_explained
from railx.places import in_repository as in_repository

Fidelity = Literal[
    "analytic", "flow", "packet", "replay", "emulated", "measured_cpu", "measured_gpu"
]
#: From the least to the most faithful to a real machine; claims compare positions in
#: this list.
FIDELITIES: tuple[Fidelity, ...] = (
    *("analytic", "flow", "packet", "replay", "emulated", "measured_cpu", "measured_gpu"),
)

_METADATA_KEY = b"railx"
#: Suffix of incomplete files.
_BESIDE = ".part"


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """A temporary path, renamed to ``target`` unless the block raises.

    OSError of a full disk names ``target``, not none or the temporary file.
    """
    target = Path(target)
    try:
        with _beside(target) as beside:
            yield beside
    except OSError as error:
        if error.errno in DISK_FULL:
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    if target.exists() and not (target.is_file() or target.is_dir()):
        # The new file would take the place of a device such as /dev/null.
        raise UserError(f"{target}: is a device or a pipe; allowed: a file")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=_BESIDE)
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def clear_beside(target: str | Path) -> None:
    """Remove temporary files of killed writers; no other may be writing ``target``."""
    target = Path(target)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{_BESIDE}"):
        left.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON atomically, keys in the order given; not-a-number is refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


class _KeyTwice(ValueError):
    """A duplicate key in a JSON object."""


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise _KeyTwice(key)
        unique[key] = value
    return unique


def read_json(path: str | Path, *, keys_once: bool = False) -> Any:
    """Read JSON; invalid or too deeply nested files raise a ValueError with the path.

    So do files that are no text. ``keys_once`` refuses duplicate keys, for files that
    users edit; JSON itself takes the last one.
    """
    hook = _keys_once if keys_once else None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=hook)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is no text; allowed: JSON") from None
    except _KeyTwice as error:
        raise UserError(f"{path}: key {error} stands twice; allowed: once in an object") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    except RecursionError:
        raise UserError(f"{path}: JSON nested too deeply; allowed: a few levels") from None


def write_table(
    path: str | Path,
    table: pa.Table | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Any,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a Parquet table atomically.

    ``table`` is an Arrow table, a mapping of columns, a list of rows (all with the same
    keys) or a pandas frame. ``metadata`` (JSON values) travels inside the file, see
    :func:`read_metadata`.
    """
    arrow = _to_arrow(table)
    if metadata is not None:
        arrow = arrow.replace_schema_metadata(
            {_METADATA_KEY: json.dumps(dict(metadata), allow_nan=False).encode()}
        )
    with atomic_path(path) as beside:
        pq.write_table(arrow, beside, compression="zstd")


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """A UserError that names a file that pyarrow cannot read as Parquet.

    Of the system's errors, which pyarrow raises without it, the name of the file.
    """
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        if is_explained(error):
            raise
        raise UserError(
            f"{path}: not a Parquet table; allowed: a Parquet file ({error})"
        ) from error


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet table as Arrow."""
    with _naming(path):
        return pq.ParquetFile(path).read(columns=list(columns) if columns is not None else None)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read a Parquet table as a list of rows."""
    rows: list[dict[str, Any]] = read_table(path).to_pylist()
    return rows


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The JSON metadata that :func:`write_table` stored with the table, or {}."""
    with _naming(path):
        stored = pq.read_schema(path).metadata or {}
    text = stored.get(_METADATA_KEY, b"{}")
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise UserError(
            f"{path}: metadata: got {text[:60].decode(errors='replace')!r}; allowed: a JSON object"
        )
    return metadata


@contextmanager
def written_by(path: str | Path, command: str) -> Iterator[None]:
    """A UserError that names a table of ``command`` which cannot be rebuilt.

    Whatever a damaged table makes of the block is one; a UserError keeps its words.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        pa.ArrowException,
    ) as error:
        said = str(error)
        if not is_explained(error):
            said = f"got {type(error).__name__} ({error}); allowed: a file of {command}"
        elif str(path) in said:
            raise
        raise UserError(f"{path}: {said}") from error


def _to_arrow(table: Any) -> pa.Table:
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, Mapping):
        return pa.table(dict(table))
    if hasattr(table, "to_numpy") and hasattr(table, "columns"):
        return pa.Table.from_pandas(table, preserve_index=False)
    rows = list(table)
    if not rows:
        raise ValueError(
            "a table needs at least one row to know its columns; pass a mapping of typed columns"
            " instead"
        )
    columns = list(rows[0])
    for row in rows:
        if list(row) != columns:
            raise ValueError(
                f"rows differ in their columns: {sorted(set(row) ^ set(columns)) or 'order'}"
            )
    return pa.table({name: [row[name] for row in rows] for name in columns})


def as_words(numbers: Any, words: Sequence[str]) -> pa.DictionaryArray:
    """A column of words by their numbers (an integer array); negative: null."""
    return pa.DictionaryArray.from_arrays(
        pa.array(numbers, mask=numbers < 0), pa.array(words, pa.string())
    )


def as_numbers(column: pa.ChunkedArray, words: Sequence[str]) -> Any:
    """The number of each word, int64[rows], -1 for null; ValueError: other words."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    number_of = {word: number for number, word in enumerate(words)}
    stored = encoded.dictionary.to_pylist()
    unknown = [word for word in stored if word not in number_of]
    if unknown:
        raise ValueError(f"got {unknown[0]!r}; allowed: {', '.join(words)}")
    numbers = pa.array([*(number_of[word] for word in stored), -1]).to_numpy()
    # Without nulls pyarrow.compute is not loaded, which takes a tenth of a second.
    indices = encoded.indices.fill_null(len(stored)) if encoded.null_count else encoded.indices
    return numbers[indices.to_numpy()]


def leaves(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings, keys joined by underscores."""
    for key, item in dotted_leaves(value):
        yield key.replace(".", "_"), item


def dotted_leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings, keys joined by dots; an empty mapping is left out."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from dotted_leaves(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item
