"""``railx validate``: compare the model of a training step with measured runs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.places import in_repository
from railx.settings import load
from workflow.commands.shared import add_flag, command, print_json

_EPILOG = """\
examples:
  railx validate resources/measured/vtrain_multi.csv
  railx validate mine.csv --json
  railx validate mine.csv --fit --constants megatron_a100 > mine.yaml
  railx validate mine.csv --constants mine.yaml

A file has the columns of one of the files of resources/measured. Errors are relative, of
seconds of a step; groups of memory say so."""


def add(commands: Any) -> None:
    line = "compare the model of a training step with measured runs"
    parser = command(commands, "validate", line, f"{line.capitalize()}.", _EPILOG)
    parser.add_argument("file", type=Path, metavar="FILE.csv", help="measured runs")
    parser.add_argument(
        "--constants",
        metavar="NAME",
        help="fitted constants: a name of resources/performance/constants.yaml, or a file that"
        " --fit printed (default: those of each row's device and program)",
    )
    shown = parser.add_mutually_exclusive_group()
    add_flag(shown, "--json", "print one JSON object")
    add_flag(shown, "--rows", "print every row: measured, ours, error")
    add_flag(shown, "--fit", "fit constants to the file and print them as YAML")
    parser.set_defaults(action=_validate)


def _validate(options: argparse.Namespace) -> None:
    from railx.performance.validation import constants_of, errors_by_group, predict, read_set

    kind, cases = read_set(in_repository(options.file))
    given = _constants(options.constants) if options.constants else None
    if options.fit:
        _print_fit(cases, given or constants_of(cases, kind.program)[0])
        return
    constants = [given] * len(cases) if given else constants_of(cases, kind.program)
    seconds, memory = predict(cases, constants)
    names = sorted({values.name for values in constants})
    if options.rows:
        for case, ours_s, ours_gib in zip(cases, seconds, memory, strict=True):
            print(_line(case, ours_s, ours_gib))
        return
    groups = errors_by_group(cases, seconds, memory)
    if options.json:
        value = {
            "set": kind.name,
            "constants": ", ".join(names),
            "groups": [asdict(group) for group in groups],
        }
        print_json(value)
        return
    print(f"{kind.name}, {len(cases)} rows, constants {', '.join(names)}")
    width = max(len(group.group) for group in groups)
    print(
        f"{'group':<{width}}  {'rows':>5}  {'mean error':>10}  {'median ratio':>12}  {'worst':>6}"
    )
    for group in groups:
        print(
            f"{group.group:<{width}}  {group.rows:>5}  {group.mean_error:>10.1%}"
            f"  {group.median_ratio:>12.3f}  {group.worst_error:>6.1%}"
        )


def _constants(name: str) -> Any:
    from railx.performance.programs import Constants, constants_named

    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        return constants_named(name)
    import yaml

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"--constants: got {path}: {error}; allowed: a file of --fit") from None
    single = isinstance(entries, dict) and len(entries) == 1
    if not single or not all(isinstance(values, dict) for values in entries.values()):
        raise UserError(f"--constants: got {path}; allowed: one entry, as --fit prints it")
    [(entry, values)] = entries.items()
    return load(Constants, {"name": str(entry), **values}, str(entry))


def _print_fit(cases: Any, start: Any) -> None:
    import yaml

    from railx.performance.fits import fit, names_to_fit

    timed = [case for case in cases if case.seconds is not None]
    names = names_to_fit(start)
    if len(timed) <= len(names):
        allowed = f"more than {len(names)}, the numbers to fit"
        raise UserError(f"FILE.csv: got {len(timed)} rows with times; allowed: {allowed}")
    fitted = asdict(fit(timed, start, names))
    name = f"{fitted.pop('name')}_fitted"
    fitted["fitted"] = list(fitted["fitted"])
    print(yaml.safe_dump({name: fitted}, sort_keys=False), end="")


def _line(case: Any, seconds: float, memory_gib: float) -> str:
    plan = case.plan
    degrees = f"d{plan.data} t{plan.tensor} c{plan.context} p{plan.pipeline}"
    label = f"{case.model.name} {case.device} {degrees} mb{plan.micro_batch}x{plan.micro_batches}"
    parts = [f"{label:<58}"]
    for measured, ours, unit in (
        (case.seconds, seconds, "s"),
        (case.memory_gib, memory_gib, "GiB"),
    ):
        if measured is not None:
            parts.append(f"{measured:9.4g} {unit} ours {ours:9.4g} {ours / measured - 1:+7.1%}")
    return "  ".join(parts)
