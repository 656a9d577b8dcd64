"""Result files as data frames: Parquet tables, and JSON as one row whose columns are
dotted keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from railx.evidence.claims import Ours, Selection
from railx.evidence.errors import ClaimError, NotAvailable
from railx.io import FIDELITIES, Fidelity, read_json, read_table

__all__ = ["lowest_fidelity", "select_rows"]

_RANGE_KEYS = ("at_least", "at_most", "not")


def select_rows(results_dir: str | Path, selection: Selection) -> pd.DataFrame:
    """The rows of the selection's table that pass its filter.

    Raises NotAvailable where the file is missing or no row is left, ClaimError (key and
    what is allowed) for an unknown column.
    """
    path = Path(results_dir) / selection.table
    if not path.is_file():
        raise NotAvailable(f"{selection.table} is not among the results of this experiment")
    frame = (
        read_table(path).to_pandas() if path.suffix == ".parquet" else _json_frame(path, selection)
    )
    for column, wanted in selection.filter.items():
        if column not in frame.columns:
            raise ClaimError(
                f"filter.{column}: no such column in {selection.table}; allowed:"
                f" {', '.join(map(str, frame.columns))}"
            )
        frame = frame[_passes(frame[column], wanted, column)]
    if frame.empty:
        words = ", ".join(
            f"{column} {_words(wanted)}" for column, wanted in selection.filter.items()
        )
        raise NotAvailable(
            f"{selection.table} has no row with {words}"
            if words
            else f"{selection.table} has no rows"
        )
    return frame


def lowest_fidelity(frames: Mapping[str, pd.DataFrame], ours: Ours) -> Fidelity | None:
    """The least faithful origin among the rows that a value stands on; None where it is
    not known.

    A file's own ``fidelity`` column counts before what the claim says; a value nobody
    knows raises ClaimError.
    """
    ranks = []
    for name, frame in frames.items():
        found = (
            [ours.fidelity] if "fidelity" not in frame.columns else list(frame["fidelity"].unique())
        )
        for fidelity in found:
            if fidelity is None or pd.isna(fidelity):
                return None
            if fidelity not in FIDELITIES:
                table = ours.chosen[name].table
                raise ClaimError(
                    f"fidelity: {table} has {fidelity!r}; allowed: {', '.join(FIDELITIES)}"
                )
            ranks.append(FIDELITIES.index(fidelity))
    return FIDELITIES[min(ranks)] if ranks else None


def _json_frame(path: Path, selection: Selection) -> pd.DataFrame:
    """A JSON object as one row, or a row per item of the lists that ``rows`` names (an
    object's keys become columns).
    """
    row = _flatten(read_json(path))
    if not selection.rows:
        return pd.DataFrame([row])
    lists = {}
    for key in selection.rows:
        if key not in row:
            raise ClaimError(
                f"rows: no key {key!r} in {selection.table}; allowed: {', '.join(row)}"
            )
        if row[key] is None:
            raise NotAvailable(f"{key} of {selection.table} is null")
        if not isinstance(row[key], list):
            raise ClaimError(f"rows: {key!r} of {selection.table} is no list")
        lists[key] = row.pop(key)
    if len({len(items) for items in lists.values()}) != 1:
        raise ClaimError(
            f"rows: {', '.join(selection.rows)} of {selection.table} differ in length; allowed:"
            " lists of equal length"
        )
    records = [
        {
            **row,
            **{
                name: item
                for key, value in zip(lists, items, strict=True)
                for name, item in _item(key, value).items()
            },
        }
        for items in zip(*lists.values(), strict=True)
    ]
    return pd.DataFrame(records)


def _item(key: str, value: Any) -> dict[str, Any]:
    return _flatten(value) if isinstance(value, dict) else {key: value}


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one row; lists and other values stay as they are."""
    if not isinstance(value, dict):
        raise ClaimError(
            "table: the JSON file holds no object; allowed: an object whose keys can be named"
        )
    row: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict) and item:
            row.update(_flatten(item, f"{prefix}{key}."))
        else:
            row[f"{prefix}{key}"] = item
    return row


def _passes(column: pd.Series[Any], wanted: Any, name: str) -> pd.Series[bool]:
    """Which rows have the wanted value: a scalar, null, one of a list, or a mapping
    with at_least, at_most and not.
    """
    if wanted is None:
        return column.isna()
    if isinstance(wanted, list):
        return column.isin(wanted)
    if not isinstance(wanted, dict):
        return column.eq(wanted)
    passes = pd.Series(True, index=column.index)
    for key, bound in wanted.items():
        if key not in _RANGE_KEYS:
            raise ClaimError(f"filter.{name}.{key}: unknown key; allowed: {', '.join(_RANGE_KEYS)}")
        try:
            passes &= (
                column >= bound
                if key == "at_least"
                else column <= bound
                if key == "at_most"
                else column != bound
            )
        except TypeError:
            raise ClaimError(
                f"filter.{name}.{key}: {bound!r} cannot be compared with the column"
            ) from None
    return passes


def _words(wanted: Any) -> str:
    if isinstance(wanted, dict):
        return " and ".join(f"{key.replace('_', ' ')} {bound}" for key, bound in wanted.items())
    return f"one of {', '.join(map(str, wanted))}" if isinstance(wanted, list) else str(wanted)
