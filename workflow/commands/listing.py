"""``railx list``: the choices of conf/."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from railx.text import aligned
from workflow.commands.shared import add_flag, command

__all__ = ["KINDS", "add"]

Row = dict[str, Any]


def add(commands: Any) -> None:
    parser = command(
        commands,
        "list",
        "the choices of conf/: topologies, planners, claims, figures, experiments",
        "Print what can be chosen, a line for each, with the first sentence of its file.",
        "example:\n  railx list topologies\n  railx list claims --json",
    )
    parser.add_argument("kind", metavar="KIND", choices=tuple(KINDS), help=", ".join(KINDS))
    add_flag(parser, "--json", "print a JSON list of rows")
    parser.set_defaults(action=_list)


def _list(options: argparse.Namespace) -> None:
    rows = list(KINDS[options.kind]())
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("\n".join(aligned([list(rows[0]), *(list(row.values()) for row in rows)])))


def _topologies() -> Iterator[Row]:
    for name, plain, what in _choices("topology"):
        yield {"name": name, "family": plain["family"], "what": what}


def _planners() -> Iterator[Row]:
    from railx.planning.planners import PLANNERS

    kinds = {planner.name: planner.kind or "either" for planner in PLANNERS}
    for name, plain, what in _choices("planner"):
        plans = kinds[plain["planner"]].replace("_", " ")
        yield {"name": name, "planner": plain["planner"], "plans": plans, "what": what}


def _claims() -> Iterator[Row]:
    from workflow.resources import all_claims

    for claim in all_claims():
        yield {
            "id": claim.id,
            "paper": claim.paper,
            "kind": claim.settings.kind,
            "sentence": " ".join(claim.settings.sentence.split()),
        }


def _figures() -> Iterator[Row]:
    from railx.figures import figure_of

    for name, plain, _ in _choices("figure"):
        figure = figure_of(plain["figure"])
        yield {
            "name": name,
            "figure": plain["figure"],
            "paper": figure.paper,
            "title": figure.title,
        }


def _experiments() -> Iterator[Row]:
    from workflow.choices import about
    from workflow.mounts import CONF, choices

    for name in choices("experiment"):
        yield {"name": name, "what": about(CONF, "experiment", name)}


#: What can be listed.
KINDS: dict[str, Callable[[], Iterator[Row]]] = {
    "topologies": _topologies,
    "planners": _planners,
    "claims": _claims,
    "figures": _figures,
    "experiments": _experiments,
}


def _choices(group: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The choices of a group: name, plain settings, the sentence that describes it."""
    from workflow.choices import about
    from workflow.composer import compose_choice
    from workflow.mounts import CONF, choices

    for name in choices(group):
        yield name, compose_choice(CONF, group, name), about(CONF, group, name)
