"""The walls between the rooms hold (contracts in pyproject.toml), no modules import one
another in a circle, no function is long, and no module outside the families' rooms asks
which family a network is.
"""

import ast
import re
from collections.abc import Iterator, Mapping

import grimp
import pytest

from railx.families import FAMILIES
from tests.builders import ROOT
from tests.commands import python


def test_import_contracts() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = python("-c", code, "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr


def circles(imports: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """The sets of modules that reach one another by imports, sorted."""
    reached = {module: _reached(module, imports) for module in imports}
    return sorted(
        {
            tuple(sorted(other for other in others if module in reached[other]))
            for module, others in reached.items()
            if module in others
        }
    )


def _reached(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for imported in imports[waiting.pop()] - seen:
            seen.add(imported)
            waiting.append(imported)
    return seen


def test_no_modules_import_one_another_in_a_circle() -> None:
    """At any level: inside functions and for type checking alone too."""
    graph = grimp.build_graph(
        *("railx", "railx_lab", "railx_torch", "training", "workflow"), cache_dir=None
    )
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert circles(imports) == []


def test_circles_are_noticed() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}, "e": set[str]()}
    assert circles(imports) == [("b", "c"), ("d",)]


def test_no_function_is_longer_than_100_lines() -> None:
    long: dict[str, set[str]] = {}
    for room in ("railx", "railx_lab", "railx_torch", "training", "workflow"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno is not None
                    if node.end_lineno - node.lineno >= 100:
                        long.setdefault(str(path.relative_to(ROOT)), set()).add(node.name)
    assert long == {}


#: Parts of names that say nothing of the thing.
VAGUE = frozenset(
    (
        *("own", "place", "one", "found", "made", "held", "kept"),
        *("told", "wanted", "known", "each", "whole", "least"),
    )
)
#: How many of 10,000 names may have such a part.
MAX_VAGUE_OF_10_000 = 40


def bound_names(tree: ast.AST) -> Iterator[str]:
    """The names of functions, arguments, classes and assigned variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
            yield from (argument.arg for argument in node.args.args + node.args.kwonlyargs)
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def is_vague(name: str) -> bool:
    """Whether a part of a name, cut at underscores and capitals, is vague."""
    words = re.sub("(?<=[a-z])([A-Z])", r"_\1", name).lower()
    return not VAGUE.isdisjoint(re.findall("[a-z]+", words))


def test_names_say_what_a_thing_is() -> None:
    paths = [
        path
        for room in ("railx", "railx_lab", "railx_torch", "training", "workflow")
        for path in (ROOT / room).rglob("*.py")
    ]
    names = [name for path in paths for name in bound_names(ast.parse(path.read_text()))]
    vague = [name for name in names if is_vague(name)]
    assert len(vague) <= MAX_VAGUE_OF_10_000 * len(names) / 10_000, sorted(set(vague))


def test_vague_parts_of_names_are_noticed() -> None:
    tree = ast.parse("class OwnRows:\n    def place_of(self, one, *, rows):\n        held = rows\n")
    assert [is_vague(name) for name in bound_names(tree)] == [True, True, False, True, False, True]
    assert not is_vague("threshold_ms")


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
        for room in ("railx", "railx_lab", "railx_torch", "training", "workflow")
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
        for room in (
            "railx",
            "railx_lab",
            "railx_torch",
            "training",
            "workflow",
            "benchmarks",
            "examples",
        )
        for path in sorted((ROOT / room).rglob("*.py"))
        if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)
    ]
    # The optima of this one are proven by searches of the tests.
    assert found == ["benchmarks/planner_sets.py"]
