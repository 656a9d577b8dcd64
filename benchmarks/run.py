"""All benchmarks, one after the other, held against a stored run.

    python benchmarks/run.py [--only replay,controller] [--fail] [--store] [--long]

Each prints its own tables; its numbers come back as rows (benchmarks/shared.py). At the
end stands one table: every number, its ratio to the one stored for this kind of machine
(benchmarks/baselines/KIND.json), the load of both runs, and marks on what is worse by
more than the load explains.

A number may differ for two reasons: the code, or what else the machine did. How far the
second reaches is the *band* of a comparison: nothing for a number that no clock was
read for, and wider for the others the busier the machine was in either run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shared import FILE, cores, describe, kind

HERE = Path(__file__).resolve().parent
BASELINES = HERE / "baselines"
#: Every benchmark: its script with its arguments, and whether it takes more than some
#: ten minutes (such a one runs where it is named).
BENCHMARKS: dict[str, tuple[tuple[str, ...], bool]] = {
    "planners": (("planners.py",), False),
    "planner_sets": (("planner_sets.py",), False),
    "pipelines": (("pipelines.py",), False),
    "pipelines_checkpoints": (("pipelines.py", "checkpoints", "--draws", "3"), False),
    "packet_simulator": (("packet_simulator.py",), False),
    "packet_sizes": (("packet_sizes.py",), False),
    "replay": (("replay.py",), False),
    "replay_live": (("replay_live.py",), False),
    "replay_live_busy": (("replay_live.py", "--busy", "--repeats", "3"), False),
    "backend": (("backend.py",), False),
    "controller": (("controller.py",), False),
    "controller_rules": (("controller_rules.py",), False),
    "full_scale": (("full_scale.py",), False),
    "joint": (("joint.py",), False),
    "jobs": (("jobs.py",), False),
    "plan_search": (("plan_search.py",), False),
    "rivals": (("rivals.py",), True),
    "pipelines_baselines": (("pipelines.py", "baselines"), True),
    "solvers": (("solvers.py",), True),
}
#: The load a core beside a benchmark up to which its numbers are stored: a band as wide
#: as a busy machine makes it would find nothing.
_BUSIEST = 1.0
_MARKS = {"worse": "!! worse", "better": "better", "same": "", "new": "new", "gone": "gone"}

Row = Mapping[str, Any]
Verdict = Literal["same", "better", "worse", "new", "gone"]

#: Two runs of the same code on a machine that does nothing else differ by this much.
#: What no clock measures differs by rounding alone; memory by what is allocated when.
_QUIET = {"none": 1e-6, "memory": 0.05, "processor": 0.1, "wall": 0.1}
#: A machine whose cores are all busy: cores share caches and their memory.
_SHARED = {"none": 0.0, "memory": 0.0, "processor": 0.2, "wall": 0.2}


@dataclass(frozen=True)
class Compared:
    """A number, the stored one, and what to make of them.

    ``ratio`` is ours over theirs; None where one of them is missing, or they cannot be
    divided.
    """

    name: str
    unit: str
    ours: float | None
    theirs: float | None
    ratio: float | None
    band: float
    verdict: Verdict


def band(clock: str, *loads_a_core: float) -> float:
    """How far two runs of the same code may lie apart, as a share.

    ``loads_a_core``: the load averages of the runs over the cores. Up to 1 programs
    share what cores share; beyond it they wait for one another, which a wall clock sees
    in full.
    """
    width = _QUIET[clock]
    for load in loads_a_core:
        width += _SHARED[clock] * min(1.0, load)
        if clock == "wall":
            width += max(0.0, load - 1.0)
    return width


def worse_by(ours: float, theirs: float, better: str) -> float | None:
    """The factor by which a number is worse than the stored one: above 1 where it is.

    None where one is not above zero and they are not equal: there is no factor then.
    """
    if ours == theirs:
        return 1.0
    if ours <= 0 or theirs <= 0:
        return None
    return ours / theirs if better == "less" else theirs / ours


def compare(
    ours: Sequence[Row], theirs: Sequence[Row], loads_a_core: tuple[float, float]
) -> list[Compared]:
    """Every number of both runs, in the order of ours; then those that are gone."""
    stored = {row["name"]: row for row in theirs}
    found = [_compared(row, stored.get(row["name"]), loads_a_core) for row in ours]
    names = {row["name"] for row in ours}
    gone = [row for row in theirs if row["name"] not in names]
    return found + [
        Compared(row["name"], row["unit"], None, row["value"], None, 0.0, "gone") for row in gone
    ]


def _compared(row: Row, stored: Row | None, loads_a_core: tuple[float, float]) -> Compared:
    name, unit, value = row["name"], row["unit"], row["value"]
    # A number in another unit, or read otherwise, is another number.
    if stored is None or (stored["unit"], stored["clock"]) != (unit, row["clock"]):
        return Compared(name, unit, value, None, None, 0.0, "new")
    width = band(row["clock"], *loads_a_core)
    factor = worse_by(value, stored["value"], row["better"])
    ratio = value / stored["value"] if stored["value"] else (1.0 if not value else None)
    verdict: Verdict = "same"
    if factor is None:
        less = value < stored["value"]
        verdict = "better" if less == (row["better"] == "less") else "worse"
    elif factor > 1 + width:
        verdict = "worse"
    elif factor < 1 / (1 + width):
        verdict = "better"
    return Compared(name, unit, value, stored["value"], ratio, width, verdict)


def regressions(compared: Sequence[Compared]) -> list[Compared]:
    """What is worse by more than its band."""
    return [one for one in compared if one.verdict == "worse"]


def chosen(only: str | None, *, long: bool) -> list[str]:
    """The benchmarks that run.

    Raises ValueError for a name that is none of them.
    """
    if only is None:
        return [name for name, (_, takes_long) in BENCHMARKS.items() if long or not takes_long]
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown or not names:
        raise ValueError(f"ONLY: got {only!r}; allowed: {', '.join(BENCHMARKS)}")
    return names


def measure(name: str) -> dict[str, Any]:
    """Run a benchmark; its rows, exit code, seconds, and the load before and after."""
    (script, *arguments), _ = BENCHMARKS[name]
    print(f"\n== {name}: {' '.join((script, *arguments))}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        before, begin = os.getloadavg()[0], time.perf_counter()
        environment = {**os.environ, FILE: str(file)}
        code = subprocess.run(
            [sys.executable, str(HERE / script), *arguments], env=environment, check=False
        ).returncode
        seconds = time.perf_counter() - begin
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {
        "exit_code": code,
        "seconds": round(seconds, 1),
        "load_before": round(before, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "rows": [json.loads(line) for line in lines],
    }


def read_baseline(path: Path) -> dict[str, Any]:
    """The stored run of a kind of machine; an empty one where there is none."""
    empty: dict[str, Any] = {"machine": "", "benchmarks": {}}
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else empty


def fit_to_store(taken: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The benchmarks of a run that may be held against later ones."""
    return {
        name: one
        for name, one in taken["benchmarks"].items()
        if not one["exit_code"] and load_a_core(one) <= _BUSIEST
    }


def store(path: Path, kept: dict[str, Any], taken: dict[str, Any]) -> None:
    """Put the benchmarks of this run in the place of the stored ones; others stay."""
    good = fit_to_store(taken)
    whole = {"machine": taken["machine"], "benchmarks": {**kept["benchmarks"], **good}}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    beside.replace(path)


def load_a_core(one: dict[str, Any]) -> float:
    """The load beside a benchmark: that before it began.

    What stands in the average afterwards is the benchmark itself too.
    """
    return float(one["load_before"]) / cores()


def table(compared: dict[str, list[Compared]]) -> str:
    """Every number beside the stored one."""
    lines = [
        "| benchmark | number | ours | stored | unit | ratio | band | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for benchmark, numbers in compared.items():
        for one in numbers:
            cells = [
                *(benchmark, one.name, _number(one.ours), _number(one.theirs), one.unit),
                *("" if one.ratio is None else f"{one.ratio:.3f}", f"{one.band:.0%}"),
                _MARKS[one.verdict],
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help=f"names with commas between: {', '.join(BENCHMARKS)}")
    parser.add_argument("--long", action="store_true", help="those too that take very long")
    parser.add_argument("--fail", action="store_true", help="exit with 1 where one is worse")
    parser.add_argument("--store", action="store_true", help="keep these numbers as the baseline")
    parser.add_argument("--kind", default=kind(), help=f"the kind of machine (this: {kind()})")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks.json"))
    options = parser.parse_args()
    try:
        names = chosen(options.only, long=options.long)
    except ValueError as error:
        parser.error(str(error))
    path = BASELINES / f"{options.kind}.json"
    kept = read_baseline(path)
    print(f"{describe()}; kind {options.kind}", flush=True)
    taken = {
        "machine": describe(),
        "kind": options.kind,
        "benchmarks": {name: measure(name) for name in names},
    }
    compared = {}
    for name, one in taken["benchmarks"].items():
        stored = kept["benchmarks"].get(name)
        loads = (load_a_core(one), load_a_core(stored) if stored else 0.0)
        compared[name] = compare(one["rows"], stored["rows"] if stored else [], loads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    whole = {**taken, "compared": {n: [vars(one) for one in c] for n, c in compared.items()}}
    options.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"\n{table(compared)}\n")
    return report(taken, kept, compared, options, path)


def report(
    taken: dict[str, Any],
    kept: dict[str, Any],
    compared: dict[str, list[Compared]],
    options: argparse.Namespace,
    path: Path,
) -> int:
    """The lines below the table; the exit code."""
    ran = taken["benchmarks"]
    failed = [name for name, one in ran.items() if one["exit_code"]]
    worse = [(name, one) for name in ran for one in regressions(compared[name])]
    for name, one in ran.items():
        stored = kept["benchmarks"].get(name)
        beside = "not stored yet" if stored is None else f"stored at load {stored['load_before']}"
        print(f"{name}: {one['seconds']} s, load {one['load_before']} when it began; {beside}")
    absent = [name for name in BENCHMARKS if name not in ran]
    if absent:
        print(f"not run: {', '.join(absent)}")
    if options.store:
        good = fit_to_store(taken)
        if good:
            store(path, kept, taken)
            print(f"stored: {path.relative_to(HERE.parent)}: {', '.join(good)}")
        for name in ran:
            if name not in good and name not in failed:
                print(
                    f"not stored: {name}, as the load was {ran[name]['load_before']} when it"
                    f" began; allowed: at most {_BUSIEST * cores():g}"
                )
    elif not kept["benchmarks"]:
        print(f"no baseline of this kind of machine ({options.kind}): --store makes one")
    print(f"written: {options.out}")
    for name, one in worse:
        assert one.theirs is not None
        print(
            f"!! worse: {name}, {one.name}: {_number(one.ours)} {one.unit}, stored"
            f" {_number(one.theirs)}, beyond the band of {one.band:.0%}"
        )
    if failed:
        print(f"!! failed: {', '.join(failed)}")
    return 1 if failed or (worse and options.fail) else 0


if __name__ == "__main__":
    sys.exit(main())
