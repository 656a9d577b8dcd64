"""``railx findings``: the pages in git have the numbers that stand in git."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from railx.evidence.findings import references
from railx.io import write_table
from tests.builders import ROOT
from workflow.cli import main
from workflow.commands.findings import findings_sources

PAGES = [ROOT / "docs/findings.md", *sorted((ROOT / "docs/findings").glob("*.md"))]
NAMED = [name for page in PAGES for name in references(page.read_text(encoding="utf-8"))]


def test_the_pages_have_the_recorded_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Where this fails, `make findings` writes the pages anew."""
    assert main(["findings"]) == 0, capsys.readouterr().err


def test_every_entry_is_named_by_a_page() -> None:
    tables = findings_sources().tables
    used = set(NAMED)
    for entry in tables.values():
        used |= {reference.split()[0] for reference in entry.numbers}
        used |= set(re.findall(r"\bfindings\.(\w+)", entry.query or ""))
    assert set(tables) <= used
    assert len(NAMED) == len(set(NAMED))


def test_a_run_is_compared_with_what_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = findings_sources().tables
    words = [reference.split() for name in NAMED for reference in tables[name].numbers]
    quick = {
        claim
        for experiment, claim, *_ in filter(lambda w: len(w) > 1, words)
        if experiment == "quick"
    }
    recorded = findings_sources().expected["quick"]
    values = {claim: recorded[claim].ours for claim in sorted(quick)}
    assert values
    path = tmp_path / "quick/evidence/claims.parquet"
    path.parent.mkdir(parents=True)

    def run(changed: float) -> int:
        first, *_ = values
        ours = [v if c != first else v * changed for c, v in values.items()]  # type: ignore[operator]
        write_table(path, pa.table({"claim": list(values), "ours": ours}))
        return main(["findings", "--compare", "quick", "--results", str(tmp_path)])

    assert run(1.0) == 0
    assert run(1.01) == 1
    assert next(iter(values)) in capsys.readouterr().err


def test_all_numbers_name_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each bullet, paragraph and table with numbers names its entry."""
    assert main(["findings", "--open"]) == 0, capsys.readouterr().out
    (tmp_path / "page.md").write_text("It is 3.\n", encoding="utf-8")
    monkeypatch.setattr("workflow.commands.findings._PAGES", tmp_path)
    assert main(["findings", "--open"]) == 1
    assert "page.md: It is 3." in capsys.readouterr().out
