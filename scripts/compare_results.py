"""Compare the results of two runs: whether a change of the code changed them.

    python scripts/compare_results.py results_before/quick results/quick

Every table (Parquet, CSV) and every JSON file of the stages is compared. Rows of
fidelity analytic, flow, packet and replay must be equal to the last digit. Rows that
are emulated or measured must be as many, with equal words and flags: their times differ
from run to run. Figures are compared by the data that they draw. Not compared: logs,
records of the machine, pages, images and how long anything took.

A name that has changed (``resources/renamed.yaml``) counts as equal to its new one, in
paths and in values. Exits with 1 where anything differs.
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

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workflow.renamed import new_name

#: Folders of a run that hold no results of stages.
SKIPPED = frozenset({"benchmarks", "crate", "logs", "provenance", "report", "tracking"})
#: Stages whose values are measured or replayed from measurements.
MEASURED_STAGES = frozenset({"live", "profile", "replay", "training"})
MEASURED = frozenset({"emulated", "measured_cpu", "measured_gpu"})
#: Values that say how long the work took or what the machine was, not what came out.
OF_THE_MACHINE = re.compile(
    r"(^|_)(cpu|planning|elapsed|solver|wall|compile)(_\w+)?_(s|ms)$|^(started|ended)_|_per_s$"
    r"|^(disturbed|planned|solved|speed|commit|digest|created|versions|host)"
)
#: How many differences of a file are printed.
SHOWN = 3


def main() -> int:
    """Print what differs between two runs; 1 where anything does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path, help="the folder of the earlier run")
    parser.add_argument("after", type=Path, help="the folder of the later run")
    options = parser.parse_args()
    for folder in (options.before, options.after):
        if not folder.is_dir():
            parser.error(f"{folder} is no folder; allowed: the results of an experiment")
    after = set(result_files(options.after))
    before = {
        path if path in after else renamed_path(path): path for path in result_files(options.before)
    }
    differences = [f"{path}: only before" for path in sorted(before.keys() - after)]
    differences += [f"{path}: only after" for path in sorted(after - before.keys())]
    rows = 0
    for path in sorted(before.keys() & after):
        old = read_rows(options.before / before[path])
        new = read_rows(options.after / path)
        rows += new.num_rows
        differences += [f"{path}: {text}" for text in differing(path.parts[0], old, new)]
    print("\n".join(differences))
    common = len(before.keys() & after)
    print(f"{common} files with {rows} rows compared, {len(differences)} differences")
    return 1 if differences else 0


def result_files(folder: Path) -> list[Path]:
    """The tables and JSON files of the stages below a run's folder."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [
        path
        for path in files
        if len(path.parts) > 1
        and path.parts[0] not in SKIPPED
        and path.suffix in (".parquet", ".csv", ".json")
        and path.name != "speed.json"
        and not (path.parts[0] in MEASURED_STAGES and path.suffix == ".json")
    ]


def renamed_path(path: Path) -> Path:
    """The path with every changed name replaced."""
    parts = [new_name("plan", part) or part for part in path.with_suffix("").parts]
    return Path(*parts).with_suffix(path.suffix)


def read_rows(path: Path) -> pa.Table:
    """The rows of a table; of a JSON file a row for each path of keys."""
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    if path.suffix == ".csv":
        return pyarrow.csv.read_csv(path)
    pairs = [
        (key, json.dumps(value))
        for key, value in sorted(flattened(json.loads(path.read_text(encoding="utf-8"))))
        if not any(map(of_the_machine, key.split(".")))
    ]
    return pa.table({"key": [key for key, _ in pairs], "value": [value for _, value in pairs]})


def flattened(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flattened(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        for index, item in enumerate(value):
            yield from flattened(item, f"{path}.{index}")
    else:
        yield path, value


def differing(stage: str, old: pa.Table, new: pa.Table) -> list[str]:
    """What differs between the rows of a file before and after."""
    texts = [
        f"{word} column {name}"
        for word, names, others in (("lost", old, new), ("new", new, old))
        for name in sorted(set(names.column_names) - set(others.column_names))
        if not of_the_machine(name)
    ]
    if old.num_rows != new.num_rows:
        return [*texts, f"{old.num_rows} rows before, {new.num_rows} after"]
    measured = measured_rows(stage, new)
    for name in old.column_names:
        if name not in new.column_names or of_the_machine(name) or old[name].equals(new[name]):
            continue
        left, right = old[name].to_pylist(), new[name].to_pylist()
        if stage in MEASURED_STAGES:
            if is_word(left) and Counter(left) != Counter(right):
                texts.append(f"{name}: other words in measured rows")
            continue
        texts += [
            f"row {row}: {name}: {before!r} before, {after!r} after"
            for row, (before, after) in enumerate(zip(left, right, strict=True))
            if not equal(before, after) and (not measured[row] or isinstance(before, str | bool))
        ]
    hidden = len(texts) - SHOWN
    return [*texts[:SHOWN], f"... and {hidden} more"] if hidden > 0 else texts


def measured_rows(stage: str, table: pa.Table) -> list[bool]:
    """Whether each row is measured or emulated."""
    if stage in MEASURED_STAGES or "fidelity" not in table.column_names:
        return [stage in MEASURED_STAGES] * table.num_rows
    return [fidelity in MEASURED for fidelity in table["fidelity"].to_pylist()]


def is_word(values: list[Any]) -> bool:
    return all(isinstance(value, str | bool) for value in values)


def of_the_machine(name: str) -> bool:
    return OF_THE_MACHINE.search(name) is not None


def equal(left: Any, right: Any) -> bool:
    """Whether two values are the same, changed names aside."""
    if isinstance(left, str) and isinstance(right, str) and left != right:
        words, others = re.split(r"(\w+)", left), re.split(r"(\w+)", right)
        return len(words) == len(others) and all(
            word == other or new_name("plan", word) == other
            for word, other in zip(words, others, strict=True)
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


if __name__ == "__main__":
    sys.exit(main())
