"""``railx STAGE``: any stage by hand, with the same configs as the pipeline.

It also says what the results hold, by SQL, and compares two runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from railx import __version__
from workflow.stage import ByHand, Settings, Stage, Summary
from workflow.stages import STAGES, claim_files, inputs_of, results_folder, stage_of

__all__ = ["BY_HAND", "main"]

#: What each stage that can be run by hand takes, by its name.
BY_HAND: dict[str, ByHand] = {
    name: stage.by_hand for name, stage in STAGES.items() if stage.by_hand is not None
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 2 with one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.action(options))
    except BrokenPipeError:
        # Whoever read our output has seen enough (`railx ... | head`); nothing is left
        # to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="railx",
        description=(
            "Run one stage of the reproduction by hand, with the same configs as the pipeline."
        ),
        epilog="\n".join(
            (
                "example:",
                f"  {BY_HAND['topology'].example}",
                "",
                "the whole pipeline:",
                "  make reproduce",
            )
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"railx-lab {__version__}")
    commands = parser.add_subparsers(title="stages", metavar="STAGE", required=True)
    for name in BY_HAND:
        _add_stage(commands, STAGES[name], BY_HAND[name])
    _add_sql(commands)
    _add_compare(commands)
    return parser


def _add_stage(commands: Any, stage: Stage, by_hand: ByHand) -> None:
    command = _command(commands, stage.name, stage.help, stage.help, _epilog(by_hand))
    command.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="Hydra override, e.g. group=choice or group.key=value",
    )
    command.add_argument("--out", type=Path, help=by_hand.out)
    command.add_argument(
        "--json", action="store_true", help="print one JSON object, units in the key names"
    )
    command.set_defaults(action=_run_stage, stage=stage, by_hand=by_hand)


def _add_sql(commands: Any) -> None:
    command = _command(
        commands,
        "sql",
        "ask the tables of a run with SQL",
        "Ask the tables of a run with SQL, as the claims do: a table's name is its path below"
        " results/EXPERIMENT without the ending, dots for slashes.",
        "example:\n"
        '  railx sql "select topology, cost_usd from economics.summary" --experiment quick\n'
        "  railx sql --claim railx_absolute_cost --experiment quick",
    )
    command.add_argument("query", metavar="QUERY", nargs="?", help="one SELECT")
    command.add_argument("--claim", metavar="ID", help="judge this claim instead, by its query")
    command.add_argument(
        "--experiment", default="paper", help="the experiment whose results are asked"
    )
    _add_results(command)
    shape = command.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print a JSON list of rows")
    shape.add_argument("--csv", action="store_true", help="print CSV")
    command.set_defaults(action=_sql)


def _add_compare(commands: Any) -> None:
    command = _command(
        commands,
        "compare",
        "compare two tracked invocations of the pipeline, with no network",
        "Compare the numbers of two tracked invocations of the pipeline, from the MLflow store"
        " under results/.",
        "example:\n  railx compare previous latest --experiment quick",
    )
    command.add_argument(
        "first", nargs="?", default="previous", help="an invocation, or previous (default)"
    )
    command.add_argument(
        "second", nargs="?", default="latest", help="an invocation, or latest (default)"
    )
    command.add_argument(
        "--experiment", help="the experiment (default: the one that was tracked last)"
    )
    _add_results(command)
    command.add_argument("--changed", action="store_true", help="only the numbers that differ")
    command.add_argument("--json", action="store_true", help="print a JSON list of rows")
    command.set_defaults(action=_compare)


def _command(
    commands: Any, name: str, line: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=line,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return command


def _add_results(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="the results folder (default: results)",
    )


def _epilog(by_hand: ByHand) -> str:
    from workflow.mounts import choices

    lines = ["example:", f"  {by_hand.example}", "", "config groups:"]
    for group in by_hand.groups:
        names = ", ".join(choices(group))
        lines.append(f"  {group}={names}" if names else f"  {group}=VALUE")
    return "\n".join(lines)


def _run_stage(options: argparse.Namespace) -> int:
    from railx.settings import to_dict
    from workflow.config import compose_stage

    by_hand: ByHand = options.by_hand
    chosen = {
        group: to_dict(settings)
        for group, settings in compose_stage(
            options.overrides, by_hand.groups, by_hand.primary
        ).items()
    }
    # What a library prints belongs beside the result, not into it.
    with redirect_stdout(sys.stderr):
        summary = _by_hand(options.stage, by_hand, chosen, options.out)
    if options.json:
        print(json.dumps(summary, indent=2, allow_nan=False))
        return 0
    width = max(len(key) for key in summary)
    for key, value in summary.items():
        print(f"{key:<{width}}  {_words(value)}")
    if options.out is not None:
        print(f"\nwritten: {options.out}")
    return 0


def _by_hand(stage: Stage, by_hand: ByHand, chosen: Settings, out: Path | None) -> Summary:
    """Make what the stage reads from the same choices, then run the stage.

    In a folder that is thrown away, or in ``out`` where that is a folder.
    """
    outputs = stage.outputs if by_hand.outputs is None else by_hand.outputs
    own = replace(stage, outputs=outputs, run=by_hand.run or stage.run)
    with tempfile.TemporaryDirectory(prefix="railx-") as scratch:
        if by_hand.writes is not None:
            folder, written = Path(scratch), _written(by_hand.writes, out)
        else:
            folder = out if out is not None else Path(scratch)
            written = {name: folder / Path(output.path).name for name, output in outputs.items()}
        return _make(own, by_hand, chosen, written, folder, {})


def _make(
    stage: Stage,
    by_hand: ByHand,
    chosen: Settings,
    written: Mapping[str, Path],
    folder: Path,
    made: dict[str, Path],
) -> Summary:
    """Run a stage after those that it reads from, each of them once.

    ``made`` holds what is there already.
    """
    for output in by_hand.before.values():
        if output not in made:
            before, key = stage_of(output), output.partition(".")[2]
            path = folder / f"{before.name}{Path(before.pattern(key)).suffix}"
            _make(before, BY_HAND[before.name], chosen, {key: path}, folder, made)
            made[output] = path
    return stage.make(
        by_hand.settings(chosen),
        item=by_hand.item(chosen),
        inputs={name: made[output] for name, output in by_hand.before.items()},
        outputs=written,
    )


def _written(writes: Mapping[str, str], out: Path | None) -> dict[str, Path]:
    """The output that ``--out`` takes, by the ending of its name."""
    if out is None:
        return {}
    if out.suffix not in writes:
        endings = " or ".join(writes)
        raise ValueError(f"--out: got {out}; allowed: a file that ends in {endings}")
    return {writes[out.suffix]: out}


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _sql(options: argparse.Namespace) -> int:
    from railx.evidence import NotAvailable, open_database

    experiment = _experiment(options.results, options.experiment)
    # The declarations name files below results/NAME, which may stand elsewhere.
    named, folder = results_folder(experiment), options.results / options.experiment
    files = [str(file.relative_to(named)) for file in claim_files(experiment)]
    there = [file for file in files if (folder / file).is_file()]
    if (options.query is None) == (options.claim is None):
        raise ValueError("QUERY: allowed: either one SELECT or --claim ID")
    if options.claim is not None:
        _print_table(_judged(options.claim, experiment, folder, there), options)
        return 0
    with open_database(folder, there) as database:
        try:
            found = database.query(options.query)
        except NotAvailable as missing:
            there_is = ", ".join(missing.there_is) or "no table yet"
            raise ValueError(f"{missing}; there is: {there_is}") from None
        _print_table(found, options)
    return 0


def _judged(name: str, experiment: Settings, folder: Path, files: Sequence[str]) -> Any:
    """What a claim says, ours and the verdict, one row each."""
    import pyarrow as pa

    from railx.evidence import judge, load_claims

    read = inputs_of(STAGES["evidence"], experiment)
    (of_claims, *_), (of_published, *_) = (_several(read[key]) for key in ("claims", "published"))
    claims = load_claims(of_claims.parent, of_published.parent)
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


def _experiment(results: Path, name: str) -> Settings:
    """The experiment as it was run, or as conf/ has it before its report is there."""
    from railx.io import read_json
    from workflow.experiment import checked_experiment

    config = results / name / "config.json"
    return read_json(config) if config.is_file() else checked_experiment([f"experiment={name}"])


def _print_table(table: Any, options: argparse.Namespace) -> None:
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
    cells = [[_words(value) for value in row.values()] for row in rows]
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


def _compare(options: argparse.Namespace) -> int:
    from railx.tracking import compare_runs, list_invocations

    # Two experiments have little in common: previous and latest are those of the one
    # that ran last.
    experiment = options.experiment or list_invocations(options.results)[-1]["experiment"]
    rows = compare_runs(options.results, options.first, options.second, experiment)
    if options.changed:
        rows = [row for row in rows if row["a"] != row["b"]]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.4f}"
        name = f"{row['stage']}/{row['name']}"
        print(
            f"{name:<36} {row['metric']:<48} {_words(row['a']):>16} {_words(row['b']):>16}"
            f" {ratio:>9}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
