"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .folder import prepare
from .recording import record
from .running import run, take
from .steps import STEPS
from .work import CODE

_ABOUT = """What to measure with one GPU, step by step.

``folder`` prepares a folder on a machine with everything: the code, the plans and the
sequences of an experiment, its runs and profiles as resolved settings, and small
stand-ins of all of these. ``run`` needs that folder, torch, numpy and pyarrow, and no
network: it takes the steps one after another, each in a process of its own with a time
limit. ``--steps 1``, ``2`` and ``3`` are parts of at most eight minutes; what a call
has not come to, the same command takes next. Each step writes OUT/steps/NAME.json and
NAME.log, and OUT/report.json has them all. ``record`` keeps them.

Without a GPU, ``run --dry-run`` takes every step on the CPU with the stand-ins. It
shows that the steps run; nothing is measured on a GPU then, and the report says so.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gpu", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    folder = actions.add_parser("folder", help="prepare a folder, with everything installed")
    folder.add_argument("folder", type=Path)
    folder.add_argument("--cores", default="all", help="cores for Snakemake (default: all)")
    folder.set_defaults(action=prepare)
    running = actions.add_parser("run", help="take the steps, with torch, numpy and pyarrow")
    running.add_argument("folder", type=Path)
    running.add_argument("--out", type=Path, required=True, help="the folder to write")
    running.add_argument(
        "--steps", nargs="*", default=[], help="names or parts 1, 2, 3 (default: all)"
    )
    running.add_argument(
        "--again", action="store_true", help="take steps that are done already once more"
    )
    running.add_argument(
        "--call-s", type=float, help="seconds of this call (default: 470 for each part)"
    )
    running.set_defaults(action=run)
    one = actions.add_parser("step", help="take one step in this process")
    one.add_argument("name", choices=[step.name for step in STEPS])
    one.add_argument("folder", type=Path)
    one.add_argument("--out", type=Path, required=True, help="the folder to write")
    one.set_defaults(action=take)
    for parser_of in (running, one):
        parser_of.add_argument("--dry-run", action="store_true", help="stand-ins, on the CPU")
    keep = actions.add_parser("record", help="keep the records of a run on a GPU")
    keep.add_argument("out", type=Path, help="the folder that `run` wrote")
    keep.add_argument("--name", help="name of the recording (default: device and day)")
    keep.add_argument(
        "--recorded", type=Path, default=CODE / "results" / "recorded" / "gpu",
        help="where recordings are kept (default: results/recorded/gpu)",
    )  # fmt: skip
    keep.set_defaults(action=record)
    options = parser.parse_args(arguments)
    try:
        return int(options.action(options))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
