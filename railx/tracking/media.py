"""Files of a result as the trackers show them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from railx.io import read_table

__all__ = ["table_json"]


def table_json(path: Path, most_rows: int) -> dict[str, Any] | None:
    """A Parquet table as ``columns`` and ``data`` (lists of plain values).

    None where it has more than ``most_rows`` rows.
    """
    import pyarrow.parquet as pq

    if pq.read_metadata(path).num_rows > most_rows:
        return None
    table = read_table(path)
    rows = zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
    return {
        "columns": table.column_names,
        "data": [[_plain(value) for value in row] for row in rows],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
