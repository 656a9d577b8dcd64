"""``railx compare``: two tracked invocations of the pipeline, with no network."""

from __future__ import annotations

import argparse
import json
from typing import Any

from workflow.commands.shared import add_results, command, words

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add ``railx compare`` to the commands."""
    parser = command(
        commands,
        "compare",
        "compare two tracked invocations of the pipeline, with no network",
        "Compare the numbers of two tracked invocations of the pipeline, from the MLflow store"
        " under results/.",
        "example:\n  railx compare previous latest --experiment quick",
    )
    parser.add_argument(
        "first", nargs="?", default="previous", help="an invocation, or previous (default)"
    )
    parser.add_argument(
        "second", nargs="?", default="latest", help="an invocation, or latest (default)"
    )
    parser.add_argument(
        "--experiment", help="the experiment (default: the one that was tracked last)"
    )
    add_results(parser)
    parser.add_argument("--changed", action="store_true", help="only the numbers that differ")
    parser.add_argument("--json", action="store_true", help="print a JSON list of rows")
    parser.set_defaults(action=_compare)


def _compare(options: argparse.Namespace) -> int:
    from railx.tracking import compare_runs, list_invocations

    # Two experiments have little in common: previous and latest are those of the one
    # that ran last.
    experiment = options.experiment or list_invocations(options.results)[-1]["experiment"]
    rows = compare_runs(options.results, options.first, options.second, experiment)
    if options.changed:
        rows = [row for row in rows if row["a"] != row["b"]]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.4f}"
        name = f"{row['stage']}/{row['name']}"
        print(
            f"{name:<36} {row['metric']:<48} {words(row['a']):>16} {words(row['b']):>16} {ratio:>9}"
        )
    return 0
