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
    for name in _choices("topology"):
        yield {"name": name, "family": _key("topology", name, "family"), "what": _about(name)}


def _planners() -> Iterator[Row]:
    from railx.planning.planners import PLANNERS

    kinds = {planner.name: planner.kind or "either" for planner in PLANNERS}
    for name in _choices("planner"):
        planner = _key("planner", name, "planner")
        yield {
            "name": name,
            "planner": planner,
            "plans": kinds[planner].replace("_", " "),
            "what": _about(name, "planner"),
        }


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

    for name in _choices("figure"):
        figure = _key("figure", name, "figure")
        declared = figure_of(figure)
        yield {"name": name, "figure": figure, "paper": declared.paper, "title": declared.title}


def _experiments() -> Iterator[Row]:
    for name in _choices("experiment"):
        yield {"name": name, "what": _about(name, "experiment")}


#: What can be listed.
KINDS: dict[str, Callable[[], Iterator[Row]]] = {
    "topologies": _topologies,
    "planners": _planners,
    "claims": _claims,
    "figures": _figures,
    "experiments": _experiments,
}


def _choices(group: str) -> list[str]:
    from workflow.mounts import choices

    return choices(group)


def _key(group: str, name: str, key: str) -> str:
    """A key of a choice, or of the choice that it inherits the key from."""
    from workflow.choices import choice_content
    from workflow.mounts import CONF

    content = choice_content(CONF, group, name)
    if key in content:
        return str(content[key])
    parents = [parent for parent in content.get("defaults", ()) if isinstance(parent, str)]
    values = (_key(group, parent, key) for parent in reversed(parents) if parent != "_self_")
    return next(filter(None, values), "")


def _about(name: str, group: str = "topology") -> str:
    """The first sentence of the comment that describes a choice."""
    from workflow.choices import about
    from workflow.mounts import CONF

    return about(CONF, group, name)
