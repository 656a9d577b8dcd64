"""Stage results for the trackers, with config, metrics and digest, and the record of an
invocation, for comparisons of two.

The record travels with the invocation's run in every tracker, so that a comparison asks
neither a server nor the results, which later runs replace.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from railx.io import dotted_leaves, read_table
from railx.provenance import digest_of
from railx.provenance.jobs import settings_digest

#: Letters of a name that the head of a chart shows.
_CHART_LETTERS = 36
RECORD_SCHEMA = "railx.invocation/1"
#: Its name among the artifacts of an invocation's run.
RECORD = "invocation.json"


@dataclass(frozen=True)
class Curve:
    """A number of a result step by step.

    ``step`` is the name of what counts the steps (``iteration``), ``points`` are pairs
    of a step and a value, in the order of the steps.
    """

    name: str
    step: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class StageResult:
    """The result of one stage.

    ``digest`` identifies its code, config and inputs (see :func:`result_digest`).
    ``metrics`` may be nested; values that are no numbers are dropped. ``artifacts`` are
    its files for the trackers: pictures, tables and pages by suffix. ``curves`` are its
    history, ``intervals`` minimum and maximum of repeats by the dotted name of a metric
    or point, ``points`` numbers that only a comparison reads (a curve at one load).
    ``verdicts`` are rows with ``claim`` and ``verdict``. ``job`` has the resources of
    the job. ``inputs`` and ``outputs`` are SHA-256 by path, ``code`` digests by module,
    ``packages`` versions by name.
    """

    stage: str
    name: str
    digest: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    fidelity: str | None = None
    artifacts: tuple[Path, ...] = ()
    curves: tuple[Curve, ...] = ()
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    points: Mapping[str, float] = field(default_factory=dict)
    verdicts: tuple[Mapping[str, Any], ...] = ()
    job: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    contents: str = ""
    """A digest of the logged contents; empty where ``digest`` determines them.

    A repeated measurement has the same digest and other contents.
    """

    @property
    def title(self) -> str:
        """Its name in a tracker."""
        return f"{self.stage}/{self.name}"

    @property
    def key(self) -> str:
        """16 hexadecimal digits, the same for the same result of the same stage."""
        parts = (self.stage, self.name, self.digest, self.contents)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Invocation:
    """One run of the pipeline, which groups the runs of its results.

    ``config`` is the config of the experiment, ``tags`` further labels.
    """

    experiment: str
    name: str
    logged_utc: str
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    def run_id(self, key: str) -> str:
        """32 hexadecimal digits: the run of a result (or of all, with an empty key)."""
        named = f"{self.experiment}\0{self.name}\0{key}"
        return hashlib.sha256(named.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class TrackedRun:
    """The runs of a stage result in the trackers; None where a tracker is off.

    ``*_logged_before``: an earlier invocation has logged it, and this run is a copy
    that names the first one.
    """

    stage: str
    name: str
    digest: str
    mlflow_run: str | None
    mlflow_logged_before: bool
    wandb_run: str | None
    wandb_logged_before: bool


def result_digest(config: Any, inputs: Iterable[str | Path] = (), code: str = "") -> str:
    """SHA-256 (hexadecimal) of a resolved config, its input files and its code.

    The contents of the files count in the order given, the code by a digest. Names and
    times of files play no part. Raises OSError for an input that cannot be read.
    """
    plain = json.dumps(config, sort_keys=True, separators=(",", ":"), default=str)
    digest = hashlib.sha256(f"{plain}\0{code}".encode())
    for path in inputs:
        digest.update(b"\0" + bytes.fromhex(file_digest(path)))
    return digest.hexdigest()


#: Digests of files by path, size and time: many stages read the same files.
_DIGESTS: dict[tuple[str, int, int], str] = {}


def file_digest(path: str | Path) -> str:
    """SHA-256 (hexadecimal) of a file; one that did not change is read once."""
    status = Path(path).stat()
    key = (str(Path(path).resolve()), status.st_size, status.st_mtime_ns)
    if key not in _DIGESTS:
        _DIGESTS[key] = digest_of(path)
    return _DIGESTS[key]


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among the leaves (true and false as 1 and 0)."""
    leaves = (
        (key, float(value))
        for key, value in dotted_leaves(metrics)
        if isinstance(value, (int, float))
    )
    return {key: value for key, value in leaves if math.isfinite(value)}


def few_numbers(metrics: Mapping[str, Any], most: int) -> dict[str, float]:
    """At most ``most`` of the numbers: those of the result before those of its parts.

    Ends of intervals and names too long for the head of a chart come last.
    """
    values = numbers(metrics)

    def order(name: str) -> tuple[int, bool, bool]:
        return name.count("."), name.endswith(("_low", "_high")), len(name) > _CHART_LETTERS

    chosen = set(sorted(values, key=order)[:most])
    return {name: value for name, value in values.items() if name in chosen}


def verdict_counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many rows have each verdict, as a word without blanks."""
    return Counter(str(row["verdict"]).replace(" ", "_") for row in rows)


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
    return _finite(value) if isinstance(value, (bool, int, float, str, type(None))) else str(value)
