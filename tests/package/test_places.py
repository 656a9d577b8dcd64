"""Where the code, what comes with it and the folder of work are; the backend as a
package of its own: what it holds and what it depends on.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from railx import places
from scripts.share import shared_files
from tests.builders import ROOT
from tests.commands import python
from workflow.stages import shipped

_SAY = "from railx import places; print(places.WORK, places.cache('x'), sep='\\n')"


def _folder_of_work(folder: Path) -> Path:
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "config.yaml").write_text("experiment: mine\n")
    (folder / "Snakefile").write_text("")
    return folder


def test_a_checkout_is_all_three_places() -> None:
    assert places.CODE == places.SHIPPED == ROOT
    assert places.is_checkout()
    assert places.is_work(ROOT)


def test_work_is_the_folder_that_the_process_starts_in_where_it_is_one(tmp_path: Path) -> None:
    work = _folder_of_work(tmp_path / "study")
    assert python("-c", _SAY, cwd=work).stdout.split() == [str(work), str(work / ".cache/x")]
    assert python("-c", _SAY, cwd=tmp_path).stdout.split() == [str(ROOT), str(ROOT / ".cache/x")]


@pytest.mark.parametrize("missing", ["Snakefile", "conf/config.yaml"])
def test_half_a_folder_of_work_is_none(tmp_path: Path, missing: str) -> None:
    work = _folder_of_work(tmp_path)
    assert places.is_work(work)
    (work / missing).unlink()
    assert not places.is_work(work)


def test_an_installed_package_caches_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = tmp_path / "site-packages" / "railx_lab"
    monkeypatch.setattr(places, "SHIPPED", share)
    monkeypatch.setattr(places, "WORK", share)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert places.cache("imports") == tmp_path / "cache" / "railx-lab" / "imports"
    monkeypatch.setattr(places, "WORK", tmp_path / "study")
    assert places.cache("imports") == tmp_path / "study" / ".cache" / "imports"


def test_shipped_files_are_found_from_any_folder_after_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert places.in_repository("resources/papers.yaml") == ROOT / "resources/papers.yaml"
    assert places.in_repository("nowhere/at.all") == Path("nowhere/at.all")
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "papers.yaml").write_text("mine: {}\n")
    assert places.in_repository("resources/papers.yaml") == Path("resources/papers.yaml")


_CHECK = """
from workflow.experiment import checked_experiment
from workflow.places import check_sources

check_sources(checked_experiment(["experiment=quick"]))
"""


def test_a_run_far_from_the_code_finds_what_came_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Snakefile").write_text("")  # as in a folder of work
    done = python("-c", _CHECK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    # Only resources come with the code; a file of one's own is looked for here alone.
    assert shipped(Path("resources/papers.yaml")) == ROOT / "resources/papers.yaml"
    assert shipped(Path("README.md")) == Path("README.md")


def test_records_call_shipped_files_by_their_place_there(tmp_path: Path) -> None:
    assert places.shipped_name(ROOT / "resources/papers.yaml") == "resources/papers.yaml"
    assert places.shipped_name(Path("results/a.json")) == "results/a.json"
    assert places.shipped_name(tmp_path / "lengths.json") == "lengths.json"


def test_what_travels_is_what_the_code_reads() -> None:
    names = {name.as_posix() for name in shared_files()}
    assert {"Snakefile", "conf/config.yaml", "resources/papers.yaml"} <= names
    assert {"workflow/rules/common.smk", "workflow/report/workflow.rst"} <= names
    for folder in ("conf", "resources", "training", "workflow"):
        there = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert there <= names, sorted(there - names)


_FOLDER = ROOT / "packaging" / "railx-torch"
_PROJECT = tomllib.loads((_FOLDER / "pyproject.toml").read_text())
_LAB = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _modules() -> Iterator[Path]:
    for package in _PROJECT["tool"]["setuptools"]["packages"]:
        yield from sorted(ROOT.joinpath(*package.split(".")).glob("*.py"))


def _names(requirements: list[str]) -> set[str]:
    return {re.split("[>=<]", line)[0].replace("-", "_") for line in requirements}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_it_depends_on_torch_and_two_packages_at_most() -> None:
    project = _PROJECT["project"]
    required = _names(project["dependencies"])
    assert "torch" in required
    assert len(required) <= 3
    optional = _names(project["optional-dependencies"]["netconf"])
    imported = {name.split(".")[0] for path in _modules() for name in _imported(path)}
    others = imported - sys.stdlib_module_names - {"railx", "railx_torch"}
    assert others == required | optional


def test_it_holds_every_module_of_the_project_that_it_imports() -> None:
    shipped = {path.relative_to(ROOT).with_suffix("").as_posix() for path in _modules()}
    shipped = {name.replace("/", ".").removesuffix(".__init__") for name in shipped}
    imported = {name for path in _modules() for name in _imported(path)}
    ours = {name for name in imported if name.split(".")[0] in ("railx", "railx_torch")}
    assert ours <= shipped, sorted(ours - shipped)


def test_it_is_the_backend_of_the_lab() -> None:
    for key in ("version", "requires-python", "license"):
        assert _PROJECT["project"][key] == _LAB["project"][key]
    points = "entry-points"
    assert _PROJECT["project"][points] == _LAB["project"][points]
    torch = next(line for line in _PROJECT["project"]["dependencies"] if line.startswith("torch"))
    assert [torch] == _LAB["project"]["optional-dependencies"]["torch"]
