"""``railx design``: which network and which plan for a job, at what price."""

from __future__ import annotations

import argparse
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.effort import estimate, gathered
from railx.errors import UserError, allowed_names
from railx.settings import SettingsError, to_dict
from workflow.commands.shared import add_flag, check_work, command, print_answer

if TYPE_CHECKING:
    from railx.design.settings import DesignSettings

_EPILOG = """\
examples:
  railx design gpus=4096 model=llama3_70b budget_usd=40e6
  railx design gpus=1024 model=llama3_8b objective=cost faults=2% --json
  railx design gpus=256 model=llama3_8b families=[torus_2d,fat_tree] --simulate
  railx design gpus=1024 model=llama3_8b networks=[railx_hyperx_m4n2,mine] --html design.html
  railx design design=small objective=joules

keys: those of conf/design (gpus, model, devices, budget_usd, watts, faults, objective, families,
price_set and others); faults may be a percentage, families=[] means all. networks=[...] takes
choices of conf/topology, own ones among them, instead of the search space. Step times are of the
model in docs/performance.md, prices of resources/catalogue/prices.csv or another
catalogue=FILE."""
_GROUP = "design"
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")


def add(commands: Any) -> None:
    line = "which network and plan for a model on a number of devices, at what price"
    parser = command(commands, "design", line, f"{line.capitalize()}.", _EPILOG)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="what is asked")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page to explore it")
    parser.add_argument(
        "--experiment", metavar="NAME", help="write an experiment that does this as a run"
    )
    add_flag(parser, "--json", "print one JSON object")
    add_flag(
        parser,
        "--simulate",
        "replay the best points, and an all-to-all in packets, beside closed forms",
    )
    parser.set_defaults(action=_design)


def _design(options: argparse.Namespace) -> None:
    from railx.design.front import design
    from railx.design.text import design_lines, simulated_lines
    from railx.progress import told
    from workflow.compilation import announce_compilation
    from workflow.stages import named_files
    from workflow.stages.design import rate_store

    with gathered() as costs:
        settings = design_settings(options.settings)
    if options.experiment:
        print(_write_experiment(options.experiment, options.settings))
        return
    if words := estimate(costs):
        print(f"design: {words}", file=sys.stderr, flush=True)
    announce_compilation("design")
    store = rate_store(named_files(to_dict(settings)))
    simulated = []
    with told("design"):
        answer = design(settings, store)
        if options.simulate:
            from railx.design.simulate import simulate

            simulated = simulate(answer, store)
        if options.html is not None:
            from railx.design.page import write_page

            write_page(options.html, answer, store)
    value = answer.as_dict() | ({"simulated": simulated} if options.simulate else {})
    print_answer(value, [*design_lines(answer), *simulated_lines(simulated)], options)


def design_settings(words: list[str]) -> DesignSettings:
    """The settings of KEY=VALUE words; SettingsError names the key as given there."""
    from workflow.config import compose_stage

    overrides = []
    chosen: list[str] | None = None
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise UserError(f"{word}: got no setting; allowed: KEY=VALUE, e.g. gpus=4096")
        if key == "networks":
            if chosen not in (None, names := _names(value)):
                raise UserError(f"networks: got {chosen} and {names}; allowed: one of them")
            chosen = names
        elif key == _GROUP:
            overrides.append(word)
        else:
            overrides.append(f"{_GROUP}.{key}={_as_share(key, value)}")
    try:
        settings: DesignSettings = compose_stage(overrides, [_GROUP])[_GROUP]
        if chosen is not None:
            from dataclasses import replace

            settings = replace(settings, networks={name: _topology(name) for name in chosen})
    except SettingsError as error:
        key = error.key.removeprefix(f"{_GROUP}.")
        message = error.message.replace(f"{error.key}=", f"{key}=")
        raise SettingsError(key, message) from None
    return settings


def _as_share(key: str, value: str) -> str:
    """A percentage of faults as a share; any other value as it is."""
    percent = _PERCENT.fullmatch(value) if key == "faults" else None
    return f"{Decimal(percent[1]) / 100:f}" if percent else value


def _names(value: str) -> list[str]:
    listed = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    names = [name.strip() for name in listed.split(",")]
    if not all(names):
        raise UserError(f"networks: got {value!r}; allowed: [NAME, ...], choices of conf/topology")
    return names


def _topology(name: str) -> Any:
    from workflow.config import compose_stage
    from workflow.mounts import choices

    if name not in choices("topology"):
        allowed = allowed_names(name, choices("topology"))
        raise UserError(f"networks: got {name!r}; allowed: {allowed}")
    return compose_stage([f"topology={name}"], ["topology"])["topology"]


def _write_experiment(name: str, words: list[str]) -> str:
    """Write conf/experiment/NAME.yaml with these settings; returns the next command."""
    from railx.io import write_text
    from workflow.mounts import CONF
    from workflow.settings import NAME

    if not NAME.fullmatch(name):
        allowed = "letters, digits and underscores, a letter first"
        raise UserError(f"--experiment: got {name!r}; allowed: {allowed}")
    check_work()
    path = CONF / "experiment" / f"{name}.yaml"
    for taken in (path, CONF / _GROUP / f"{name}.yaml"):
        if taken.exists():
            raise UserError(f"--experiment: got {name!r}, which {taken} is; allowed: another name")
    import yaml

    values: dict[str, Any] = {"defaults": ["default"]}
    for word in words:
        key, _, value = word.partition("=")
        if key == _GROUP:
            values["defaults"] = [value]
        elif key == "networks":
            allowed = "networks in conf/design/NAME.yaml"
            raise UserError(f"networks: got a list with --experiment; allowed: {allowed}")
        else:
            values[key] = yaml.safe_load(_as_share(key, value))
    job = yaml.safe_dump(values, sort_keys=False)
    head = f"# `railx design {' '.join(words)}` as a run.\n"
    write_text(CONF / _GROUP / f"{name}.yaml", head + job)
    experiment = yaml.safe_dump({"defaults": [_GROUP], _GROUP: name}, sort_keys=False)
    write_text(path, head + experiment)
    return f"wrote {path}; run it: railx reproduce {name}"
