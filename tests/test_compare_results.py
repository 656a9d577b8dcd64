"""Two runs are told apart by their results, not by measured times or changed names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import ROOT, python

pytestmark = pytest.mark.system

SCRIPT = ROOT / "scripts/compare_results.py"
ROWS = {
    "plan": ["flexsp_wikipedia", "static_wikipedia"],
    "ms": [1.5, 2.5],
    "fidelity": ["analytic", "emulated"],
    "planning_cpu_s": [1.0, 1.0],
}
NEW_NAMES = ["flexsp_7b_192k_wikipedia", "static_7b_192k_wikipedia"]


def write(folder: Path, name: str, changes: dict[str, list[object]]) -> Path:
    path = folder / f"plan/{name}/groups.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({**ROWS, **changes}), path)
    return folder


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({}, 0),
        ({"ms": [1.5, 99.0]}, 0),  # emulated: another time in every run
        ({"planning_cpu_s": [7.0, 7.0]}, 0),
        ({"plan": NEW_NAMES}, 0),
        ({"ms": [1.5000000000000002, 2.5]}, 1),
        ({"plan": ["flexsp_7b_192k_github", "static_wikipedia"]}, 1),
        ({"fidelity": ["flow", "emulated"]}, 1),
        ({"more": [1, 2]}, 1),
    ],
)
def test_results_differ_by_what_came_out(
    tmp_path: Path, changes: dict[str, list[object]], differences: int
) -> None:
    before = write(tmp_path / "before", "flexsp_wikipedia", {})
    after = write(tmp_path / "after", "flexsp_7b_192k_wikipedia", changes)
    result = python(SCRIPT, before, after)
    assert f"1 files with 2 rows compared, {differences} differences" in result.stdout
    assert result.returncode == (1 if differences else 0)


def test_a_missing_file_is_a_difference(tmp_path: Path) -> None:
    before = write(tmp_path / "before", "flexsp_stdlib", {})
    (tmp_path / "after").mkdir()
    result = python(SCRIPT, before, tmp_path / "after")
    assert result.returncode == 1
    assert "plan/flexsp_stdlib/groups.parquet: only before" in result.stdout
