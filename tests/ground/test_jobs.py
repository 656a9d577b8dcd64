"""Records of jobs and the crate of a run: complete, with true digests, without names of
places.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from rocrate.rocrate import ROCrate

from railx.io import write_json
from railx.provenance import digest_of, job_record
from railx.provenance.crate import run_crate


def record(folder: Path, stage: str, item: str = "", **changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "stage": stage,
        "item": item,
        "code": "0123456789abcdef",
        "packages": {"numpy": "2.4.6"},
        "settings": {"m": 2},
        "inputs": [],
        "outputs": [],
        "started_utc": "2026-01-02T03:04:05+00:00",
        "load_before": 0.25,
        "repository": folder,
    }
    return job_record(**(given | changed))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The records of two jobs in results/tiny; the second read what the first wrote."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results/tiny")
    (folder / "topology").mkdir(parents=True)
    for name in ("topology/graph.parquet", "report.html", "config.json", "Snakefile"):
        (folder / name).write_text(name)
    (tmp_path / "numbers.csv").write_text("id,value\n")
    graph, report = folder / "topology/graph.parquet", folder / "report.html"
    return {
        "provenance/topology/ring.json": record(tmp_path, "topology", "ring", outputs=[graph]),
        "provenance/report.json": record(
            tmp_path,
            "report",
            inputs=[graph, Path("numbers.csv")],
            outputs=[report, folder / "config.json"],
        ),
    }


def crate_of(records: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return run_crate(
        experiment="tiny",
        folder="results/tiny",
        workflow="Snakefile",
        config="config.json",
        report="report.html",
        records=records,
        stages={"topology": "build a topology", "report": "the page"},
    )


def test_a_record_has_the_digests_of_the_files_themselves(tmp_path: Path) -> None:
    table = tmp_path / "table.parquet"
    table.write_bytes(b"rows")
    (tmp_path / "requirements.lock").write_text("numpy==2.4.6\n")
    found = record(tmp_path, "metrics", outputs=[table])
    assert found["outputs"] == {"table.parquet": hashlib.sha256(b"rows").hexdigest()}
    assert found["lock"] == hashlib.sha256(b"numpy==2.4.6\n").hexdigest()
    assert found["load"]["before"] == 0.25
    assert str(tmp_path) not in json.dumps(found)
    assert record(tmp_path, "metrics", settings={"m": 3})["config"] != found["config"]
    assert record(tmp_path, "metrics", settings={"m": 2})["config"] == found["config"]


def test_a_folder_counts_by_the_names_and_contents_of_its_files(tmp_path: Path) -> None:
    for name, text in (("a", "1"), ("b", "2")):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "file").write_text(text)
    before = digest_of(tmp_path / "texts")
    assert digest_of(tmp_path / "texts") == before
    (tmp_path / "texts/b/file").write_text("3")
    changed = digest_of(tmp_path / "texts")
    (tmp_path / "texts/b/file").rename(tmp_path / "texts/b/other")
    assert len({before, changed, digest_of(tmp_path / "texts")}) == 3


def test_the_crate_reads_back_with_every_file_and_job(
    run: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "results/tiny"
    for path, one in run.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_json(folder / path, one)
    write_json(folder / "ro-crate-metadata.json", crate_of(run))
    crate = ROCrate(folder)
    assert crate.mainEntity.id == "Snakefile"
    graph = crate.dereference("topology/graph.parquet")
    assert graph["sha256"] == hashlib.sha256(b"topology/graph.parquet").hexdigest()
    report = crate.dereference("#job-report")
    assert {entity.id for entity in report["object"]} == {
        "topology/graph.parquet",
        "#file-numbers.csv",
    }
    assert {entity.id for entity in report["result"]} == {"report.html", "config.json"}
    assert report["subjectOf"].id == "provenance/report.json"
    assert crate.dereference("#job-topology/ring")["result"] == [graph]
    needs = report["instrument"]["softwareRequirements"]
    assert [(need["name"], need["softwareVersion"]) for need in needs] == [("numpy", "2.4.6")]
    profiles = {entity.id for entity in crate.root_dataset["conformsTo"]}
    assert "https://w3id.org/ro/wfrun/workflow/0.5" in profiles
    named = {entity.id for entity in crate.root_dataset["hasPart"]}
    assert {"topology/graph.parquet", "report.html", "provenance/report.json"} <= named


def test_equal_records_give_equal_crates_and_none_is_refused(
    run: dict[str, dict[str, Any]],
) -> None:
    assert json.dumps(crate_of(run)) == json.dumps(crate_of(dict(reversed(run.items()))))
    with pytest.raises(ValueError, match=r"^records: got none; allowed: the record of one job"):
        crate_of({})
