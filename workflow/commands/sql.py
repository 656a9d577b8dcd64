"""``railx sql``: the tables of a run, asked as the claims do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workflow.commands.shared import add_results, command, experiment_of, print_table
from workflow.stage import Settings
from workflow.stages import STAGES, claim_files, inputs_of, results_folder

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add ``railx sql`` to the commands."""
    parser = command(
        commands,
        "sql",
        "ask the tables of a run with SQL",
        "Ask the tables of a run with SQL, as the claims do: a table's name is its path below"
        " results/EXPERIMENT without the ending, dots for slashes.",
        "example:\n"
        '  railx sql "select topology, cost_usd from economics.summary" --experiment quick\n'
        "  railx sql --claim railx_absolute_cost --experiment quick",
    )
    parser.add_argument("query", metavar="QUERY", nargs="?", help="one SELECT")
    parser.add_argument("--claim", metavar="ID", help="judge this claim instead, by its query")
    parser.add_argument(
        "--experiment", default="paper", help="the experiment whose results are asked"
    )
    add_results(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print a JSON list of rows")
    shape.add_argument("--csv", action="store_true", help="print CSV")
    parser.set_defaults(action=_sql)


def _sql(options: argparse.Namespace) -> int:
    from railx.evidence import NotAvailable, open_database

    experiment = experiment_of(options.results, options.experiment)
    # The declarations name files below results/NAME, which may stand elsewhere.
    named, folder = results_folder(experiment), options.results / options.experiment
    files = [str(file.relative_to(named)) for file in claim_files(experiment)]
    there = [file for file in files if (folder / file).is_file()]
    if (options.query is None) == (options.claim is None):
        raise ValueError("QUERY: allowed: either one SELECT or --claim ID")
    if options.claim is not None:
        print_table(_judged(options.claim, experiment, folder, there), options)
        return 0
    with open_database(folder, there) as database:
        try:
            found = database.query(options.query)
        except NotAvailable as missing:
            there_is = ", ".join(missing.there_is) or "no table yet"
            raise ValueError(f"{missing}; there is: {there_is}") from None
        print_table(found, options)
    return 0


def _judged(name: str, experiment: Settings, folder: Path, files: Sequence[str]) -> Any:
    """What a claim says, ours and the verdict, one row each."""
    import pyarrow as pa

    from railx.evidence import judge, load_claims

    read = inputs_of(STAGES["evidence"], experiment)
    (of_claims, *_), (of_published, *_), (papers,) = (
        _several(read[key]) for key in ("claims", "published", "papers")
    )
    claims = load_claims(of_claims.parent, of_published.parent, papers)
    chosen = [claim for claim in claims if claim.id == name]
    if not chosen:
        raise ValueError(
            f"--claim: got {name!r}; allowed: {', '.join(claim.id for claim in claims)}"
        )
    (row,) = judge(chosen, folder, files)
    shown = ("claim", "kind", "sentence", "ours_text", "published_text", "fidelity", "verdict")
    lines = [{"key": key, "value": str(row[key] or "")} for key in (*shown, "reason")]
    return pa.Table.from_pylist(lines)


def _several(files: Path | list[Path]) -> list[Path]:
    return files if isinstance(files, list) else [files]
