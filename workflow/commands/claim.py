"""``railx sql``: query the tables of a run, as claims do; ``railx claim``: make the
inputs of one claim and judge it. Both show a claim and its verdict in the same way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.errors import UserError, allowed_names
from railx.places import WORK
from workflow.commands import shared
from workflow.commands.shared import print_facts, print_json
from workflow.resources import all_claims
from workflow.stage import Config
from workflow.stages import claim_files, claim_tables, results_folder

if TYPE_CHECKING:
    from railx.evidence import Claim


def add(commands: Any) -> None:
    _add_sql(commands)
    _add_claim(commands)


def _add_sql(commands: Any) -> None:
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


def _add_claim(commands: Any) -> None:
    parser = shared.command(
        commands,
        "claim",
        "make what one claim needs and judge it",
        "Make the tables that a claim's query names, where they are not up to date, and print"
        " what is claimed, ours and the verdict.",
        "example:\n  railx claim railx_absolute_cost --experiment quick",
    )
    parser.add_argument("id", metavar="ID", help="a claim of resources/claims")
    shared.add_overrides(parser, "Hydra override of the experiment")
    parser.add_argument(
        "--experiment", default="paper", help="the experiment that makes the tables"
    )
    shared.add_running(parser)
    shared.add_flag(parser, "--json", "print one JSON object")
    parser.set_defaults(action=_claim)


def _sql(options: argparse.Namespace) -> None:
    from railx.evidence import NotAvailable, open_database

    experiment = shared.experiment_of(options.results, options.experiment)
    if not options.results.is_dir():
        how = shared.how_to_make(options.experiment)
        raise UserError(f"--results: got {options.results}, which is not there; make it: {how}")
    folder = options.results / options.experiment
    if (options.query is None) == (options.claim is None):
        raise UserError("QUERY: allowed: either one SELECT or --claim ID")
    if options.claim is not None and options.csv:
        raise UserError("--csv: got --claim; allowed with --claim: --json, or neither")
    if options.claim is not None:
        print_judged(judged(claim_by_id(options.claim, "--claim"), experiment, folder), options)
        return
    with open_database(folder, claim_tables(experiment, folder)) as database:
        try:
            result = database.query(options.query)
        except NotAvailable as missing:
            allowed = ", ".join(missing.there_is) or "none, as no table is made yet"
            raise UserError(f"{missing}; allowed: {allowed}") from None
        shared.print_table(result, options)


def _claim(options: argparse.Namespace) -> None:
    from workflow.experiment import checked_experiment

    claim = claim_by_id(options.id, "ID")
    chosen = [f"experiment={options.experiment}", *options.overrides]
    experiment = checked_experiment(chosen)
    if claim.settings.query is not None:
        files = query_files(claim.settings.query, f"claim {claim.id}", experiment)
        _make(files, options)
    print_judged(judged(claim, experiment, WORK / results_folder(experiment)), options)


def query_files(query: str, asked: str, experiment: Config) -> list[Path]:
    """The files that a query of ``asked`` names; UserError: the run lacks one."""
    from railx.evidence import open_schemas

    with open_schemas({}) as database:
        named = database.named(query)
    tables = _tables(experiment)
    missing = [name for name in named if name not in tables]
    if missing:
        others = _experiments_with(named)
        got = f"{asked}: the experiment {experiment['name']} makes no table {', '.join(missing)}"
        allowed = f"--experiment {' or '.join(others) or 'of your own that makes it'}"
        raise UserError(f"{got}; allowed: {allowed}")
    return [tables[name] for name in named]


def _tables(experiment: Config) -> dict[str, Path]:
    from railx.evidence import table_name

    folder = results_folder(experiment)
    return {table_name(str(file.relative_to(folder))): file for file in claim_files(experiment)}


def _experiments_with(named: Sequence[str]) -> list[str]:
    from railx.settings import SettingsError
    from workflow.experiment import checked_experiment
    from workflow.mounts import choices

    names = []
    for name in choices("experiment"):
        try:
            experiment = checked_experiment([f"experiment={name}"])
        except SettingsError:
            continue
        if _tables(experiment).keys() >= set(named):
            names.append(name)
    return names


def _make(files: Sequence[Path], options: argparse.Namespace) -> None:
    arguments = [str(file) for file in files]
    arguments += shared.running(options)
    # What Snakemake says is no part of the answer.
    code = shared.snakemake(arguments, options.experiment, options.overrides, stdout=sys.stderr)
    if code:
        failed = f"claim {options.id}: its tables could not be made (exit code {code})"
        raise UserError(f"{failed}; what went wrong stands above")


def claim_by_id(name: str, option: str) -> Claim:
    """The claim with this id; UserError names ``option`` and the nearest ids."""
    claims = {claim.id: claim for claim in all_claims()}
    if name not in claims:
        raise UserError(f"{option}: got {name!r}; allowed: {allowed_names(name, claims)}")
    return claims[name]


def judged(claim: Claim, experiment: Config, folder: Path) -> dict[str, Any]:
    """The row of a claim in evidence/claims.parquet, from the tables in ``folder``."""
    from railx.evidence import judge

    (row,) = judge([claim], folder, claim_tables(experiment, folder))
    return row


def print_judged(row: dict[str, Any], options: argparse.Namespace) -> None:
    """The claim in lines that a reader can take in, or as a JSON object."""
    if options.json:
        print_json(row)
        return
    lines = [
        ("claim", f"{row['claim']} ({row['paper']}, {row['kind']})"),
        ("sentence", row["sentence"]),
        ("published", f"{row['published_text']} ({row['place']}; source: {row['source']})"),
        ("ours", _ours(row)),
        ("fidelity", _fidelity(row)),
        ("verdict", row["verdict"]),
        ("reason", row["reason"]),
        ("needs", row["needs"]),
        ("notes", row["notes"]),
    ]
    print_facts({key: words for key, words in lines if words})


def _ours(row: dict[str, Any]) -> str:
    from railx.evidence import number_text

    if row["low"] is None:
        return str(row["ours_text"])
    low, high = number_text(row["low"]), number_text(row["high"])
    return f"{row['ours_text']} (95 % interval {low} to {high}, {row['samples']} samples)"


def _fidelity(row: dict[str, Any]) -> str:
    if row["fidelity"] is None:
        return ""
    return f"{row['fidelity']} (the claim requires {row['fidelity_required']})"
