"""``railx findings``: the pages in git have the numbers that stand in git."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from railx.evidence.findings import references
from railx.io import write_table
from tests.builders import ROOT
from workflow.cli import main
from workflow.commands.findings import findings_sources

PAGES = sorted((ROOT / "docs/findings").glob("*.md"))


def test_the_pages_have_the_recorded_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Where this fails, `make findings` writes the pages anew."""
    assert main(["findings"]) == 0, capsys.readouterr().err


def test_every_table_is_named_by_a_page() -> None:
    named = set()
    for page in PAGES:
        for shown, reference in references(page.read_text(encoding="utf-8")):
            named.add(reference.split()[0] if shown != "table" else reference)
    assert set(findings_sources().tables) <= named


def test_a_run_is_compared_with_what_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {
        reference.split()[1]
        for page in PAGES
        for shown, reference in references(page.read_text(encoding="utf-8"))
        if shown != "table" and reference.split()[0] == "quick"
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


def test_open_blocks_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "--open"]) == 0
    assert "name no source" in capsys.readouterr().out.splitlines()[-1]
