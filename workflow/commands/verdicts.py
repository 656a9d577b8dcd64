"""``railx verdicts``: the verdicts of a run, compared with the recorded ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.places import in_repository
from railx.text import aligned
from workflow.commands import shared

_EXPECTED = in_repository("resources/expected")
_SHOWN = ("claim", "paper", "kind", "verdict", "ours_text", "published_text", "fidelity")
_HEAD = """\
# What a run of the experiment {name} found of the claims: verdict, value and interval.
# Every run should find the same verdicts, but where they rest on timing (timed: emulated, or
# measured on some machine).
# railx verdicts --experiment {name} --write makes this file anew.
"""


def add(commands: Any) -> None:
    parser = shared.command(
        commands,
        "verdicts",
        "the verdicts of a run",
        "The verdicts of a finished run, one line a claim; with --expected only those that are"
        " not as resources/expected/EXPERIMENT.yaml has them (exit code 1 where there are any).",
        "example:\n  railx verdicts --experiment quick --paper opus",
    )
    parser.add_argument("--experiment", default="paper", help="the experiment that was run")
    parser.add_argument("--paper", help="only claims of this paper, by its key")
    shape = parser.add_mutually_exclusive_group()
    shared.add_flag(shape, "--json", "print a JSON list of rows")
    shared.add_flag(shape, "--expected", "compare with the expected verdicts")
    shared.add_flag(shape, "--write", "write the expected verdicts anew")
    shared.add_results(parser)
    parser.set_defaults(action=_verdicts)


def _verdicts(options: argparse.Namespace) -> int:
    rows = _rows(options)
    expected = _EXPECTED / f"{options.experiment}.yaml"
    if options.write:
        return _write(rows, expected, options.experiment)
    if options.expected:
        return _compare(rows, expected)
    if options.json:
        shared.print_json(rows)
        return 0
    cells = [[str(row[key] or "") for key in _SHOWN] for row in rows]
    print("\n".join(aligned([_SHOWN, *cells])))
    return 0


def _rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    from railx.evidence import CLAIM_COLUMNS
    from railx.io import read_rows
    from workflow.resources import all_papers

    papers = all_papers()
    if options.paper is not None and (options.expected or options.write):
        raise UserError("--paper: allowed: alone or with --json, as all claims have a verdict")
    if options.paper is not None and options.paper not in papers:
        raise UserError(f"--paper: got {options.paper!r}; allowed: {', '.join(papers)}")
    shared.check_experiment(options.results, options.experiment)
    path = options.results / options.experiment / "evidence" / "claims.parquet"
    if not path.is_file():
        how = shared.how_to_make(options.experiment)
        raise UserError(f"{path}: is not there; make it with: {how}")
    rows = read_rows(path)
    if rows and set(rows[0]) != set(CLAIM_COLUMNS):
        raise UserError(f"{path}: has other columns than today; make it again")
    return [row for row in rows if options.paper in (None, row["paper"])]


def _compare(rows: list[dict[str, Any]], path: Path) -> int:
    from railx.evidence import flipped, read_expected

    if not path.is_file():
        raise UserError(f"{path}: is not there; make it with --write in place of --expected")
    expected = read_expected(path)
    lines = flipped(rows, expected)
    for line in lines:
        print(line, file=sys.stderr)
    if lines:
        print(f"{len(lines)} verdicts are not as {path.name} has them", file=sys.stderr)
        return 1
    timed = sum(other.timed for other in expected.values())
    print(f"all {len(expected) - timed} verdicts are as expected ({timed} more rest on timing)")
    return 0


def _write(rows: list[dict[str, Any]], path: Path, experiment: str) -> int:
    from railx.evidence import recorded_lines
    from railx.io import write_text

    lines = recorded_lines(rows)
    write_text(path, _HEAD.format(name=experiment) + "".join(lines))
    print(f"{len(lines)} verdicts written to {path}")
    return 0
