"""``railx summary``: what the last lines of ``make reproduce`` say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ROOT, write_result
from workflow.cli import main

pytestmark = pytest.mark.system

HEADER = (
    "published claims  reproduced  consistent  direction only  depends  undecided"
    "  not reproduced  not here  not testable  all"
)


def row(claim: str, paper: str, verdict: str, kind: str = "published") -> dict[str, Any]:
    return {
        "claim": claim,
        "kind": kind,
        "paper": paper,
        "verdict": verdict,
        "reason": f"why {claim}",
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        row("a", "railx", "reproduced"),
        row("b", "railx", "direction only"),
        row("c", "opus", "not reproduced"),
        row("d", "opus", "not here"),
        row("e", "opus", "undecided"),
        row("f", "opus", "not reproduced", kind="derived"),
    ]
    for name in ("quick", "mine"):
        write_result(tmp_path / name, "evidence.claims", rows)
    return tmp_path


def test_counts_what_did_not_hold_and_the_address(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (results / "quick" / "report.html").write_text("page")
    assert main(["summary", "--experiment", "quick", "--results", str(results)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "experiment quick"
    assert lines[2] == HEADER
    assert [line.split() for line in lines[3:6]] == [
        ["RailX", "1", "0", "1", "0", "0", "0", "0", "0", "2"],
        ["Opus", "0", "0", "0", "0", "1", "1", "1", "0", "3"],
        ["all", "1", "0", "1", "0", "1", "1", "1", "0", "5"],
    ]
    assert lines[7:] == [
        "not reproduced:",
        "  Opus, c: why c",
        "",
        "direction only:",
        "  RailX, b: why b",
        "",
        "undecided:",
        "  Opus, e: why e",
        "",
        f"page: {(results / 'quick' / 'report.html').as_uri()}",
    ]


def test_an_experiment_that_overrides_name_anew_is_found(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["summary", "--experiment", "quick", "--results", str(results)]
    assert main([*given, "--overrides", "name=mine seed=3"]) == 0
    assert capsys.readouterr().out.startswith("experiment mine\n")
    assert main([*given, "--overrides", " "]) == 0
    assert capsys.readouterr().out.startswith("experiment quick\n")


def test_what_is_not_made_yet_is_said_in_one_line(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", "--experiment", "quick", "--results", str(results)]) == 0
    assert capsys.readouterr().out.endswith("report.html is not made yet\n")
    assert main(["pdf", "--experiment", "quick", "--results", str(results)]) == 2
    said = "report.html: no such page; make it first: railx reproduce quick\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["quick"], "no verdicts yet; make them: railx reproduce quick\n"),
        (
            ["quick", "--overrides", "name=other seed=3"],
            "no verdicts yet; make them: railx reproduce quick name=other seed=3\n",
        ),
        (["mine"], "no verdicts yet; make them: railx reproduce EXPERIMENT name=mine\n"),
        (["none"], ""),
    ],
)
def test_what_makes_the_verdicts_is_said_where_there_are_none(
    results: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    if given != ["none"]:
        shutil.rmtree(results / given[0] / "evidence")
    command = ["summary", "--experiment", *given, "--results", str(results)]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    if given == ["none"]:
        assert error.startswith("error: --experiment: got 'none'; allowed: ")
        assert error.endswith(" in all)\n")
    else:
        assert error.endswith(said)


def test_make_draws_a_figure_of_the_name_that_overrides_set() -> None:
    given = ["FIGURE=cost", "EXPERIMENT=quick", "OVERRIDES=seed=3 name=mine"]
    for arguments, name in ((given, "mine"), (given[:2], "quick")):
        done = subprocess.run(
            ["make", "-n", "-o", ".venv/.ready", "figure", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f'"results/{name}/figure/cost.svg"' in done.stdout


def test_make_reproduce_ends_with_the_summary() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile[makefile.index("\nreproduce:") :].split("\n\n")[0].splitlines()
    summary = '@$(BIN)/railx summary --experiment "$(EXPERIMENT)" --overrides "$(OVERRIDES)"'
    assert recipe[-1].strip() == summary
