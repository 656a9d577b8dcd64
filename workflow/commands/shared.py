"""What the commands share: their parsers, the experiment they read, and printing."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from railx.places import WORK, is_work
from workflow.stage import Settings

__all__ = [
    "add_results",
    "add_running",
    "command",
    "experiment_of",
    "print_table",
    "running",
    "snakemake",
    "words",
]


def command(
    commands: Any, name: str, line: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """The parser of a new command, with a line for the list and an example."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=line,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_results(parser: argparse.ArgumentParser) -> None:
    """The option that names another results folder."""
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="the results folder (default: results)",
    )


def add_running(parser: argparse.ArgumentParser) -> None:
    """The options that say where and how wide Snakemake runs."""
    parser.add_argument("--cores", help="how many cores to use (default: all)")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="DIR",
        help="a Snakemake profile, e.g. profiles/slurm (default: profiles/default)",
    )


def running(options: argparse.Namespace) -> list[str]:
    """What these options are to Snakemake.

    A profile says itself how wide it runs. Raises ValueError for what cannot be.
    """
    cores: str | None = options.cores
    if cores is not None and cores != "all" and not (cores.isdecimal() and int(cores)):
        raise ValueError(f"--cores: got {cores!r}; allowed: all, or a whole number above 0")
    if options.profile is None:
        return ["--cores", cores or "all"]
    places = (Path.cwd() / options.profile, WORK / options.profile)
    found = next((place for place in places if any(place.glob("config*.yaml"))), None)
    if found is None:
        raise ValueError(
            f"--profile: got {options.profile}; allowed: a folder with a config.yaml,"
            " e.g. profiles/slurm"
        )
    wide = [] if cores is None else ["--cores", cores]
    return [*wide, "--workflow-profile", str(found)]


def experiment_of(results: Path, name: str) -> Settings:
    """The experiment as it was run, or as conf/ has it before its report is there."""
    from railx.io import read_json
    from workflow.experiment import checked_experiment

    config = results / name / "config.json"
    if not config.is_file():
        return checked_experiment([f"experiment={name}"])
    settings: Settings = read_json(config)
    return settings


def snakemake(
    arguments: Sequence[str], entries: Sequence[str], stdout: IO[str] | None = None
) -> int:
    """Run Snakemake in the folder of work; returns its exit code.

    ``entries`` are those of its ``--config``. Raises ValueError where there is no such
    folder.
    """
    if not is_work(WORK):
        raise ValueError(
            f"Snakefile: got none in {Path.cwd()}; allowed: a folder that `railx init` made,"
            " or a checkout"
        )
    command = [sys.executable, "-m", "snakemake", *arguments, "--config", *entries]
    return subprocess.run(command, check=False, cwd=WORK, stdout=stdout).returncode


def words(value: Any) -> str:
    """A value of a table for the terminal: six digits, nested ones as JSON."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def print_table(table: Any, options: argparse.Namespace) -> None:
    """An Arrow table in columns, or as the options ``json`` and ``csv`` say."""
    if options.csv:
        import pyarrow as pa
        import pyarrow.csv as pc

        stream = pa.BufferOutputStream()
        pc.write_csv(table, stream)
        print(stream.getvalue().to_pybytes().decode(), end="")
        return
    rows = table.to_pylist()
    if options.json:
        print(json.dumps(rows, indent=2, default=_plain))
        return
    cells = [[words(value) for value in row.values()] for row in rows]
    widths = [
        max(map(len, [name, *(row[index] for row in cells)]))
        for index, name in enumerate(table.column_names)
    ]
    for row in [table.column_names, *cells]:
        print(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _plain(value: Any) -> Any:
    """A value that JSON can hold.

    Sums of whole numbers leave the database as decimals; what else JSON lacks is text.
    """
    return int(value) if isinstance(value, Decimal) and value == int(value) else str(value)
