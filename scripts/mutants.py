"""Tests that can fail: break the code on purpose and see whether a room's tests notice.

Two sorts of mutants. Named ones are the entries of tests/mutants/ROOM.yaml: each breaks
one thing that matters. Generated ones are small changes (cosmic-ray's operators) drawn
by a seed from the modules that carry the room's science. Every mutant is put into a
copy of the tree, the room's tests run there, and the tree itself is never touched.

An entry of a room's file:

    solution_ignored:
      breaks: the integer programme's solution is thrown away
      tests: [tests/planning/test_flexsp.py]
      changes:
        - file: railx/planning/sequence/flexsp.py
          old: return solution
          new: return None

``old`` is the text of whole lines that the file has exactly once, at any indentation;
``new`` takes their place at the same indentation. ``expect: survives`` marks a known
gap: reported, but no failure until it is closed. An entry that no longer applies is an
error: mend it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = Path("tests/mutants")
EXPECTED = ("killed", "survives")
Outcome = Literal["killed", "survived", "timed out"]


@dataclass(frozen=True)
class Room:
    """What is mutated and what should notice."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "planning": Room(
        tuple(
            f"railx/planning/{name}.py"
            for name in (
                *("format/schedule", "pipeline/chunks", "pipeline/infinipipe"),
                *("sequence/blaster", "sequence/flexsp", "sequence/flexsp_milp"),
                *("sequence/programme", "sequence/solver"),
            )
        ),
        ("tests/planning",),
    ),
    "fabric": Room(
        (
            "railx/fabric/circuits.py",
            *(
                f"railx/fabric/decisions/{name}.py"
                for name in (*("granting", "queueing", "ranks"),)
            ),
        ),
        (
            "tests/fabric/test_circuits.py",
            "tests/fabric/test_core.py",
            "tests/replay/test_engine.py",
        ),
    ),
    "design": Room(
        tuple(f"railx/design/{name}.py" for name in ("front", "rates", "sizes")), ("tests/design",)
    ),
    # What the invariants alone notice: no story, and no count of states.
    "safety": Room(
        (
            *(
                f"railx/fabric/decisions/{name}.py"
                for name in (*("granting", "queueing", "ranks"),)
            ),
            "railx/fabric/holdings.py",
        ),
        ("tests/fabric/test_safety.py",),
    ),
    "network": Room(
        tuple(f"railx/network/{name}.py" for name in ("collectives", "throughput")),
        (
            "tests/network/test_collectives.py",
            "tests/network/test_static_loads.py",
            "tests/network/test_metrics.py",
        ),
    ),
    "performance": Room(
        tuple(
            f"railx/performance/{name}.py"
            for name in ("closed", "memory", "networks", "plans", "search")
        ),
        ("tests/performance/test_step.py",),
    ),
    "evidence": Room(
        tuple(
            f"railx/{name}.py"
            for name in (
                *("evidence/claims", "evidence/database", "evidence/entries", "evidence/expected"),
                *("evidence/judge", "evidence/published", "evidence/statement"),
                *("evidence/verdicts", "intervals/__init__"),
            )
        ),
        (
            "tests/evidence/test_judge.py",
            "tests/evidence/test_repeats.py",
            "tests/evidence/test_entries.py",
            "tests/evidence/test_expected.py",
            "tests/evidence/test_published.py",
            "tests/evidence/test_database.py",
        ),
    ),
    "replay": Room(
        tuple(
            f"railx/replay/{name}.py"
            for name in (
                *("changes", "cluster_time", "graph_pricing", "recording"),
                *("kernels/circuits", "kernels/controller", "kernels/ranks"),
            )
        ),
        ("tests/replay",),
    ),
    "steps": Room(
        tuple(f"railx/steps/{name}.py" for name in ("layers", "programs", "sweep")),
        ("tests/steps",),
    ),
    "economics": Room(
        tuple(
            f"railx/economics/{name}.py"
            for name in ("bill", "catalogue", "claim_map", "rails", "sensitivity")
        ),
        ("tests/economics",),
    ),
    "training": Room(
        tuple(
            f"training/{name}.py"
            for name in (
                *("attention", "data", "loss", "optimizer", "pipeline", "reduction"),
                *("sequence_parallel", "sharding", "utilisation"),
            )
        ),
        tuple(
            f"tests/training/test_{name}.py"
            for name in (
                *("attention", "data", "loss", "optimizer", "utilisation"),
                *("drawn_schedules", "parallel", "sharding"),
            )
        ),
    ),
    "input": Room(
        (
            "railx/effort.py",
            "railx/settings.py",
            *(f"workflow/{name}.py" for name in ("composer", "mounts", "places", "yaml_files")),
        ),
        (
            "tests/ground/test_settings.py",
            *(
                f"tests/workflow/test_{name}.py"
                for name in ("common_rules", "composer", "config", "fit", "mistakes")
            ),
        ),
    ),
    "exchange": Room(
        tuple(
            f"railx/exchange/{name}.py"
            for name in (
                *("astra_network", "chakra", "chakra_messages", "chrome", "formats"),
                *("goal", "graph_files", "programs", "wires"),
            )
        ),
        ("tests/exchange", "tests/workflow/test_exchange_commands.py"),
    ),
    "cluster": Room(
        ("workflow/cluster.py", "workflow/kubernetes.py", "training/nodes.py"),
        ("tests/cluster", "tests/workflow/test_common_rules.py"),
    ),
    "package": Room(
        (
            "railx/places.py",
            "workflow/commands/init.py",
            "workflow/commands/sweep.py",
            *(f"workflow/{name}.py" for name in ("job", "watch")),
        ),
        (
            "tests/package/test_commands.py",
            "tests/package/test_places.py",
            "tests/workflow/test_common_rules.py",
            "tests/workflow/test_long_runs.py",
        ),
    ),
}

#: Operators of cosmic-ray whose mutants say something: changed comparisons, numbers,
#: signs and loops. Others (shifts for sums, unions of types) hardly compile.
OPERATORS = (
    "core/AddNot",
    "core/NumberReplacer",
    "core/ReplaceAndWithOr",
    "core/ReplaceBinaryOperator_Add_Sub",
    "core/ReplaceBinaryOperator_Div_Mul",
    "core/ReplaceBinaryOperator_Mul_Div",
    "core/ReplaceBinaryOperator_Sub_Add",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceComparisonOperator_Eq_NotEq",
    "core/ReplaceComparisonOperator_GtE_Gt",
    "core/ReplaceComparisonOperator_Gt_GtE",
    "core/ReplaceComparisonOperator_Gt_Lt",
    "core/ReplaceComparisonOperator_LtE_Lt",
    "core/ReplaceComparisonOperator_Lt_Gt",
    "core/ReplaceComparisonOperator_Lt_LtE",
    "core/ReplaceContinueWithBreak",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ZeroIterationForLoop",
)


class MutantError(Exception):
    """A mutant cannot be made or judged; one line."""


@dataclass(frozen=True)
class Mutant:
    """A change: the new text of each file that it touches, the tests that should notice
    and whether they are known to.
    """

    name: str
    breaks: str
    texts: dict[str, str]
    tests: tuple[str, ...]
    survives: bool = False


def main() -> int:
    """Run the mutants of a room; 1 where one survives that should not."""
    options = _options()
    room = ROOMS[options.room]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        _copy_tree(tree)
        try:
            mutants = [
                mutant
                for mutant in _named(tree, options.room, room)
                if options.only in ("", mutant.name)
            ]
            if options.generated and not options.only:
                mutants += _generated(tree, room, options.generated, options.seed)
            baseline_s = _baseline(tree, room, mutants)
            return _run(tree, mutants, 3 * baseline_s + 30)
        except MutantError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("room", choices=sorted(ROOMS), help="the room whose tests are tried")
    parser.add_argument(
        "--generated", type=int, default=20, help="how many generated mutants (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=1, help="which of them (default: 1)")
    parser.add_argument("--only", default="", help="the one named mutant to try")
    return parser.parse_args()


def _copy_tree(tree: Path) -> None:
    """Tracked files and new ones that git does not ignore, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, tree / name
        if source.is_file() and not source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _named(tree: Path, name: str, room: Room) -> Iterator[Mutant]:
    """The mutants of a room's file, each with the texts of its changed files."""
    entries = yaml.safe_load((ROOT / MUTANTS / f"{name}.yaml").read_text(encoding="utf-8"))
    for mutant, entry in entries.items():
        expect = entry.get("expect", "killed")
        if set(entry) - {"expect"} != {"breaks", "tests", "changes"} or expect not in EXPECTED:
            raise MutantError(
                f"{name}.yaml: {mutant}: allowed: breaks, tests, changes, expect: killed|survives"
            )
        texts = _mutated(tree, f"{name}.yaml: {mutant}", entry["changes"])
        yield Mutant(mutant, entry["breaks"], texts, tuple(entry["tests"]), expect == "survives")


def _mutated(tree: Path, mutant: str, changes: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The texts of the files that ``changes`` touch, after them."""
    texts: dict[str, str] = {}
    for change in changes:
        file = change["file"]
        if not (tree / file).is_file():
            raise MutantError(f"{mutant}: {file} is no file any more; mend the entry")
        text = texts.get(file) or (tree / file).read_text(encoding="utf-8")
        lines, old = text.split("\n"), change["old"].rstrip("\n").split("\n")
        matches = [
            (start, indent)
            for start in range(len(lines) - len(old) + 1)
            if (indent := _indent_of(lines[start : start + len(old)], old)) is not None
        ]
        if len(matches) != 1:
            raise MutantError(
                f"{mutant}: {file} has its old lines {len(matches)} times, not once; mend the entry"
            )
        ((start, indent),) = matches
        new = change["new"].rstrip("\n").split("\n") if change["new"] else []
        lines[start : start + len(old)] = [indent + line if line else "" for line in new]
        texts[file] = "\n".join(lines)
    return texts


def _indent_of(lines: Sequence[str], old: Sequence[str]) -> str | None:
    """The indentation at which ``lines`` equal ``old``; None where they do not."""
    indent = lines[0].removesuffix(old[0])
    same = all(
        line == (indent + text if text else "") for line, text in zip(lines, old, strict=True)
    )
    return indent if same and not indent.strip() else None


def _generated(tree: Path, room: Room, number: int, seed: int) -> list[Mutant]:
    """``number`` mutants drawn from all that the operators make of the modules."""
    try:
        from cosmic_ray.ast import ast_nodes, get_ast
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator
    except ImportError:
        raise MutantError("cosmic-ray is not installed; allowed: --generated 0") from None
    places = []
    for module in room.modules:
        nodes = list(ast_nodes(get_ast((tree / module).read_text(encoding="utf-8"))))
        for operator in OPERATORS:
            made = get_operator(operator)()
            count = sum(1 for node in nodes for _ in made.mutation_positions(node))
            places += [(module, operator, occurrence) for occurrence in range(count)]
    drawn = random.Random(seed).sample(places, min(number, len(places)))
    mutants = []
    for module, operator, occurrence in sorted(drawn):
        text = (tree / module).read_text(encoding="utf-8")
        changed = mutate_code(text, get_operator(operator)(), occurrence)
        if changed is not None and changed != text:
            name = f"{operator.removeprefix('core/')} {occurrence}"
            mutants.append(
                Mutant(name, _difference(module, text, changed), {module: changed}, room.tests)
            )
    return mutants


def _difference(module: str, before: str, after: str) -> str:
    for number, (old, new) in enumerate(
        zip(before.splitlines(), after.splitlines(), strict=False), start=1
    ):
        if old != new:
            return f"{module}:{number}: {old.strip()}  ->  {new.strip()}"
    return module


def _baseline(tree: Path, room: Room, mutants: list[Mutant]) -> float:
    """How long the tests take on the code as it is; they must pass."""
    every = dict.fromkeys(test for mutant in mutants for test in mutant.tests) or room.tests
    started = time.monotonic()
    outcome, words = _tests(tree, tuple(every), None)
    if outcome != "survived":
        raise MutantError(f"the tests fail without any mutant ({words}); allowed: tests that pass")
    return time.monotonic() - started


def _run(tree: Path, mutants: list[Mutant], limit_s: float) -> int:
    surprises, killed = 0, 0
    for mutant in mutants:
        before = {name: (tree / name).read_text(encoding="utf-8") for name in mutant.texts}
        for name, text in mutant.texts.items():
            (tree / name).write_text(text, encoding="utf-8")
        outcome, _ = _tests(tree, mutant.tests, limit_s)
        for name, text in before.items():
            (tree / name).write_text(text, encoding="utf-8")
        dead = outcome != "survived"
        killed += dead
        note = ""
        if dead and mutant.survives:
            note, surprises = (
                "  (now killed: take `expect: survives` out of the entry)",
                surprises + 1,
            )
        elif not dead:
            note = "  (known)" if mutant.survives else "  (unexpected)"
            surprises += not mutant.survives
        print(f"{outcome:<9}  {mutant.name}: {mutant.breaks}{note}", flush=True)
    print(f"\n{killed} of {len(mutants)} mutants killed, {surprises} not as expected")
    return 1 if surprises else 0


def _tests(tree: Path, tests: tuple[str, ...], limit_s: float | None) -> tuple[Outcome, str]:
    """Run tests in the copy until the first fails; the outcome and which it was."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    # `make test` and `make test-system` do not run slow tests.
    command += ["-m", "not slow"]
    # Compiled files of a mutant must not outlive it, and pytest cuts what it says of a
    # failure at the width of a terminal.
    own = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"}
    environment = {**os.environ, **own}
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environment,
            timeout=limit_s,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timed out", ""
    if done.returncode not in (0, 1, 2):
        raise MutantError(f"pytest ended with {done.returncode}: {' '.join(tests)}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if failed and all("Timeout (>" in line for line in failed):
        # By the suite's own limit for a test: a mutant that hangs, or a busy machine.
        return "timed out", "; ".join(failed)
    return ("killed" if done.returncode else "survived"), "; ".join(failed)


if __name__ == "__main__":
    sys.exit(main())
