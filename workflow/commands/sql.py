"""``railx sql``: query the tables of a run, as claims do."""

from __future__ import annotations

import argparse
from typing import Any

from railx.errors import UserError
from workflow.commands import shared
from workflow.commands.claim import claim_by_id, judged, print_judged
from workflow.stages import claim_tables


def add(commands: Any) -> None:
    parser = shared.command(
        commands,
        "sql",
        "ask the tables of a run with SQL",
        "Ask the tables of a run with SQL, as the claims do: a table's name is its path below"
        " results/EXPERIMENT without the ending, dots for slashes. Without the item in its middle"
        " it is the tables of all items, with a column item.",
        "example:\n"
        '  railx sql "select topology, cost_usd from economics.summary" --experiment quick\n'
        "  railx sql --claim railx_absolute_cost --experiment quick",
    )
    parser.add_argument("query", metavar="QUERY", nargs="?", help="one SELECT")
    parser.add_argument(
        "--claim", metavar="ID", help="judge this claim instead, on the tables that are there"
    )
    parser.add_argument(
        "--experiment", default="paper", help="the experiment whose results are asked"
    )
    shared.add_results(parser)
    shape = parser.add_mutually_exclusive_group()
    shared.add_flag(shape, "--json", "print a JSON list of rows")
    shared.add_flag(shape, "--csv", "print CSV")
    parser.set_defaults(action=_sql)


def _sql(options: argparse.Namespace) -> None:
    from railx.evidence import NotAvailable, open_database

    experiment = shared.experiment_of(options.results, options.experiment)
    if not options.results.is_dir():
        raise UserError(
            f"--results: got {options.results}, which is not there; make it:"
            f" {shared.how_to_make(options.experiment)}"
        )
    folder = options.results / options.experiment
    if (options.query is None) == (options.claim is None):
        raise UserError("QUERY: allowed: either one SELECT or --claim ID")
    if options.claim is not None:
        print_judged(judged(claim_by_id(options.claim, "--claim"), experiment, folder), options)
        return
    with open_database(folder, claim_tables(experiment, folder)) as database:
        try:
            result = database.query(options.query)
        except NotAvailable as missing:
            there_is = ", ".join(missing.there_is) or "no table yet"
            raise UserError(f"{missing}; there is: {there_is}") from None
        shared.print_table(result, options)
