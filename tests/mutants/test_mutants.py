"""The guard against weak tests, tried on a tree of one module and one test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEST = "tests/test_add.py"


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "add.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    test = (
        "import pytest\nfrom add import add\n\n\n"
        "@pytest.mark.timeout(2)\n"
        "def test_the_sum_of_two_and_two_is_neither_three_nor_five_but_the_four_between():\n"
        "    assert add(2, 2) == 4\n"
    )
    (tmp_path / TEST).write_text(test, encoding="utf-8")
    return tmp_path


def change(old: str, new: str) -> dict[str, str]:
    return {"file": "add.py", "old": f"return {old}", "new": f"return {new}"}


def test_every_room_has_named_mutants_that_fit_the_code(mutants: ModuleType) -> None:
    assert {path.stem for path in (ROOT / "tests/mutants").glob("*.yaml")} == set(mutants.ROOMS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    allowed = makefile.partition("error: ROOM: is missing; allowed: ")[2].partition('"')[0]
    assert set(allowed.split(", ")) == set(mutants.ROOMS)
    for name, room in mutants.ROOMS.items():
        named = list(mutants._named(ROOT, name, room))
        assert len({mutant.name for mutant in named}) == len(named) > 0
        for mutant in named:
            assert mutant.breaks
            assert mutant.tests, mutant.name
            assert all((ROOT / test.split("::")[0]).exists() for test in mutant.tests), mutant.name
            for file, text in mutant.texts.items():
                assert text != (ROOT / file).read_text("utf-8"), mutant.name


def test_the_modules_and_tests_of_every_room_are_there(mutants: ModuleType) -> None:
    for room in mutants.ROOMS.values():
        assert all((ROOT / path).exists() for path in (*room.modules, *room.tests))


def test_a_change_is_applied_beside_the_tree(mutants: ModuleType, tree: Path) -> None:
    texts = mutants._mutated(tree, "m", [change("a + b", "a - b")])
    assert texts == {"add.py": "def add(a, b):\n    return a - b\n"}
    assert (tree / "add.py").read_text(encoding="utf-8").endswith("a + b\n")


def test_lines_fit_at_any_indentation_and_can_be_removed(mutants: ModuleType, tree: Path) -> None:
    (tree / "add.py").write_text("if x:\n    y()\n\n    if z:\n        w()\n", encoding="utf-8")
    lines = {"file": "add.py", "old": "y()\n\nif z:\n    w()\n", "new": "if z:\n    v()\n"}
    assert mutants._mutated(tree, "m", [lines])["add.py"] == "if x:\n    if z:\n        v()\n"
    removed = {"file": "add.py", "old": "y()\n", "new": ""}
    assert mutants._mutated(tree, "m", [removed])["add.py"].startswith("if x:\n\n    if z")


def test_a_change_that_no_longer_applies_is_an_error(mutants: ModuleType, tree: Path) -> None:
    for old, count in (("b + a", 0), ("a + b", 2)):
        (tree / "add.py").write_text("return a + b\nreturn a + b\n", encoding="utf-8")
        with pytest.raises(mutants.MutantError, match=f"old lines {count} times.*mend the entry"):
            mutants._mutated(tree, "m", [change(old, "a - b")])
    (tree / "add.py").unlink()
    with pytest.raises(mutants.MutantError, match=r"add\.py is no file any more; mend the entry"):
        mutants._mutated(tree, "m", [change("a + b", "a - b")])


@pytest.mark.system
@pytest.mark.parametrize(
    ("change", "known", "exit_code", "word"),
    [
        ("a - b", False, 0, "killed     m: the sum\n"),
        ("a * b", False, 1, "survived   m: the sum  (unexpected)"),
        ("a * b", True, 0, "survived   m: the sum  (known)"),
        ("a - b", True, 1, "(now killed: take `expect: survives` out of the entry)"),
        ("next(n for n in iter(int, 1) if n)", False, 0, "timed out  m: the sum\n"),
    ],
)
def test_a_mutant_is_killed_or_survives(
    mutants: ModuleType,
    tree: Path,
    capsys: pytest.CaptureFixture[str],
    change: str,
    known: bool,
    exit_code: int,
    word: str,
) -> None:
    before = (tree / "add.py").read_text(encoding="utf-8")
    texts = {"add.py": before.replace("a + b", change)}
    mutant = mutants.Mutant("m", "the sum", texts, (TEST,), survives=known)
    assert mutants._run(tree, [mutant], limit_s=120.0) == exit_code
    assert word in capsys.readouterr().out
    assert (tree / "add.py").read_text(encoding="utf-8") == before


@pytest.mark.system
def test_tests_that_fail_by_themselves_prove_nothing(mutants: ModuleType, tree: Path) -> None:
    room = mutants.Room(("add.py",), (TEST,))
    assert mutants._baseline(tree, room, []) > 0
    (tree / "add.py").write_text("def add(a, b):\n    return 5\n", encoding="utf-8")
    with pytest.raises(mutants.MutantError, match="the tests fail without any mutant"):
        mutants._baseline(tree, room, [])


def test_generated_mutants_are_the_same_for_the_same_seed(mutants: ModuleType, tree: Path) -> None:
    pytest.importorskip("cosmic_ray")
    (tree / "add.py").write_text(
        "def add(a, b):\n    return a + b if a > 0 else b + 0\n", encoding="utf-8"
    )
    room = mutants.Room(("add.py",), (TEST,))
    first, again = (mutants._generated(tree, room, 3, seed=1) for _ in range(2))
    assert first == again
    assert len(first) == 3
    assert len({mutant.texts["add.py"] for mutant in first}) == 3
    assert all(mutant.breaks.startswith("add.py:2: return a + b") for mutant in first)
    assert len(mutants._generated(tree, room, 10**6, seed=1)) < 30
