"""Sequence lengths, from published quantiles, a synthetic mixture or a user's file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from railx.errors import UserError
from railx.vocabulary.arrays import FloatArray, IntArray

Lengths = IntArray

#: The longest valid sequence: sums and squares stay exact enough.
MOST_TOKENS = 2**40


def published_quantiles(path: str | Path) -> tuple[FloatArray, FloatArray]:
    """Points (length, share of sequences above it) of a quantile table.

    Both are monotone: lengths [n] up, shares [n] down. The table has rows
    ``percentile_lower,p,length`` and ``ccdf_frac_seqs_gt,length,share`` (columns kind,
    key, value) and ``summary,count,n``. The longest of n sequences has the share 1 / n
    at its length, to keep the logarithm finite.
    """
    if not Path(path).is_file():
        raise UserError(
            f"{path}: no such file; allowed: a table of quantiles with the columns kind, key, value"
        )
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    counts = [
        row.get("value", "")
        for row in rows
        if (row.get("kind"), row.get("key")) == ("summary", "count")
    ]
    if not counts:
        raise UserError(
            f"{path}: no row summary,count; allowed: the number of sequences behind the quantiles"
        )
    points: dict[float, float] = {}
    try:
        least = 1 / float(counts[0])
        for row in rows:
            if row["kind"] == "percentile_lower":
                points[float(row["value"])] = max(1 - float(row["key"]) / 100, least)
            elif row["kind"] == "ccdf_frac_seqs_gt":
                points[float(row["key"])] = max(float(row["value"]), least)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise UserError(
            f"{path}: cells are missing or no numbers; allowed: the columns kind, key, value"
        ) from None
    lengths = np.array(sorted(points))
    above = np.array([points[length] for length in lengths])
    if len(lengths) < 2 or np.any(np.diff(above) > 0):
        raise UserError(
            f"{path}: quantiles are not monotone; allowed: longer sequences have smaller shares"
            " above them"
        )
    return lengths, above


def sample_quantiles(lengths: FloatArray, above: FloatArray, sequences: int, seed: int) -> Lengths:
    """Draw ``sequences`` lengths by the inverse of a distribution given at points.

    Points are (length, share above it). Between them the logarithm of the length is
    linear in the logarithm of the share above it, a Pareto piece, so the inverse is
    monotone and stays in the published range.
    """
    uniform = np.random.default_rng(seed).random(sequences)
    # np.interp needs ascending positions: -log(share above) ascends with the length.
    drawn = np.interp(-np.log1p(-uniform), -np.log(above), np.log(lengths))
    return np.maximum(np.rint(np.exp(drawn)), 1).astype(np.int64)


def sample_mixture(
    *,
    sequences: int,
    seed: int,
    body_median_tokens: float,
    body_sigma: float,
    tail_fraction: float,
    tail_start_tokens: float,
    tail_exponent: float,
    longest_tokens: int,
) -> Lengths:
    """Draw lengths from a log-normal body and a Pareto tail.

    The tail has probability ``tail_fraction``. The body has the given median and
    standard deviation of the logarithm and is clipped to the range. The tail has
    P(length > x) = (start / x)^exponent, cut off at ``longest_tokens`` (by the inverse
    of the truncated distribution, so that nothing piles up there).
    """
    random = np.random.default_rng(seed)
    in_tail = random.random(sequences) < tail_fraction
    body = body_median_tokens * np.exp(body_sigma * random.standard_normal(sequences))
    below_limit = 1 - (tail_start_tokens / longest_tokens) ** tail_exponent
    tail = tail_start_tokens * (1 - below_limit * random.random(sequences)) ** (-1 / tail_exponent)
    return np.clip(np.rint(np.where(in_tail, tail, body)), 1, longest_tokens).astype(np.int64)


def read_length_file(path: str | Path, column: str) -> Lengths:
    """Lengths in tokens from a JSON list, a text file with one per line, or a table.

    ``column`` is that of a CSV or Parquet table. ValueError names the file, the
    sequence or line, and the fault: missing, empty, not an integer or not positive.
    """
    if not Path(path).is_file():
        what = "a folder" if Path(path).is_dir() else "no such file"
        raise UserError(
            f"{path}: {what}; allowed: a JSON list, text, CSV or Parquet file of lengths"
        )
    reader = {".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}.get(
        Path(path).suffix.lower()
    )
    try:
        values = reader(Path(path), column) if reader else _read_lines(Path(path))
        return check_lengths(values, str(path))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start} is no text; allowed: a JSON list, text, CSV or Parquet"
            " file of lengths, by the ending of its name"
        ) from error
    except csv.Error as error:
        raise UserError(f"{path}: no CSV ({error}); allowed: a table of lengths") from None


def check_lengths(values: Iterable[tuple[str, Any]], origin: str) -> Lengths:
    """Lengths as an array from pairs (position in the file, value).

    ValueError names ``origin`` and the position.
    """
    lengths = []
    for location, value in values:
        try:
            number = int(value)
            is_integer = not isinstance(value, bool) and number == float(value)
        except (TypeError, ValueError, OverflowError):
            is_integer = False
        if not is_integer:
            raise UserError(f"{origin}: {location} is {value!r}; allowed: a whole number of tokens")
        if number > MOST_TOKENS:
            raise UserError(
                f"{origin}: {location} has length {number}; allowed: at most {MOST_TOKENS} tokens"
            )
        if number < 1:
            raise UserError(f"{origin}: {location} has length {number}; allowed: at least 1 token")
        lengths.append(number)
    if not lengths:
        raise UserError(f"{origin}: no sequences; allowed: at least one length")
    return np.array(lengths, dtype=np.int64)


def length_statistics(lengths: npt.ArrayLike) -> dict[str, float | int]:
    """Count, sum, mean and quantiles of lengths [n] in tokens, and shares of long ones.

    Shares are those above 8 192 and 65 536 tokens.
    """
    array = np.asarray(lengths, dtype=np.int64)
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    summary: dict[str, float | int] = {
        "sequences": len(array),
        "total_tokens": int(array.sum()),
        "mean_tokens": float(array.mean()),
        **{f"{name}_tokens": float(np.quantile(array, q)) for name, q in quantiles.items()},
        "shortest_tokens": int(array.min()),
        "longest_tokens": int(array.max()),
    }
    for limit in (8192, 65536):
        summary[f"sequences_above_{limit}"] = float(np.mean(array > limit))
        summary[f"tokens_in_sequences_above_{limit}"] = float(
            array[array > limit].sum() / array.sum()
        )
    return summary


def _read_json(path: Path, _: str) -> Iterable[tuple[str, Any]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig") or "[]")
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None
    except RecursionError:
        raise UserError(f"{path}: JSON nested too deeply; allowed: a list of lengths") from None
    if not isinstance(values, list):
        raise UserError(f"{path}: a JSON {type(values).__name__}; allowed: a list of lengths")
    return ((f"sequence {index}", value) for index, value in enumerate(values))


def _read_lines(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{path}: not text; allowed: one length per line") from None
    return (
        (f"line {number}", line.strip())
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )


def _read_csv(path: Path, column: str) -> Iterable[tuple[str, Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        names, rows = list(reader.fieldnames or []), list(reader)
    if names:
        _check_column(path, column, names)
    return ((f"sequence {index}", (row[column] or "").strip()) for index, row in enumerate(rows))


def _read_parquet(path: Path, column: str) -> Iterable[tuple[str, Any]]:
    try:
        file = pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a Parquet file ({error})") from None
    names = file.schema_arrow.names
    _check_column(path, column, names)
    values = file.read(columns=[column]).column(0).to_pylist()
    return ((f"sequence {index}", value) for index, value in enumerate(values))


def _check_column(path: Path, column: str, names: Sequence[str]) -> None:
    if column not in names:
        listed = ", ".join(names)
        raise UserError(f"{path}: no column {column}; allowed: as corpus.column {listed}")
