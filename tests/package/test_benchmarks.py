"""Numbers of a benchmark against stored ones, and the program that runs them all."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import ROOT

_CLOCKS = ("none", "processor", "wall", "memory")


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[SimpleNamespace]:
    """The modules, which lie in a folder of scripts and import one another by name."""
    folder = str(ROOT / "benchmarks")
    before = set(sys.modules)
    sys.path.insert(0, folder)
    try:
        import run
        import shared

        yield SimpleNamespace(run=run, shared=shared)
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            module: ModuleType = sys.modules[name]
            if str(getattr(module, "__file__", "")).startswith(folder):
                del sys.modules[name]


def _row(
    value: float, name: str = "a", unit: str = "ms", better: str = "less", clock: str = "none"
) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "better": better, "clock": clock}


@pytest.mark.parametrize(
    ("clock", "loads", "expected"),
    [
        ("none", (9.0, 9.0), 1e-6),
        ("memory", (9.0, 9.0), 0.05),
        ("processor", (0.0, 0.0), 0.1),
        ("processor", (0.5, 0.0), 0.2),
        ("processor", (5.0, 1.0), 0.5),
        ("wall", (0.0, 0.0), 0.1),
        ("wall", (1.0, 0.5), 0.4),
        ("wall", (3.0, 0.0), 2.3),
    ],
)
def test_the_band_is_as_wide_as_the_machine_was_busy(
    benchmarks: SimpleNamespace, clock: str, loads: tuple[float, ...], expected: float
) -> None:
    assert benchmarks.run.band(clock, *loads) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ours", "theirs", "better", "verdict", "ratio"),
    [
        (111.0, 100.0, "less", "worse", 1.11),
        (109.0, 100.0, "less", "same", 1.09),
        (92.0, 100.0, "less", "same", 0.92),
        (90.0, 100.0, "less", "better", 0.9),
        (90.0, 100.0, "more", "worse", 0.9),
        (111.0, 100.0, "more", "better", 1.11),
        (0.0, 0.0, "less", "same", 1.0),
        (1.0, 0.0, "less", "worse", None),
        (0.0, 1.0, "less", "better", 0.0),
        (0.0, 1.0, "more", "worse", 0.0),
    ],
)
def test_a_number_is_judged_by_its_band_and_its_direction(
    benchmarks: SimpleNamespace,
    ours: float,
    theirs: float,
    better: str,
    verdict: str,
    ratio: float | None,
) -> None:
    (found,) = benchmarks.run.compare(
        [_row(ours, better=better, clock="processor")],
        [_row(theirs, better=better, clock="processor")],
        (0.0, 0.0),
    )
    assert found.verdict == verdict
    assert found.ratio == (None if ratio is None else pytest.approx(ratio))
    assert len(benchmarks.run.regressions([found])) == (verdict == "worse")


@given(value=st.floats(1e-9, 1e9), factor=st.floats(0.01, 100.0), load=st.floats(0.0, 20.0))
def test_two_runs_exchanged_are_judged_the_other_way_round(
    benchmarks: SimpleNamespace, value: float, factor: float, load: float
) -> None:
    other = {"worse": "better", "better": "worse", "same": "same"}
    for clock in _CLOCKS:
        ours, theirs = _row(value * factor, clock=clock), _row(value, clock=clock)
        compare = benchmarks.run.compare
        (one,) = compare([ours], [theirs], (load, 0.0))
        (two,) = compare([theirs], [ours], (0.0, load))
        assert two.verdict == other[one.verdict]


def test_another_unit_or_clock_is_another_number_and_missing_ones_are_named(
    benchmarks: SimpleNamespace,
) -> None:
    compare = benchmarks.run.compare
    ours = [_row(1.0, "a"), _row(1.0, "b", unit="s"), _row(1.0, "c", clock="wall")]
    theirs = [_row(1.0, "b"), _row(1.0, "c"), _row(1.0, "d")]
    assert [(one.name, one.verdict) for one in compare(ours, theirs, (0.0, 0.0))] == [
        *(("a", "new"), ("b", "new"), ("c", "new"), ("d", "gone")),
    ]


def test_rows_are_written_where_a_file_is_named(
    benchmarks: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(benchmarks.shared.FILE, raising=False)
    benchmarks.shared.record("a", 1, "ms", clock="wall")
    file = tmp_path / "rows.jsonl"
    monkeypatch.setenv(benchmarks.shared.FILE, str(file))
    benchmarks.shared.record("a", 1, "ms", clock="wall")
    benchmarks.shared.record("b", 2.5, "", better="more", clock="none")
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        *(_row(1.0, clock="wall"), _row(2.5, "b", "", "more")),
    ]


def _run(
    benchmarks: SimpleNamespace,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    *options: str,
    load_a_core: float = 0.1,
) -> int:
    """``make bench`` with one benchmark, a script that writes down ``value``."""
    script = folder / "one.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        f"from shared import record; record('a', {value}, 'ms', clock='none')\n"
        f"sys.exit({value} < 0)\n"
    )
    run = benchmarks.run
    monkeypatch.setattr(run, "load_a_core", lambda _: load_a_core)
    monkeypatch.setattr(run, "HERE", folder)
    monkeypatch.setattr(run, "BASELINES", folder / "baselines")
    monkeypatch.setattr(run, "BENCHMARKS", {"one": (("one.py",), False), "long": (("x",), True)})
    out = str(folder / "out.json")
    monkeypatch.setattr(sys, "argv", ["run.py", "--kind", "test", "--out", out, *options])
    return int(run.main())


def test_a_regression_stands_out_and_fails_where_asked(
    benchmarks: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def ran(value: float, *options: str) -> tuple[int, str]:
        code = _run(benchmarks, tmp_path, monkeypatch, value, *options)
        return code, capfd.readouterr().out

    code, said = ran(2.0, "--fail")
    assert (code, "no baseline of this kind" in said) == (0, True)
    assert "not run: long" in said
    assert ran(2.0, "--store")[0] == 0
    assert "| one | a | 2 | 2 | ms | 1.000 |" in ran(2.0)[1]
    code, said = ran(3.0)
    assert (code, "!! worse: one, a: 3 ms, stored 2" in said) == (0, True)
    assert ran(3.0, "--fail")[0] == 1
    # A benchmark that fails is never stored, and always told.
    code, said = ran(-1.0, "--store")
    assert (code, "!! failed: one" in said) == (1, True)
    stored = json.loads((tmp_path / "baselines" / "test.json").read_text())
    assert [row["value"] for row in stored["benchmarks"]["one"]["rows"]] == [2.0]
    with pytest.raises(SystemExit):
        ran(1.0, "--only", "nope")


def test_what_a_busy_machine_measured_is_not_stored(
    benchmarks: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert _run(benchmarks, tmp_path, monkeypatch, 2.0, "--store", load_a_core=1.5) == 0
    assert "not stored: one, as the load was" in capfd.readouterr().out
    assert not (tmp_path / "baselines").exists()
    assert _run(benchmarks, tmp_path, monkeypatch, 2.0, "--store", load_a_core=0.9) == 0
    assert "stored: " in capfd.readouterr().out
    assert (tmp_path / "baselines" / "test.json").is_file()


def test_every_stored_run_is_of_a_known_benchmark(benchmarks: SimpleNamespace) -> None:
    for path in sorted(benchmarks.run.BASELINES.glob("*.json")):
        stored = benchmarks.run.read_baseline(path)
        assert stored["machine"]
        assert set(stored["benchmarks"]) <= set(benchmarks.run.BENCHMARKS)
        for one in stored["benchmarks"].values():
            names = [row["name"] for row in one["rows"]]
            assert names
            assert len(set(names)) == len(names), "each name once"


def test_every_benchmark_is_there(benchmarks: SimpleNamespace) -> None:
    for (script, *_), _ in benchmarks.run.BENCHMARKS.values():
        source = (ROOT / "benchmarks" / script).read_text()
        assert "record(" in source, script


#: Runs every script but its main part, each with the folders that Python searches for
#: it: that of the script and the installed packages.
_IMPORTED = """
import runpy, sys
installed = sys.path[1:]
for script in sys.argv[1:]:
    before = set(sys.modules)
    sys.path[:] = [script.rpartition("/")[0], *installed]
    runpy.run_path(script, run_name="script")
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("batches", "tests", "training", "workflow"):
            del sys.modules[name]
    print(script)
"""


@pytest.mark.system
def test_every_script_finds_its_modules_in_any_folder(tmp_path: Path) -> None:
    files = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("scripts/*.py")]
    scripts = sorted(str(file) for file in files if '__name__ == "__main__"' in file.read_text())
    command = [sys.executable, "-c", _IMPORTED, *scripts]
    environment = {"PATH": "", "HOME": str(tmp_path)}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == scripts, ran.stderr
