"""``railx compare``: two tracked invocations of the pipeline, with no network.
``railx sync``: the upload of the W&B runs that were written offline.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from railx.errors import UserError
from workflow.commands.shared import add_flag, add_results, command, print_json


def add(commands: Any) -> None:
    _add_compare(commands)
    _add_sync(commands)


def _add_compare(commands: Any) -> None:
    parser = command(
        commands,
        "compare",
        "compare two tracked invocations of the pipeline, with no network",
        "Say what changed from one tracked invocation of the pipeline to another: config, code and"
        " packages, results that were made anew, numbers that moved beyond their intervals and"
        " verdicts that flipped.",
        "example:\n  railx compare previous latest --experiment quick --changed",
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
    parser.add_argument(
        "--store", help="an MLflow store other than the folder's own (postgresql://...)"
    )
    add_flag(parser, "--changed", "only what moved, on one screen")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page instead")
    add_flag(parser, "--json", "print one JSON object")
    parser.set_defaults(action=_compare)


def _add_sync(commands: Any) -> None:
    parser = command(
        commands,
        "sync",
        "upload W&B runs that were written offline, each once",
        "Upload the runs, the workspace and the report that W&B does not have yet. It needs a"
        " network and a login (`wandb login`); a second call finds nothing to do.",
        "example:\n  railx sync --dry-run",
    )
    add_results(parser)
    add_flag(parser, "--dry-run", "only say what is pending")
    parser.set_defaults(action=_sync)


def _compare(options: argparse.Namespace) -> None:
    from railx.tracking.compare import compare_invocations, list_invocations, only_changed
    from railx.tracking.comparison_page import changed_lines, comparison_lines, write_comparison

    # Two experiments have little in common: previous and latest are those of the one
    # that ran last.
    experiment = options.experiment
    if options.store is not None and "://" not in options.store:
        allowed = "the address of an MLflow store, e.g. postgresql://user@host/runs"
        raise UserError(f"--store: got {options.store!r}; allowed: {allowed}")
    if experiment is None:
        invocations = list_invocations(options.results, store=options.store)
        named = {row["invocation"]: row["experiment"] for row in invocations}
        experiment = named.get(options.second, invocations[-1]["experiment"])
    comparison = compare_invocations(
        options.results, options.first, options.second, experiment, options.store
    )
    if options.html is not None:
        write_comparison(options.html, comparison)
        print(f"written: {options.html}")
        return
    if options.json:
        shown = only_changed(comparison) if options.changed else comparison
        print_json(shown)
        return
    for line in (changed_lines if options.changed else comparison_lines)(comparison):
        print(line)


def _sync(options: argparse.Namespace) -> None:
    from railx.tracking.sync import pending_runs, pending_views, sync

    if options.dry_run:
        runs, views = pending_runs(options.results), pending_views(options.results)
        print(f"pending: {len(runs)} runs, {len(views)} views")
        return
    try:
        sent = sync(options.results)
    except RuntimeError as error:
        raise UserError(str(error)) from None
    if not any(sent.values()):
        print("nothing to upload")
    else:
        print(f"uploaded: {sent['runs']} runs, {sent['views']} views")
