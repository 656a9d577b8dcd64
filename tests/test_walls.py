"""The walls between the rooms hold (contracts in pyproject.toml), and no module outside
the families' rooms asks which family a network is.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from railx.families import FAMILIES
from tests.builders import ROOT
from tests.commands import python


def test_import_contracts() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = python("-c", code, "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr


NAMES = {family.name for family in FAMILIES}
SETTINGS = {family.settings.__name__ for family in FAMILIES}


def family_questions(source: str) -> Iterator[str]:
    """Where a module compares a family's name, tells a family by its settings' type or
    imports a family's room.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(
            _is_family(side) and not (_is_family(other) or _is_address_family(other))
            for side in (node.left, *node.comparators)
            for other in (node.left, *node.comparators)
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Match) and _is_family(node.subject):
            yield f"line {node.lineno}: match {ast.unparse(node.subject)}"
        elif isinstance(node, ast.Call):
            called, arguments = node.func, node.args
            if (
                isinstance(called, ast.Attribute)
                and called.attr in ("startswith", "endswith", "removeprefix")
                and _is_family(called.value)
            ):
                yield f"line {node.lineno}: {ast.unparse(node)}"
            if isinstance(called, ast.Name) and called.id in ("isinstance", "issubclass"):
                named = {part.id for part in ast.walk(arguments[1]) if isinstance(part, ast.Name)}
                if named & SETTINGS:
                    yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Subscript) and _is_family(node.slice):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            for module in modules:
                if module.startswith("railx.families.") and module.split(".")[2] in NAMES:
                    yield f"line {node.lineno}: import of {module}"
            if getattr(node, "module", None) == "railx.families":
                for name in sorted(NAMES & {alias.name for alias in node.names}):
                    yield f"line {node.lineno}: import of railx.families.{name}"


def _is_family(node: ast.expr) -> bool:
    """An attribute, a name or a key ``family``."""
    if isinstance(node, ast.Subscript):
        node = node.slice
        return isinstance(node, ast.Constant) and node.value == "family"
    return (isinstance(node, ast.Attribute) and node.attr == "family") or (
        isinstance(node, ast.Name) and node.id == "family"
    )


def _is_address_family(node: ast.expr) -> bool:
    """``socket.AF_INET`` and its like: the word means something else there."""
    return isinstance(node, ast.Attribute) and node.attr.startswith("AF_")


def test_no_module_outside_the_families_asks_for_a_family() -> None:
    rooms = ROOT / "railx" / "families"
    asked = {
        str(path.relative_to(ROOT)): found
        for room in ("railx", "training", "workflow")
        for path in sorted((ROOT / room).rglob("*.py"))
        if rooms not in path.parents
        for found in [list(family_questions(path.read_text()))]
        if found
    }
    assert asked == {}


@pytest.mark.parametrize(
    "source",
    [
        "if topology.family == 'railx_hyperx': pass",
        "if row['family'] in ('torus_2d', 'mesh_2d'): pass",
        "topology.family.startswith('railx')",
        "sizes[settings.family]",
        "isinstance(settings, FatTreeSettings | HyperXSettings)",
        "match topology.family:\n    case 'hyperx': pass",
        "from railx.families.tpu_v4 import chip_coordinates",
        "from railx.families import tpu_v4",
    ],
)
def test_questions_are_noticed(source: str) -> None:
    assert len(list(family_questions(source))) == 1


def test_a_family_of_addresses_is_another_matter() -> None:
    assert list(family_questions("address.family == socket.AF_INET")) == []


def test_only_tests_import_tests() -> None:
    """What is run by itself does not find them; the steps on a GPU bring them along."""
    found = [
        str(path.relative_to(ROOT))
        for room in ("railx", "training", "workflow", "benchmarks", "examples")
        for path in sorted((ROOT / room).rglob("*.py"))
        if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)
    ]
    assert found == []
