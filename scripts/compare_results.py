"""Compare the results of two runs: whether a change of the code changed them.

    python scripts/compare_results.py results_before/quick results/quick

Every table (Parquet, CSV) and every JSON file of the stages is compared. Rows of
fidelity analytic, flow, packet and replay must be equal to the last digit. Rows that
are emulated or measured must be as many, with equal words and flags: their times differ
from run to run. Figures are compared by the data that they draw. Not compared: logs,
records of the machine, pages, images and how long anything took.

``resources/renamed.yaml`` says which names have changed: a file or a value under its
old name on the left is the one under its new name on the right. Exits with 1 where
anything differs.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import yaml

RENAMED = Path(__file__).resolve().parent.parent / "resources/renamed.yaml"
#: Folders of a run that hold no results of stages.
SKIPPED = frozenset({"benchmarks", "crate", "logs", "provenance", "report", "tracking"})
#: Stages whose every value is measured, whether a row says so or not.
MEASURED_STAGES = frozenset({"live", "profile", "training"})
MEASURED = frozenset({"emulated", "measured_cpu", "measured_gpu"})
#: Values that say how long the work took or what the machine was, not what came out.
OF_THE_MACHINE = re.compile(
    r"(^|_)(cpu|planning|elapsed|solver|wall|compile)(_\w+)?_(s|ms)$|^(started|ended)_|_per_s$"
    r"|^(planned|solved|speed|commit|digest|created|versions|host)"
)
#: How many differences of a file are printed.
SHOWN = 3

Row = Mapping[str, Any]


def main() -> int:
    """Print what differs between two runs; 1 where anything does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path, help="the folder of the earlier run")
    parser.add_argument("after", type=Path, help="the folder of the later run")
    options = parser.parse_args()
    for folder in (options.before, options.after):
        if not folder.is_dir():
            parser.error(f"{folder} is no folder; allowed: the results of an experiment")
    renamed = renames()
    before = {translated_path(path, renamed): path for path in result_files(options.before)}
    after = {path: path for path in result_files(options.after)}
    differences = [f"{path}: only before" for path in sorted(before.keys() - after.keys())]
    differences += [f"{path}: only after" for path in sorted(after.keys() - before.keys())]
    rows = 0
    for path in sorted(before.keys() & after.keys()):
        old = [translated(row, renamed) for row in read_rows(options.before / before[path])]
        new = read_rows(options.after / path)
        rows += len(new)
        differences += [f"{path}: {text}" for text in differing(path.parts[0], old, new)]
    print("\n".join(differences))
    common = len(before.keys() & after.keys())
    print(f"{common} files with {rows} rows compared, {len(differences)} differences")
    return 1 if differences else 0


def renames() -> dict[str, str]:
    """New names by old ones, of everything that results are stored under."""
    if not RENAMED.is_file():
        return {}
    groups = yaml.safe_load(RENAMED.read_text(encoding="utf-8"))
    return {old: new for names in groups.values() for old, new in names.items()}


def result_files(folder: Path) -> list[Path]:
    """The tables and JSON files of the stages below a run's folder."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [
        path
        for path in files
        if len(path.parts) > 1
        and path.parts[0] not in SKIPPED
        and path.suffix in (".parquet", ".csv", ".json")
    ]


def translated_path(path: Path, renamed: Mapping[str, str]) -> Path:
    parts = [renamed.get(part, part) for part in path.with_suffix("").parts]
    return Path(*parts).with_suffix(path.suffix)


def translated(value: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {translated(key, renamed): translated(item, renamed) for key, item in value.items()}
    if isinstance(value, list):
        return [translated(item, renamed) for item in value]
    return renamed.get(value, value) if isinstance(value, str) else value


def read_rows(path: Path) -> list[Row]:
    """The rows of a table; a JSON file is one row, a value for each path of keys."""
    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_table(path).to_pylist())
    if path.suffix == ".csv":
        return list(pyarrow.csv.read_csv(path).to_pylist())
    return [dict(flattened(json.loads(path.read_text(encoding="utf-8"))))]


def flattened(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flattened(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        for index, item in enumerate(value):
            yield from flattened(item, f"{path}.{index}")
    else:
        yield path, value


def differing(stage: str, old: list[Row], new: list[Row]) -> list[str]:
    """What differs between the rows of a file before and after."""
    if len(old) != len(new):
        return [f"{len(old)} rows before, {len(new)} after"]
    columns = {key for row in old for key in row}
    lost = sorted(columns - {key for row in new for key in row})
    added = sorted({key for row in new for key in row} - columns)
    texts = [f"lost column {key}" for key in lost if not machine(key)]
    texts += [f"new column {key}" for key in added if not machine(key)]
    before, after = ([compared(stage, row) for row in rows] for rows in (old, new))
    if stage in MEASURED_STAGES:
        if Counter(map(repr, before)) != Counter(map(repr, after)):
            texts.append("words or flags of measured rows differ")
        return texts
    for number, (left, right) in enumerate(zip(before, after, strict=True)):
        texts += [
            f"row {number}: {key}: {left[key]!r} before, {right[key]!r} after"
            for key in left.keys() & right.keys()
            if not equal(left[key], right[key])
        ]
    hidden = len(texts) - SHOWN
    return [*texts[:SHOWN], f"... and {hidden} more"] if hidden > 0 else texts


def compared(stage: str, row: Row) -> Row:
    """The values of a row that must be equal in both runs."""
    measured = stage in MEASURED_STAGES or row.get("fidelity") in MEASURED
    return {
        key: value
        for key, value in row.items()
        if not machine(key) and (not measured or isinstance(value, (str, bool)))
    }


def machine(key: str) -> bool:
    return any(OF_THE_MACHINE.search(part) for part in key.split("."))


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


if __name__ == "__main__":
    sys.exit(main())
