"""Code digests follow the imports of a stage and nothing else; which results copied
into a folder are up to date, by the records beside them.
"""

from __future__ import annotations

import ast
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.provenance import job_record
from tests.builders import ROOT
from workflow import digest
from workflow.carried import is_current
from workflow.digest import _code, _version, code_digest, code_modules, package_versions
from workflow.stages import STAGES


def test_only_what_is_imported_counts() -> None:
    modules = code_modules("railx.families")
    assert "railx.vocabulary.hamiltonian" in modules
    assert "railx.settings" in modules
    assert not any(
        name.startswith(("railx.planning", "railx.figures", "training")) for name in modules
    )


def test_packages_on_the_way_count_because_python_runs_them() -> None:
    assert {"railx", "railx.planning", "railx.planning.format.plan"} <= set(
        code_modules("railx.planning.format.plan")
    )


def test_digest_is_stable_and_differs_between_stages() -> None:
    assert code_digest("railx.families") == code_digest("railx.families")
    assert code_digest("railx.families") != code_digest("railx.workload")


def test_imports_are_found_where_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = digest._imports()
    (tmp_path / "file").touch()
    monkeypatch.setattr(digest.places, "cache", lambda name: tmp_path / "file" / name)
    digest._imports.cache_clear()  # type: ignore[attr-defined]
    assert digest._imports() == usual


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(ValueError, match=r"railx\.nothing"):
        code_digest("railx.nothing")


def test_packages_are_those_that_the_modules_import() -> None:
    assert "numba" in package_versions("workflow.stages.packets")
    assert "numba" not in package_versions("workflow.stages.corpus")
    assert "torch" in package_versions("workflow.stages.training", "training.run")
    assert package_versions("railx.settings") == {}


def test_every_package_is_found_under_the_name_it_is_installed_by() -> None:
    for name in STAGES:
        versions = package_versions(f"workflow.stages.{name}")
        assert "absent" not in versions.values(), (name, versions)


def test_a_changed_version_changes_the_stages_that_use_the_package_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def digests() -> dict[str, str]:
        for cached in (code_digest, package_versions, _version):
            cached.cache_clear()
        return {name: code_digest(f"workflow.stages.{name}") for name in STAGES}

    before, version = digests(), metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "99" if name == "numba" else version(name)
    )
    after = digests()
    monkeypatch.undo()
    assert digests() == before
    changed = {name for name in STAGES if before[name] != after[name]}
    assert changed == {
        *("network", "packets", "agreement", "bandwidth", "mapping", "switched", "tenancy"),
        *("underlay", "plan", "replay", "steps", "seeds", "validation", "design"),
        "arena",
    }


SOURCE = b'''"""A module."""

class Settings:
    """Settings."""

    width: int = 4
    """In lanes."""

def area(width, height=2.0):
    """Lanes times height."""
    return width * height
'''


@pytest.mark.parametrize(
    ("old", "new", "bare", "documented"),
    [
        (b"return width", b"# why\n    return width", False, False),
        (b"width * height", b"(\n        width\n        * height\n    )", False, False),
        (b"A module", b"Another module", False, True),
        (b"In lanes", b"In bits", False, True),
        (b"Lanes times height", b"An area", False, True),
        (b"int = 4", b"int = 5", True, True),
        (b"int = 4", b"int = 4.0", True, True),
        (b"int = 4", b"int = None", True, True),
        (b": int", b": float", True, True),
        (b"width * height", b"width + height", True, True),
        (b"width * height", b"height * width", True, True),
        (b"height=2.0", b"height", True, True),
        (b"return width", b"width", True, True),
    ],
)
def test_what_counts_in_a_source(old: bytes, new: bytes, bare: bool, documented: bool) -> None:
    assert old in SOURCE
    before, after = _code(SOURCE), _code(SOURCE.replace(old, new, 1))
    assert (before["bare"] != after["bare"]) is bare
    assert (before["documented"] != after["documented"]) is documented
    assert not before["reads_itself"]
    assert not before["reads_others"]


@pytest.mark.parametrize(
    ("line", "itself", "others"),
    [
        (b"print(__doc__)", True, False),
        (b"print(Settings.__doc__)", False, True),
        (b"Settings.__doc__ = area.__doc__", False, True),
        (b"inspect.getsource(area)", False, True),
        (b"getdoc(area)", False, True),
        (b"doc = 1", False, False),
    ],
)
def test_code_that_reads_docstrings_is_noticed(line: bytes, itself: bool, others: bool) -> None:
    code = _code(SOURCE + line + b"\n")
    assert (code["reads_itself"], code["reads_others"]) == (itself, others)


def test_docstrings_count_where_code_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the module that reads its own, in all modules of a stage that reads others."""
    codes = digest._codes()
    names = code_modules("railx.workload")

    def changed(module: str, **reader: bool) -> bool:
        def code() -> str:
            code_digest.cache_clear()
            return code_digest("railx.workload")

        reading = {name: codes[name] | reader for name in names if name == names[-1]}
        with monkeypatch.context() as patch:
            patch.setattr(digest, "_codes", lambda: codes | reading)
            before = code()
            other = (codes | reading)[module] | {"documented": "other words"}
            patch.setattr(digest, "_codes", lambda: codes | reading | {module: other})
            after = code()
        code_digest.cache_clear()
        return before != after

    assert not changed(names[0])
    assert not changed(names[-1])
    assert changed(names[-1], reads_itself=True)
    assert not changed(names[0], reads_itself=True)
    assert changed(names[0], reads_others=True)


def test_only_training_programs_read_docstrings_among_the_stages() -> None:
    """A reader of others' docstrings would make comments on all modules count."""
    codes = digest._codes()
    modules_of = {name: (f"training.{name}",) for name in ("live", "profile")}
    modules_of |= {"training": ("training.run",), "figure": ("railx.figures.registry",)}
    for name in STAGES:
        modules = code_modules(f"workflow.stages.{name}", *modules_of.get(name, ()))
        assert not [module for module in modules if codes[module]["reads_others"]], name
        itself = {module for module in modules if codes[module]["reads_itself"]}
        assert itself <= {"training.run", "training.live", "training.profile"}, name


@given(st.sampled_from(sorted((ROOT / "railx").rglob("*.py"))))
def test_unparsed_source_has_the_same_digest(path: object) -> None:
    """Python's own formatter drops comments and changes every line."""
    source = ROOT.joinpath(str(path)).read_bytes()
    assert _code(ast.unparse(ast.parse(source)).encode()) == _code(source)


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
