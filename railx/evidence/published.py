"""Published numbers: CSV files whose rows have an id and a source.

Claims refer to a number and never retype it.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Published", "read_published"]


@dataclass(frozen=True)
class Published:
    """One published number with its unit, source and the confidence in the reading.

    The unit is empty for a plain ratio.
    """

    file: str
    id: str
    column: str
    value: float
    unit: str
    source: str
    confidence: str


def read_published(
    directory: str | Path, file: str, row_id: str, column: str = "value"
) -> Published:
    """The number in ``column`` of the row ``row_id``.

    Raises ValueError naming the file and what it has instead.
    """
    path = Path(directory) / file
    if not path.is_file():
        names = ", ".join(sorted(item.name for item in Path(directory).glob("*.csv")))
        raise ValueError(f"file: no {file} in {directory}; allowed: {names or 'none'}")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    found = [row for row in rows if row.get("id") == row_id]
    if len(found) != 1:
        known = ", ".join(row["id"] for row in rows[:8] if row.get("id"))
        raise ValueError(
            f"id: {len(found)} rows of {file} have the id {row_id!r}; allowed: one id of the file"
            f" ({known}, ...)"
        )
    row = found[0]
    if column not in row:
        raise ValueError(f"column: {file} has no {column!r}; allowed: {', '.join(row)}")
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"column: {column} of {row_id} in {file} is {row[column]!r}; allowed: a number"
        )
    unit = row.get("unit") or ""
    return Published(
        file, row_id, column, value, unit, row.get("source") or "", row.get("confidence") or ""
    )
