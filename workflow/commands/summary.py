"""``railx summary``: an experiment's verdicts and page; ``railx pdf``: it as PDF."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from railx.errors import UserError
from workflow.commands.shared import add_results, check_experiment, command, how_to_make

_CLAIMS = "evidence/claims.parquet"
_PAGE, _PDF = "report.html", "report.pdf"


def add(commands: Any) -> None:
    summary = command(
        commands,
        "summary",
        "the verdicts of an experiment, and the path of its page",
        "Print how many published claims have each verdict, what did not hold, and the address"
        " of the page.",
        "example:\n  railx summary --experiment quick",
    )
    _add_experiment(summary)
    summary.set_defaults(action=_summary)
    pdf = command(
        commands,
        "pdf",
        "the page of an experiment as PDF",
        f"Print results/EXPERIMENT/{_PAGE} as {_PDF} beside it, with an installed Chromium.",
        "example:\n  railx pdf --experiment quick",
    )
    _add_experiment(pdf)
    pdf.set_defaults(action=_pdf)


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--experiment", default="paper", help="the experiment (default: paper)")
    parser.add_argument(
        "--overrides",
        default="",
        help="the Hydra overrides it was made with, in one text: they may name it anew",
    )
    add_results(parser)


def _summary(options: argparse.Namespace) -> None:
    _say(_name(options), options.results, _command_line(options))


def say(experiment: str, overrides: Sequence[str], results: Path) -> None:
    """Print the verdicts of an experiment that has just run."""
    from workflow.experiment import checked_experiment

    chosen = checked_experiment([f"experiment={experiment}", *overrides])
    command_line = f"railx reproduce {shlex.join([experiment, *overrides])}"
    _say(str(chosen["name"]), results, command_line)


def _say(name: str, results: Path, command_line: str) -> None:
    from railx.report.claims import read_claims, summary_lines
    from workflow.resources import all_papers

    folder = results / name
    claims = folder / _CLAIMS
    if not claims.is_file():
        raise UserError(f"{claims}: no verdicts yet; make them: {command_line}")
    papers = all_papers()
    rows = read_claims(claims, papers)
    print("\n".join(summary_lines(name, rows, papers)))
    page = (folder / _PAGE).resolve()
    print(f"page: {page.as_uri()}" if page.is_file() else f"page: {page} is not made yet")


def _pdf(options: argparse.Namespace) -> None:
    from railx.report.pdf import print_pdf

    folder = options.results / _name(options)
    if not (folder / _PAGE).is_file():
        raise UserError(f"{folder / _PAGE}: no such page; make it first: {_command_line(options)}")
    print_pdf(folder / _PAGE, folder / _PDF)
    print(f"written: {folder / _PDF}")


def _name(options: argparse.Namespace) -> str:
    """The name of the results, which overrides may set."""
    if not options.overrides.strip():
        check_experiment(options.results, options.experiment)
        return str(options.experiment)
    from workflow.experiment import checked_experiment, overrides_from

    chosen = {"experiment": options.experiment, "hydra": options.overrides}
    return str(checked_experiment(overrides_from(chosen))["name"])


def _command_line(options: argparse.Namespace) -> str:
    overrides = options.overrides.strip()
    if overrides:
        return f"railx reproduce {options.experiment} {overrides}"
    return how_to_make(options.experiment)
