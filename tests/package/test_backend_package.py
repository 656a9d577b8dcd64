"""The backend as a package of its own: what it holds and what it depends on."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.builders import ROOT

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
