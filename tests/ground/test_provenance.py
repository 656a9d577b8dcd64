"""Provenance, records of jobs and the crate of a run: complete, plain JSON, with true
digests, without names of people, machines or folders.
"""

from __future__ import annotations

import copy
import getpass
import hashlib
import json
import platform
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocrate.rocrate import ROCrate

from railx import provenance
from railx.io import write_json
from railx.provenance import collect_provenance, digest_of, job_record
from railx.provenance.crate import run_crate
from tests.commands import python
from tests.ground.crates import broken_rules


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_it_is_plain_data_with_versions_and_hardware() -> None:
    found = collect_provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["schema"] == "railx.provenance/1"
    assert found["packages"]["numpy"]
    assert found["cores"] >= 1
    assert found["memory_gb"] > 0
    assert found["cpu"]
    assert found["python"].endswith(platform.python_version())


def test_it_names_no_machine_person_or_folder() -> None:
    text = json.dumps(collect_provenance())
    words = {platform.node(), str(Path.home()), str(Path.cwd())}
    assert not [word for word in words if len(word) > 3 and word in text]
    assert f'"{getpass.getuser()}"' not in text


def test_commit_and_dirty_follow_the_repository(tmp_path: Path) -> None:
    assert collect_provenance(tmp_path)["commit"] is None
    git(tmp_path, "init", "-q")
    assert (collect_provenance(tmp_path)["commit"], collect_provenance(tmp_path)["dirty"]) == (
        None,
        None,
    )
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    clean = collect_provenance(tmp_path)
    assert (clean["commit"], clean["dirty"]) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("2")
    assert collect_provenance(tmp_path)["dirty"] is True
    inside = tmp_path / "inside"
    inside.mkdir()
    assert collect_provenance(inside)["commit"] is None


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 550.1'\necho 'Odd GPU, [N/A], '\n"
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert provenance.collect_provenance(tmp_path)["gpus"] == [
        {"name": "NVIDIA H100 80GB HBM3", "memory_gb": 85.5, "driver": "550.1"},
        {"name": "Odd GPU", "memory_gb": None, "driver": None},
    ]


def test_it_needs_the_standard_library_alone() -> None:
    new = "{name.split('.')[0] for name in set(sys.modules) - before}"
    code = f"import sys; before = set(sys.modules); import railx.provenance; print(*{new})"
    done = python("-S", "-c", code)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= set(sys.stdlib_module_names) | {"railx"}


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


@pytest.fixture
def crate(run: dict[str, dict[str, Any]], tmp_path: Path) -> dict[str, Any]:
    """The metadata in results/tiny, beside the files that they list."""
    for path, one in run.items():
        file = tmp_path / "results/tiny" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, one | {"commit": "0123456"})
    metadata = crate_of({path: one | {"commit": "0123456"} for path, one in run.items()})
    write_json(tmp_path / "results/tiny/ro-crate-metadata.json", metadata)
    return metadata


def test_the_crate_keeps_the_rules_of_its_profiles(crate: dict[str, Any], tmp_path: Path) -> None:
    assert broken_rules(crate, tmp_path / "results/tiny") == []


def _without(term: str, identifier: str) -> Callable[[dict[str, Any]], Any]:
    return lambda crate: _entity(crate, identifier).pop(term)


def _with(term: str, value: Any, identifier: str) -> Callable[[dict[str, Any]], Any]:
    return lambda crate: _entity(crate, identifier).update({term: value})


def _entity(crate: dict[str, Any], identifier: str) -> dict[str, Any]:
    (entity,) = (entity for entity in crate["@graph"] if entity["@id"] == identifier)
    assert isinstance(entity, dict)
    return entity


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda crate: crate["@context"].__setitem__(1, {}), "terms are defined by a context"),
        (_with("colour", "red", "report.html"), "terms are defined by a context"),
        (_with("about", {"@id": "#nothing"}, "report.html"), "entities are flat"),
        (_with("about", {"@id": "./", "name": "x"}, "report.html"), "entities are flat"),
        (lambda crate: crate["@graph"].append(crate["@graph"][-1]), "identifiers are unique"),
        (_without("conformsTo", "ro-crate-metadata.json"), "the descriptor"),
        (_without("license", "./"), "the root has"),
        (_with("datePublished", "yesterday", "./"), "the root has"),
        (_without("hasPart", "./"), "files are parts"),
        (_with("@id", "no.csv", "report.html"), "files are parts"),
        (_without("conformsTo", "./"), "the root names"),
        (_without("mainEntity", "./"), "the main workflow"),
        (_with("@type", ["File", "SoftwareSourceCode"], "Snakefile"), "the main workflow"),
        (_without("programmingLanguage", "Snakefile"), "the main workflow"),
        (_without("instrument", "#run"), "the main workflow"),
        (_without("instrument", "#job-report"), "actions have"),
        (_with("actionStatus", "done", "#job-report"), "actions have"),
        (_without("startTime", "#run"), "actions have"),
        (_without("mentions", "./"), "actions have"),
    ],
)
def test_a_crate_that_breaks_a_rule_is_noticed(
    change: Callable[[dict[str, Any]], Any], rule: str, crate: dict[str, Any], tmp_path: Path
) -> None:
    changed = copy.deepcopy(crate)
    change(changed)
    assert [line for line in broken_rules(changed, tmp_path / "results/tiny") if rule in line]
