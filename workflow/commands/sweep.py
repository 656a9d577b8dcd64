"""``railx sweep``: one experiment for each value of some settings, side by side.

Values are written as for Hydra's multirun (``a,b``, ``range(1,5)``, ``choice(...)``),
but the runs are Snakemake's. Hydra's would be one function call each, in a folder of
its own, that starts over every time. Here each point is an experiment with a name and
results of its own: what is up to date stays, a killed sweep goes on, a point can be
opened, asked and compared as any other, and it runs on a cluster by the same profiles.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING, Any

from railx.errors import UserError
from railx.places import WORK
from workflow.commands.claim import claim_by_id, judged, query_files
from workflow.commands.shared import add_flag, add_running, command, print_table, running, snakemake
from workflow.overrides import parse_overrides, parted
from workflow.stage import Config
from workflow.stages import claim_tables, results_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from railx.evidence import Claim

#: Points of one sweep; more is rather a mistake in a range.
LIMIT = 1000
_VALUES = "a,b, range(a,b) or choice(a,b)"
#: A longer name of a point is cut, and told from others by digits of its digest.
_LETTERS = 80
#: What is shown where nothing is asked: the verdicts of each point.
_VERDICTS = (
    "select paper, verdict, count(*) as claims from evidence.claims where kind = 'published'"
    " group by all order by all"
)


@dataclass(frozen=True)
class Point:
    """One run: its name, its overrides, and the values of the swept settings."""

    name: str
    overrides: tuple[str, ...]
    values: dict[str, str]


def add(commands: Any) -> None:
    parser = command(
        commands,
        "sweep",
        "an experiment for each value of some settings, side by side",
        "Run an experiment for every combination of the values of settings (a,b or range(1,5)),"
        " and print what a query or a claim finds in each. Each point has results of its own,"
        " results/EXPERIMENT_SETTING_VALUE; with --sql or --claim only what that reads is made.",
        "example:\n"
        "  railx sweep quick topologies.torus_2d.n=2,3 --sql \\\n"
        '    "select traffic, routing, bound_gb_s_per_chip from network.torus_2d.bounds"',
    )
    parser.add_argument("experiment", help="the experiment that is varied")
    parser.add_argument(
        "overrides", nargs="+", metavar="OVERRIDE", help="Hydra override; one at least has values"
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--sql", metavar="QUERY", help="one SELECT, asked of every point")
    asked.add_argument("--claim", metavar="ID", help="a claim, judged at every point")
    add_running(parser)
    shape = parser.add_mutually_exclusive_group()
    add_flag(shape, "--json", "print a JSON list of rows")
    add_flag(shape, "--csv", "print CSV")
    parser.set_defaults(action=_sweep)


def points(experiment: str, overrides: Sequence[str]) -> list[Point]:
    """Every combination, the last setting fastest; UserError for none or too many."""
    parsed = parse_overrides(overrides, f"a value, or several as {_VALUES}")
    fixed, begins = [], experiment
    swept: dict[str, list[str]] = {}
    for text, override in zip(overrides, parsed, strict=True):
        key, value = parted(text)
        if override.key_or_group == "name" and override.is_sweep_override():
            allowed = "one, which the name of every point begins with"
            raise UserError(f"name: got {value!r}, several values; allowed: {allowed}")
        if override.key_or_group == "name":
            begins = str(override.value())
        elif not override.is_sweep_override():
            fixed.append(text)
        elif override.get_key_element() in swept:
            raise UserError(f"{key}: got {value!r} after other values; allowed: all in one list")
        else:
            swept[override.get_key_element()] = _values(key, value, override)
    count = prod(map(len, swept.values()))
    if not swept or not 1 <= count <= LIMIT:
        raise UserError(
            f"OVERRIDE: got {count if swept else 'no'} values in {' '.join(overrides)}; allowed:"
            f" settings with 1 to {LIMIT} points together, e.g. topologies.torus_2d.n=2,3"
        )
    combinations: list[Point] = []
    for together in product(*swept.values()):
        chosen = dict(zip(swept, together, strict=True))
        words = [_word(f"{key.rpartition('.')[2]}_{value}") for key, value in chosen.items()]
        name = _short(_word("_".join([begins, *words])))
        taken = {point.name for point in combinations}
        while name in taken:
            name += "_"
        settings = tuple(f"{key}={value}" for key, value in chosen.items())
        combinations.append(Point(name, (*fixed, *settings, f"name={name}"), chosen))
    return combinations


def _values(key: str, value: str, override: Any) -> list[str]:
    """A setting's values, in order; UserError for none, too many, or uncountable."""
    from hydra.errors import HydraException

    try:
        values = list(islice(override.sweep_string_iterator(), LIMIT + 1))
    except (HydraException, ValueError):
        values = []
    if not 1 <= len(values) <= LIMIT:
        raise UserError(f"{key}: got {value!r}; allowed: 1 to {LIMIT} values, as {_VALUES}")
    return values


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", text)


def _short(name: str) -> str:
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= _LETTERS else f"{name[:_LETTERS]}_{digits}"


def _sweep(options: argparse.Namespace) -> None:
    import pyarrow as pa

    from workflow.experiment import checked_experiment

    how = running(options)
    claim = None if options.claim is None else claim_by_id(options.claim, "--claim")
    sweep_points = points(options.experiment, options.overrides)
    # What is wrong with any point ends the sweep before the first one starts.
    experiments = [
        checked_experiment([f"experiment={options.experiment}", *point.overrides])
        for point in sweep_points
    ]
    _check_apart(sweep_points, experiments)
    files = [_files(options, claim, experiment) for experiment in experiments]
    for number, (point, needed) in enumerate(zip(sweep_points, files, strict=True), start=1):
        values = ", ".join(f"{key}={value}" for key, value in point.values.items())
        print(f"point {number} of {len(sweep_points)}: {values}", file=sys.stderr, flush=True)
        code = snakemake([*needed, *how], options.experiment, point.overrides, stdout=sys.stderr)
        if code:
            raise UserError(
                f"point {values}: could not be made (exit code {code}); what went wrong stands"
                " above, and the points before it are kept"
            )
    tables = (
        _answer(options, claim, point, experiment)
        for point, experiment in zip(sweep_points, experiments, strict=True)
    )
    print_table(pa.concat_tables(tables, promote_options="permissive"), options)


def _check_apart(sweep_points: Sequence[Point], experiments: Sequence[Config]) -> None:
    seen: dict[str, Point] = {}
    for point, experiment in zip(sweep_points, experiments, strict=True):
        content = json.dumps({**experiment, "name": None}, sort_keys=True)
        other = seen.setdefault(content, point)
        if other is not point:
            first, second = (", ".join(run.values.values()) for run in (other, point))
            got = f"{', '.join(point.values)}: got {first} and {second}, which are one run"
            raise UserError(f"{got}; allowed: values that differ")


def _files(options: argparse.Namespace, claim: Claim | None, experiment: Config) -> list[str]:
    """The targets of a point: the tables that the question reads, or all."""
    if claim is None and options.sql is None:
        return []
    query = options.sql if claim is None else claim.settings.query
    what = "--sql" if claim is None else f"claim {claim.id}"
    files = [] if query is None else query_files(query, what, experiment)
    if not files:
        # Snakemake without a target would make all of it.
        reads = "has no query" if query is None else f"got {query!r}, which reads no table"
        raise UserError(f"{what}: {reads}; allowed: a query that reads a table of the run")
    return [str(path) for path in files]


def _answer(
    options: argparse.Namespace, claim: Claim | None, point: Point, experiment: Config
) -> pa.Table:
    """The rows of the question at a point, with the swept values first."""
    import pyarrow as pa

    from railx.evidence import open_database

    folder = WORK / results_folder(experiment)
    if claim is not None:
        row = judged(claim, experiment, folder)
        columns = ("claim", "published_text", "ours_text", "verdict", "reason")
        table = pa.Table.from_pylist([{name: row[name] for name in columns}])
    else:
        with open_database(folder, claim_tables(experiment, folder)) as database:
            table = database.query(options.sql or _VERDICTS)
    for key in reversed(point.values):
        column = pa.array([point.values[key]] * table.num_rows, pa.string())
        table = table.add_column(0, key, column)
    return table
