"""Shared parts of the commands: parsers, the experiment, printing."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from railx.errors import UserError, allowed_names
from railx.places import SHIPPED, WORK, is_checkout, is_work
from railx.text import aligned, in_digits
from workflow.stage import Config

if TYPE_CHECKING:
    from railx.planning.format.plan import Plan

#: The usual results folder.
RESULTS = Path("results")


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
    add_debug(parser, default=argparse.SUPPRESS)
    return parser


def add_debug(parser: argparse.ArgumentParser, default: Any = False) -> None:
    """The option ``--debug``, which is allowed anywhere on the line."""
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error, too"
    )


def add_flag(parser: Any, name: str, help: str) -> None:
    """Add an option without a value; ``parser`` may be a group of options."""
    parser.add_argument(name, action="store_true", help=help)


def add_overrides(parser: argparse.ArgumentParser, help: str) -> None:
    """Any number of Hydra's overrides."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=help)


def plan_of(
    path: Path, argument: str = "PLAN: ", allowed: str = "a plan (railx plan ... --out)"
) -> Plan:
    """The plan of a file that a command was given; UserError names the ``argument``."""
    from railx.planning.format.files import read_plan

    try:
        return read_plan(path)
    except OSError as error:
        raise UserError(f"{argument}got {path}: {error.strerror}; allowed: {allowed}") from None


def add_results(parser: argparse.ArgumentParser) -> None:
    """The option that names another results folder."""
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help=f"the results folder (default: {RESULTS})"
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
    """What these options are to Snakemake; a profile says itself how wide it runs."""
    cores: str | None = options.cores
    if cores is not None and cores != "all" and not (cores.isdecimal() and int(cores)):
        raise UserError(f"--cores: got {cores!r}; allowed: all, or a whole number above 0")
    if options.profile is None:
        return ["--cores", cores or "all"]
    places = (Path.cwd() / options.profile, WORK / options.profile)
    folder = next((candidate for candidate in places if any(candidate.glob("config*.yaml"))), None)
    if folder is None:
        allowed = "a folder with a config.yaml, e.g. profiles/slurm"
        raise UserError(f"--profile: got {options.profile}; allowed: {allowed}")
    # A profile of a cluster needs its plugin, which Snakemake names less plainly.
    from workflow.cluster import check_plugin

    check_plugin(folder.resolve().name)
    _check_profile_keys(options.profile, folder)
    wide = [] if cores is None else ["--cores", cores]
    return [*wide, "--workflow-profile", str(folder)]


def _check_profile_keys(given: Path, folder: Path) -> None:
    """Refuse a profile with keys that Snakemake would answer with all its usage."""
    from snakemake.cli import get_argument_parser

    from workflow.yaml_files import read_yaml_mapping

    parser = get_argument_parser()
    options = {key for action in parser._actions for key in parser.get_possible_config_keys(action)}
    for path in sorted(folder.glob("config*.yaml")):
        content = read_yaml_mapping(path, WORK)
        unknown = [key for key in content if key not in options]
        # A template's keys are its own.
        if unknown and "__use_yte__" not in content:
            raise UserError(
                f"--profile: got {given}, whose {path.name} has {', '.join(unknown)}, no options"
                " of Snakemake; allowed: a Snakemake profile, e.g. profiles/slurm"
            )


def check_experiment(results: Path, name: str) -> None:
    """Refuse a name that no experiment of conf/ has, and no run in ``results``."""
    from workflow.mounts import choices
    from workflow.settings import NAME

    experiments = choices("experiment")
    run = NAME.fullmatch(name) and (results / name).is_dir()
    if name not in experiments and not run:
        finished = sorted(path.parts[-3] for path in results.glob("*/evidence/claims.parquet"))
        allowed = allowed_names(name, [*experiments, *finished])
        raise UserError(f"--experiment: got {name!r}; allowed: {allowed}")


def how_to_make(name: str) -> str:
    """The command that makes the results of a name, in a checkout and elsewhere."""
    from workflow.mounts import choices

    if name in choices("experiment"):
        return f"railx reproduce {name}"
    return f"railx reproduce EXPERIMENT name={name}"


def experiment_of(results: Path, name: str) -> Config:
    """The experiment as it was run, or as conf/ has it before its report is there."""
    from railx.io import read_json
    from workflow.experiment import checked_experiment
    from workflow.settings import LISTED

    config = results / name / "config.json"
    if not config.is_file():
        return checked_experiment([f"experiment={name}"])
    settings: Config = read_json(config)
    whole = isinstance(settings, dict) and isinstance(settings.get("name"), str)
    if not whole or not all(isinstance(settings.get(key), dict) for key in LISTED):
        raise UserError(f"{config}: is no experiment; allowed: the settings of a finished run")
    return settings


def check_work() -> None:
    """Refuse to write where no folder of work is; never into an installed package."""
    if not is_work(WORK) or (WORK == SHIPPED and not is_checkout()):
        allowed = "a folder that `railx init` made, or a checkout"
        raise UserError(f"Snakefile: got none in {Path.cwd()}; allowed: {allowed}")


def snakemake(
    arguments: Sequence[str],
    experiment: str,
    overrides: Sequence[str],
    stdout: IO[str] | None = None,
) -> int:
    """Run Snakemake in the folder of work (UserError: there is none); its exit code."""
    check_work()
    entries = [f"experiment={experiment}"]
    if overrides:
        entries.append(f"hydra={shlex.join(overrides)}")
    command = [sys.executable, "-m", "snakemake", *arguments, "--config", *entries]
    return subprocess.run(command, check=False, cwd=WORK, stdout=stdout).returncode


def print_table(table: Any, options: argparse.Namespace) -> None:
    """An Arrow table in columns, or as the options ``json`` and ``csv`` say.

    UserError for columns of one name, which no row can hold, and for what no CSV can.
    """
    names = table.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"columns: got {twice[0]} twice; allowed: names that differ (AS)")
    if options.csv:
        import pyarrow as pa
        import pyarrow.csv as pc

        stream = pa.BufferOutputStream()
        try:
            pc.write_csv(table, stream)
        except pa.ArrowException as error:
            raise UserError(f"--csv: got {error}; allowed: numbers, texts and times") from None
        print(stream.getvalue().to_pybytes().decode(), end="")
        return
    rows = table.to_pylist()
    if options.json:
        print_json(rows)
        return
    cells = [[in_digits(value) for value in row.values()] for row in rows]
    print("\n".join(aligned([table.column_names, *cells])))


def print_summary(summary: Mapping[str, Any], options: argparse.Namespace) -> None:
    """The summary of a stage and what was written, or a JSON object."""
    if options.json:
        print_json(summary)
        return
    print_facts(summary)
    print_written(options.out)


def print_written(out: Path | None) -> None:
    """The file or folder that a command was told to write, below its answer."""
    if out is not None:
        print(f"\nwritten: {out}")


def print_answer(
    value: Mapping[str, Any], lines: Iterable[str], options: argparse.Namespace
) -> None:
    """An answer as lines with the page that was written, or as a JSON object."""
    if options.json:
        print_json(value)
        return
    print("\n".join(lines))
    if options.html is not None:
        print(f"\nwrote {options.html}")


def print_facts(facts: Mapping[str, Any], width: int = 0) -> None:
    """Names and values in two columns, the first as wide as its widest or ``width``."""
    width = max(width, *map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {in_digits(value)}")


def print_json(value: Any) -> None:
    """A value as JSON, which has no infinities and no NaN: they are null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    """Numbers for the decimals that sums come as; text for what JSON lacks."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def topologies_like(name: str) -> list[Any]:
    """The settings of a choice of topology, and of those that begin with its name.

    Composed without other groups, whose modules take half a second to import.
    """
    from railx.families import TopologySettings
    from railx.settings import load
    from workflow.choices import choices
    from workflow.composer import compose_choice

    conf = WORK / "conf"
    alike = (choice for choice in choices(conf, "topology") if choice.startswith(f"{name}_"))
    composed = [compose_choice(conf, "topology", choice) for choice in (name, *alike)]
    settings: list[Any] = [
        load(
            TopologySettings,
            {key: value for key, value in plain.items() if value != "???"},
            "topology",
        )
        for plain in composed
    ]
    return [one for one in settings if one.family == settings[0].family]
