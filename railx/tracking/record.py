"""The record of an invocation, for comparisons of two.

It travels with the invocation's run in every tracker, so that a comparison asks neither
a server nor the results, which later runs replace.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from railx.io import read_table
from railx.provenance.jobs import settings_digest
from railx.tracking.results import Invocation, StageResult, numbers

RECORD_SCHEMA = "railx.invocation/1"
#: Its name among the artifacts of an invocation's run.
RECORD = "invocation.json"


def invocation_record(
    invocation: Invocation, results: Sequence[StageResult], existing: Collection[str]
) -> dict[str, Any]:
    """The record as plain JSON data.

    Keys: ``schema``, ``experiment``, ``invocation``, ``logged_utc``, ``tags``,
    ``config`` (the whole experiment), ``modules`` (digests by name), ``packages``
    (versions by name), ``verdicts`` (rows) and ``results``, each with ``stage``,
    ``name``, ``digest``, ``contents``, ``config`` (digest), ``found``, ``fidelity``,
    ``numbers``, ``intervals``, ``job``, ``modules`` and ``packages`` (names),
    ``inputs`` and ``outputs``.
    """
    modules: dict[str, str] = {}
    packages: dict[str, str] = {}
    for result in results:
        modules |= result.code
        packages |= result.packages
    return {
        "schema": RECORD_SCHEMA,
        "experiment": invocation.experiment,
        "invocation": invocation.name,
        "logged_utc": invocation.logged_utc,
        "tags": dict(invocation.tags),
        "config": invocation.config,
        "modules": dict(sorted(modules.items())),
        "packages": dict(sorted(packages.items())),
        "verdicts": [
            {key: _finite(value) for key, value in row.items()}
            for result in results
            for row in result.verdicts
        ],
        "results": [
            {
                "stage": result.stage,
                "name": result.name,
                "digest": result.digest,
                "contents": result.contents,
                "config": settings_digest(result.config)[:16],
                "found": result.key in existing,
                "fidelity": result.fidelity,
                "numbers": {**numbers(result.metrics), **result.points},
                "intervals": {key: list(pair) for key, pair in result.intervals.items()},
                "job": dict(result.job),
                "modules": sorted(result.code),
                "packages": sorted(result.packages),
                "inputs": dict(result.inputs),
                "outputs": dict(result.outputs),
            }
            for result in results
        ],
    }


def _finite(value: Any) -> Any:
    """Infinite and undefined numbers as None, because JSON has none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
