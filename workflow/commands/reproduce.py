"""``railx reproduce``: a whole experiment, as ``make reproduce`` in a checkout."""

from __future__ import annotations

import argparse
from typing import Any

from railx.errors import UserError, allowed_names
from railx.places import WORK
from workflow.commands import shared, summary
from workflow.commands.shared import snakemake


def add(commands: Any) -> None:
    parser = shared.command(
        commands,
        "reproduce",
        "run a whole experiment: results/EXPERIMENT/report.html",
        "Run every stage of an experiment whose results are missing or out of date, and say"
        " what held. In the folder that `railx init` made, or in a checkout.",
        "example:\n  railx reproduce quick\n  railx reproduce quick topologies.torus_2d.n=3",
    )
    parser.add_argument(
        "experiment", nargs="?", default="paper", help="the experiment (default: paper)"
    )
    shared.add_overrides(parser, "Hydra override of the experiment")
    shared.add_running(parser)
    parser.add_argument(
        "--until", metavar="STAGE", help="make no more than this stage and what it needs"
    )
    parser.add_argument(
        *("-n", "--dry-run"), action="store_true", help="say what would run, and run nothing"
    )
    parser.set_defaults(action=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    from workflow.experiment import checked_experiment
    from workflow.stages import STAGES

    if "=" in options.experiment:
        got = f"EXPERIMENT: got {options.experiment!r}, an override; allowed: its name first"
        raise UserError(f"{got}, e.g. railx reproduce quick {options.experiment}")
    arguments = [*shared.running(options), *(["--dry-run"] if options.dry_run else [])]
    if options.until is not None:
        if options.until not in STAGES:
            allowed = allowed_names(options.until, STAGES)
            raise UserError(f"--until: got {options.until!r}; allowed: {allowed}")
        arguments += ["--until", options.until]
    checked_experiment([f"experiment={options.experiment}", *options.overrides])
    code = snakemake(arguments, options.experiment, options.overrides)
    if not (code or options.dry_run or options.until is not None):
        summary.say(options.experiment, options.overrides, WORK / "results")
    return code
