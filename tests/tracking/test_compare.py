"""Two invocations compared: config and code, results made anew, numbers beyond their
intervals, verdicts that flipped; from records made by hand and from a real store.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.errors import UserError
from railx.tracking.compare import compare_invocations, list_invocations, only_changed
from railx.tracking.comparison_page import changed_lines, comparison_lines, write_comparison
from railx.tracking.results import StageResult
from railx.tracking.runs import log_runs
from tests.builders import checked
from tests.commands import python
from tests.tracking.conftest import Tracked, verdict
from workflow.cli import main


@pytest.fixture(scope="module")
def comparison(tracked: Tracked) -> dict[str, Any]:
    return compare_invocations(tracked.folder, "previous", "latest", "quick")


def test_invocations_are_listed_oldest_first(tracked: Tracked) -> None:
    listed = list_invocations(tracked.folder)
    assert [(row["invocation"], row["experiment"], row["runs"], row["new"]) for row in listed] == [
        ("run-1", "quick", 5, 5),
        ("run-2", "quick", 5, 0),
        ("run-3", "quick", 5, 3),
    ]


def test_an_invocation_against_its_copy_shows_no_change(tracked: Tracked) -> None:
    same = compare_invocations(tracked.folder, "run-1", "run-2")
    assert {row["state"] for row in same["stages"]} == {"same"}
    assert len(same["stages"]) == 5
    assert only_changed(same) | {"a": None, "b": None} == {
        "schema": "railx.comparison/1",
        **dict.fromkeys(("a", "b")),
        **{key: [] for key in ("config", "code", "packages", "stages", "numbers", "verdicts")},
    }


def test_config_code_and_packages_stand_with_both_values(comparison: dict[str, Any]) -> None:
    assert comparison["config"] == [
        {"key": "runs.quick.steps", "a": 3, "b": 5},
        {"key": "tenancy", "a": None, "b": "small"},
    ]
    assert comparison["code"] == [
        {"module": "training.run", "a": "m1", "b": "m2", "stages": ["training"]}
    ]
    assert comparison["packages"] == [{"package": "numpy", "a": "2.0", "b": "2.1"}]
    assert comparison["a"]["invocation"] == "run-2"
    assert comparison["b"]["commit"] == "abc"


def test_results_made_anew_say_why(comparison: dict[str, Any]) -> None:
    states = {row["name"]: (row["state"], row["because"]) for row in comparison["stages"]
              if row["stage"] != "packets"}  # fmt: skip
    assert states == {
        "hyperx": ("reran", ["packages"]),
        "quick": ("reran", ["code", "packages"]),
        "claims": ("reran", ["made again"]),
        "cost": ("same", []),
    }
    (training,) = (row for row in comparison["stages"] if row["stage"] == "training")
    assert (training["a_seconds"], training["b_seconds"]) == (12.5, 12.5)


def test_numbers_move_beyond_their_intervals_only(comparison: dict[str, Any]) -> None:
    rows = {row["metric"]: row for row in comparison["numbers"]}
    bound = rows["all to all, GB/s.bound"]
    assert (bound["a"], bound["b"], bound["moved"]) == (49.9, 60.0, True)
    assert bound["ratio"] == pytest.approx(60.0 / 49.9)
    time = rows["on_demand_50ms.iteration_ms"]
    assert (time["a_low"], time["a_high"], time["b_low"], time["moved"]) == (179, 181, 239, True)
    assert not rows["chips"]["moved"]
    assert not rows["sweep.latency@0.5"]["moved"]
    assert "job.seconds" not in rows


@pytest.mark.parametrize(
    ("a", "a_ends", "b", "b_ends", "moved"),
    [
        (10.0, (9.0, 11.0), 12.0, (11.0, 13.0), False),
        (10.0, (9.0, 11.0), 12.0, (11.1, 13.0), True),
        (12.0, (11.1, 13.0), 10.0, (9.0, 11.0), True),
        (10.0, (9.0, 11.0), 10.9, None, False),
        (10.0, None, 10.9, (10.1, 12.0), True),
        (10.0, None, 10.0 * (1 + 1e-13), None, False),
        (10.0, None, 10.0 * (1 + 1e-11), None, True),
        (0.0, None, 0.0, None, False),
        (10.0, (9.0, 11.0), None, None, True),
    ],
)
def test_what_counts_as_moved(
    a: float,
    a_ends: tuple[float, float] | None,
    b: float | None,
    b_ends: tuple[float, float] | None,
    moved: bool,
    tmp_path: Path,
) -> None:
    settings = replace(checked("tracking", "default"), wandb="disabled")
    for invocation, value, ends in (("run-1", a, a_ends), ("run-2", b, b_ends)):
        result = StageResult(
            "network",
            "quick",
            f"{value} {ends}",
            {},
            {"ms": value, "ms_low": 1.0, "other_low": 2.0},
            intervals={} if ends is None else {"ms": ends},
        )
        # Without MLflow's slow start: W&B is off too, so the record is written alone.
        write_record(tmp_path, settings, result, invocation)
    rows = {row["metric"]: row for row in compare_invocations(tmp_path)["numbers"]}
    assert rows["ms"]["moved"] is moved
    # The ends of an interval are no numbers of their own; other names stay.
    assert ("ms_low" in rows) is (a_ends is None and b_ends is None)
    assert "other_low" in rows


@pytest.mark.parametrize(
    ("stage", "fidelity", "moved"),
    [
        ("network", "analytic", True),
        ("training", None, False),
        ("network", "measured_cpu", False),
        ("steps", "replay", True),
    ],
)
def test_a_time_of_one_run_says_nothing_alone(
    stage: str, fidelity: str | None, moved: bool, tmp_path: Path
) -> None:
    settings = replace(checked("tracking", "default"), wandb="disabled")
    for invocation, value in (("run-1", 10.0), ("run-2", 20.0)):
        metrics = {"ms": value, "repeated_ms": value}
        intervals = {"repeated_ms": (value - 1, value + 1)}
        result = StageResult(
            stage, "quick", str(value), {}, metrics, fidelity=fidelity, intervals=intervals
        )
        write_record(tmp_path, settings, result, invocation)
    rows = {row["metric"]: row["moved"] for row in compare_invocations(tmp_path)["numbers"]}
    assert rows == {"ms": moved, "repeated_ms": True}


@pytest.mark.parametrize(
    ("old", "new", "others", "flipped"),
    [
        ("partly", "consistent", "partly", False),
        ("partly", "reproduced", "partly", True),
        ("not attempted", "not here", "partly", False),
        ("not attempted", "not reproduced", "partly", True),
        # In the older words nothing was consistent.
        ("reproduced", "consistent", "not attempted", False),
        ("reproduced", "consistent", "reproduced", True),
    ],
)
def test_verdicts_in_older_words_flip_where_no_word_of_today_fits(
    old: str, new: str, others: str, flipped: bool, tmp_path: Path
) -> None:
    settings = replace(checked("tracking", "default"), wandb="disabled")
    for invocation, word, other in (("run-1", old, others), ("run-2", new, "not here")):
        rows = (verdict("asked", word, 1.0), verdict("other", other, 1.0))
        result = StageResult("evidence", "claims", word, {}, {}, verdicts=rows)
        write_record(tmp_path, settings, result, invocation)
    asked = next(
        row for row in compare_invocations(tmp_path)["verdicts"] if row["claim"] == "asked"
    )
    assert asked["flipped"] is flipped


def test_what_moved_fits_on_a_screen(tmp_path: Path) -> None:
    settings = replace(checked("tracking", "default"), wandb="disabled")
    for invocation, factor, word in (("run-1", 1.0, "reproduced"), ("run-2", 1.01, "undecided")):
        results = [
            StageResult(
                "network", "torus", f"{factor}", {}, {f"number_{i}": factor**i for i in range(500)},
                code={f"railx.network.module_{i}": word for i in range(60)},
                verdicts=tuple(verdict(f"claim_{i}", word, 1.0) for i in range(100)),
            ),
            StageResult("training", "t", f"{factor}", {}, {f"ms_{i}": factor for i in range(300)}),
        ]  # fmt: skip
        write_record(tmp_path, settings, results, invocation)
    lines = list(changed_lines(compare_invocations(tmp_path)))
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 160
    text = "\n".join(lines)
    for words in (
        "Verdicts that flipped: 100",
        "Numbers that moved: 499",
        "and 489 more",
        "apart: 300 times of one run",
        "Modules that changed: railx.network 60",
    ):
        assert words in text
    # The largest move comes first.
    assert text.index("number_499 ") < text.index("number_490 ")
    assert "number_3 " not in text


def write_record(
    folder: Path, settings: Any, result: StageResult | list[StageResult], invocation: str
) -> None:
    """An invocation as W&B's folder holds it, without W&B."""
    from railx.io import write_json
    from railx.tracking.ledger import Ledger
    from railx.tracking.results import RECORD, Invocation, invocation_record

    results = result if isinstance(result, list) else [result]
    group = Invocation("quick", invocation, f"2026-01-01T00:00:0{invocation[-1]}")
    write_json(
        folder / "wandb" / invocation / "files" / RECORD, invocation_record(group, results, {})
    )
    Ledger(folder).add(
        {"run": invocation, "experiment": "quick", "key": "", "folder": invocation,
         "stage": "invocation", "name": invocation, "invocation": invocation}
    )  # fmt: skip


def test_verdicts_flip_with_both_values(comparison: dict[str, Any]) -> None:
    rows = {row["claim"]: row for row in comparison["verdicts"]}
    assert rows["faster"] == {
        "claim": "faster",
        "paper": "railx",
        "a": "reproduced",
        "b": "not reproduced",
        "a_ours": "2.1 times",
        "b_ours": "1.2 times",
        "published": "2 times",
        "flipped": True,
        "reason": "ours is 1.2",
    }
    assert (rows["larger"]["a"], rows["larger"]["flipped"]) == (None, True)


def test_without_mlflow_the_records_of_wandb_are_read(tmp_path: Path) -> None:
    settings = replace(checked("tracking", "default"), mlflow=False)
    for invocation, word in (("run-1", "reproduced"), ("run-2", "undecided")):
        result = StageResult(
            "evidence", "claims", word, {}, {}, verdicts=(verdict("faster", word, float("nan")),)
        )
        log_runs([result], settings, folder=tmp_path, experiment="quick", invocation=invocation)
    assert not (tmp_path / "mlflow.db").exists()
    (row,) = compare_invocations(tmp_path)["verdicts"]
    assert (row["a"], row["b"]) == ("reproduced", "undecided")
    # They may be fewer than those of a store that is there and cannot be read.
    (tmp_path / "mlflow.db").write_text("garbage\n")
    with pytest.raises(ValueError, match=r"/mlflow.db: a file that cannot be read"):
        compare_invocations(tmp_path)


def test_unknown_invocations_and_empty_folders_are_named(tracked: Tracked, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="invocation: got 'run-9'; allowed: run-1, run-2, run-3, latest, previous"
    ):
        compare_invocations(tracked.folder, "run-1", "run-9")
    with pytest.raises(ValueError, match="experiment: got 'paper'; allowed: quick"):
        list_invocations(tracked.folder, "paper")
    with pytest.raises(ValueError, match=r"mlflow.db: no tracked runs yet"):
        list_invocations(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("garbage\n")
    with pytest.raises(ValueError, match=r"/mlflow.db: a file that cannot be read \(file is not a"):
        list_invocations(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("run-2/files/invocation.json", b"[]", "schema is 'list'; allowed: railx.invocation/1"),
        ("run-2/files/invocation.json", b"\xff", "byte 0 is no text; allowed: JSON"),
        ("ledger.jsonl", b"{}\n\xff", "byte 3 is no text; allowed: lines of JSON"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, file: str, content: bytes, said: str) -> None:
    for invocation in ("run-1", "run-2"):
        write_record(tmp_path, None, [], invocation)
    assert compare_invocations(tmp_path)["verdicts"] == []
    (tmp_path / "wandb" / file).write_bytes(content)
    with pytest.raises(UserError, match=f"{file}: {re.escape(said)}"):
        compare_invocations(tmp_path)


def test_a_store_that_is_asked_for_is_not_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the records of W&B beside it, nor a new one."""
    for invocation in ("run-1", "run-2"):
        write_record(tmp_path, None, [], invocation)
    own = ("compare", "--results", str(tmp_path), "--store")
    for store, said in (
        ("", "--store: got ''; allowed: the address of an MLflow store"),
        (f"sqlite:///{tmp_path}/mine.db", "mine.db: no tracked runs yet; allowed: "),
    ):
        assert main([*own, store]) == 2
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["wandb"]


@pytest.mark.parametrize("server", ["postgresql://me:secret@{}/none", "http://me:secret@{}"])
def test_a_server_that_is_not_there_is_said_without_its_password(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MLflow would ask again for 100 s.
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ValueError, match=r"^--store: a database that cannot be read \(") as refused:
        list_invocations(tmp_path, store=server.format("127.0.0.1:1"))
    assert "secret" not in str(refused.value)


def test_the_lines_and_the_page_say_what_changed(
    comparison: dict[str, Any], tmp_path: Path
) -> None:
    lines = "\n".join(comparison_lines(only_changed(comparison)))
    for words in ("runs.quick.steps  3  5", "training.run  m1  m2", "Verdicts: 2", "60"):
        assert " ".join(words.split()) in " ".join(lines.split())
    page = tmp_path / "compare.html"
    write_comparison(page, comparison)
    written = page.read_text(encoding="utf-8")
    for words in ("Verdicts that flipped: 2", "<td>not reproduced</td>", "All numbers ("):
        assert words in written
    assert "http" not in written
    hostile = {**comparison, "config": [{"key": "<script>", "a": None, "b": "&"}]}
    write_comparison(page, hostile)
    assert "&lt;script&gt;" in page.read_text(encoding="utf-8")


@pytest.mark.system
def test_the_command_prints_and_writes(tracked: Tracked, tmp_path: Path) -> None:
    command = ["-m", "workflow.cli", "compare", "--results", tracked.folder]
    done = python(*command, "--changed", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == only_changed(compare_invocations(tracked.folder))
    page = tmp_path / "compare.html"
    done = python(*command, "run-1", "run-2", "--html", page)
    assert done.stdout == f"written: {page}\n"
    assert "Numbers that moved: none" in page.read_text(encoding="utf-8")
    wrong = python(*command, "run-1", "run-9")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: invocation: got 'run-9'; allowed: run-1")
