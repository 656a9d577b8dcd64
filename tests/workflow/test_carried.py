"""Which results copied into a folder are up to date, by the records beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railx.provenance import job_record
from workflow.carried import is_current

CODE = {"digest": "0123456789abcdef", "packages": {"numpy": "2.4.6"}}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A job that read a file and a folder, as a rule describes it."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    for name in ("numbers.csv", "texts/a.txt", "table.parquet"):
        Path(name).write_text(name)
    return {
        "stage": "corpus",
        "item": "folder",
        "code": CODE,
        "settings": {"n": 2, "names": ["a", "b"]},
        "inputs": ["numbers.csv", "texts"],
        "outputs": ["table.parquet"],
    }


@pytest.fixture
def record(job: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return job_record(
        **(job | {"code": CODE["digest"], "packages": CODE["packages"]}),
        started_utc="2026-01-01T00:00:00+00:00",
        load_before=None,
        repository=tmp_path,
    )


def test_the_same_job_is_current(job: dict[str, Any], record: dict[str, Any]) -> None:
    assert is_current(record, **job)
    # Sequences of a config are lists or tuples.
    assert is_current(record, **(job | {"settings": {"names": ("a", "b"), "n": 2}}))


@pytest.mark.parametrize(
    "changed",
    [
        {"stage": "plan"},
        {"item": "stdlib"},
        {"code": CODE | {"digest": "0123456789abcdee"}},
        {"code": CODE | {"packages": {"numpy": "2.5"}}},
        {"settings": {"n": 3, "names": ["a", "b"]}},
        {"inputs": ["numbers.csv"]},
        {"outputs": []},
    ],
)
def test_another_job_is_not(
    job: dict[str, Any], record: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert not is_current(record, **(job | changed))


@pytest.mark.parametrize("file", ["numbers.csv", "texts/a.txt", "texts/b.txt", "table.parquet"])
def test_a_changed_file_is_noticed(job: dict[str, Any], record: dict[str, Any], file: str) -> None:
    Path(file).write_text("edited")
    assert not is_current(record, **job)


def test_a_record_of_another_schema_counts_as_none(
    job: dict[str, Any], record: dict[str, Any]
) -> None:
    assert not is_current(record | {"schema": "railx.provenance/1"}, **job)
    assert not is_current({}, **job)
