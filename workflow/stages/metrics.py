"""Stage metrics: the metrics of all topologies -> one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from railx.io import read_json, write_table

__all__ = ["run"]


def run(
    metrics_paths: Mapping[str, str | Path], *, table_path: str | Path | None = None
) -> dict[str, Any]:
    """Gather the metrics of topologies, given by name, as one row each; write them
    where a path is given; return how many.
    """
    rows = [
        {"topology": name, **read_json(path), "fidelity": "analytic"}
        for name, path in metrics_paths.items()
    ]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if table_path is not None:
        write_table(table_path, pa.table({key: [row.get(key) for row in rows] for key in columns}))
    return {"topologies": len(rows)}
