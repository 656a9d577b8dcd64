"""``railx list``: the choices of conf/, and the catalogues of ``railx advise``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from railx.text import aligned
from workflow.commands.shared import add_flag, command, print_json

Row = dict[str, Any]


def add(commands: Any) -> None:
    parser = command(
        commands,
        "list",
        f"what can be chosen: {', '.join(KINDS)}",
        "Print what can be chosen, a line for each.",
        "example:\n  railx list topologies\n  railx list claims --json",
    )
    parser.add_argument("kind", metavar="KIND", choices=tuple(KINDS), help=", ".join(KINDS))
    add_flag(parser, "--json", "print a JSON list of rows")
    parser.set_defaults(action=_list)


def _list(options: argparse.Namespace) -> None:
    rows = list(KINDS[options.kind]())
    if options.json:
        print_json(rows)
        return
    cells = [list(map(str, row.values())) for row in rows]
    print("\n".join(aligned([list(rows[0]), *cells])))


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


def _models() -> Iterator[Row]:
    from railx.performance.models import Model
    from railx.performance.resources import catalogue

    for name, model in catalogue("models.yaml", Model).items():
        yield {
            "name": name,
            "parameters_billions": round(model.parameters / 1e9, 2),
            "layers": model.layers,
            "experts": f"{model.experts_per_token} of {model.experts}" if model.experts else "none",
            "source": model.source,
        }


def _devices() -> Iterator[Row]:
    from railx.performance.devices import Device
    from railx.performance.resources import catalogue

    for name, device in catalogue("devices.yaml", Device).items():
        peaks = ", ".join(f"{precision} {peak:g}" for precision, peak in device.peak_tflops.items())
        others = ("capacity_gb", "memory_gb_s", "node_devices", "fast_gb_s", "slow_gb_s")
        yield {"name": name, "peak_tflops": peaks, **{key: getattr(device, key) for key in others}}


#: What can be listed.
KINDS: dict[str, Callable[[], Iterator[Row]]] = {
    "topologies": _topologies,
    "planners": _planners,
    "claims": _claims,
    "figures": _figures,
    "experiments": _experiments,
    "models": _models,
    "devices": _devices,
}


def _choices(group: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The choices of a group: name, plain settings, the sentence that describes it."""
    from workflow.choices import about
    from workflow.composer import compose_choice
    from workflow.mounts import CONF, choices

    for name in choices(group):
        yield name, compose_choice(CONF, group, name), about(CONF, group, name)
