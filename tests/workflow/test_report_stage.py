"""The report as a stage: which files it reads, other experiments' among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workflow.experiment import checked_experiment
from workflow.stages import STAGES, inputs_of


@pytest.fixture(scope="module")
def experiment() -> dict[str, Any]:
    return checked_experiment(["experiment=quick"])


def test_verdicts_of_other_experiments_are_read_where_they_are_there(
    experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resources" / "published").mkdir(parents=True)
    (tmp_path / "railx" / "report" / "templates").mkdir(parents=True)
    assert inputs_of(STAGES["report"], experiment)["others"] == []
    for name in ("quick", "paper", "recorded/gpus/large", "broken"):
        (tmp_path / "results" / name).mkdir(parents=True)
    for name in ("quick", "paper", "recorded/gpus/large"):
        claims = tmp_path / "results" / name / "evidence" / "claims.parquet"
        claims.parent.mkdir()
        claims.touch()
    (tmp_path / "results" / "paper" / "provenance.json").touch()
    read = inputs_of(STAGES["report"], experiment)
    assert read["others"] == [
        Path("results/paper/evidence/claims.parquet"),
        Path("results/recorded/gpus/large/evidence/claims.parquet"),
    ]
    assert read["others_provenance"] == [Path("results/paper/provenance.json")]
