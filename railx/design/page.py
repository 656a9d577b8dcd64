"""A design as one page to explore: sliders over computed points, without a server."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from railx.design.front import Design, decided, design
from railx.design.point import DesignPoint, plan_words, setting_words
from railx.design.rates import RateStore
from railx.design.settings import DesignSettings
from railx.design.sizes import usable_share
from railx.errors import UserError
from railx.families import build_topology
from railx.io import write_text
from railx.performance.devices import device_named

_TEMPLATES = Path(__file__).parent / "templates"
#: Shares of failed servers that usable shares are computed for, beside the one that is
#: asked for; between them, a line.
_RATES = (0.0, 0.005, 0.01, 0.02, 0.04)
_WORDS = {
    "transceiver": "Transceiver price",
    "electrical_switch_port": "Switch port price",
    "ocs_port": "OCS port price",
    "node_switch_gb_s": "Node switch price",
    "node_mesh_gb_s": "Node mesh price",
    "copper_cable": "Copper cable price",
}


def sizes_of(gpus: int) -> tuple[int, ...]:
    """The numbers of devices on a page: a quarter, a half and all."""
    return tuple(sorted({size for size in (gpus // 4, gpus // 2, gpus) if size >= 16} | {gpus}))


def write_page(path: Path, answer: Design, store: RateStore | None = None) -> None:
    """Write the page of a design.

    The other sizes of its slider are searched, too, without limits; a size that no
    network has is left out.
    """
    answers = []
    for gpus in sizes_of(answer.settings.gpus):
        settings = replace(answer.settings, gpus=gpus, budget_usd=None, watts=None)
        if gpus == answer.settings.gpus:
            answers.append(decided(settings, answer.evaluated))
            continue
        with suppress(UserError):
            answers.append(design(settings, store))
    write_text(path, page_text(answer, answers))


def rendered(template: str, **values: Any) -> str:
    """A template of this room with its values."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template(template).render(**values)


def page_text(answer: Design, answers: Sequence[Design]) -> str:
    """The page: ``answers`` are of every size, without limits."""
    points = [(one.settings, point) for one in answers for point in one.points]
    components = sorted({name for _, point in points for name in point.cost.components})
    data = {
        "gpus": [one.settings.gpus for one in answers],
        "components": components,
        "rates": _rates(answer.settings),
        "points": [_plain(settings, point) for settings, point in points],
    }
    # No text ends the element that it stands in.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    error = answer.front[0].expected_error
    script = (_TEMPLATES / "design.js").read_text(encoding="utf-8")
    return rendered(
        "design.html.jinja",
        job=answer.settings,
        error=None if error is None else f"{100 * error:.1f} %",
        sliders=_sliders(answer.settings, [point for _, point in points], components, answers),
        front=[point.row() for point in answer.front],
        dropped=[
            drop
            for drop in answer.dropped
            if drop.network not in {point.name for point in answer.evaluated}
        ],
        data=Markup(text),
        script=Markup(script),
    )


def _rates(settings: DesignSettings) -> list[float]:
    return sorted({*_RATES, settings.faults})


def _plain(settings: DesignSettings, point: DesignPoint) -> dict[str, Any]:
    """What the page needs of a point."""
    topology = build_topology(point.graph)
    server = device_named(settings.devices).node_devices
    shares = [
        usable_share(
            point.graph, topology.chips, server, rate, settings.fault_samples, settings.seed
        ).share
        for rate in _rates(settings)
    ]
    cost = point.cost
    return {
        "network": point.name,
        "family": point.family,
        "gpus": settings.gpus,
        "chips": point.chips,
        "setting": setting_words(point.network),
        "plan": plan_words(point.plan),
        "step_s": point.step_s,
        "low_s": point.step_low_s,
        "high_s": point.step_high_s,
        "parts": {name: [count, cost.prices[name]] for name, count in cost.components.items()},
        "watts": point.watts,
        "usable": shares,
        "binds": point.binds,
        "all_to_all_gb_s": point.all_to_all_gb_s,
        "injection_gb_s": point.injection_gb_s,
        "notes": "; ".join(point.notes),
    }


def _sliders(
    settings: DesignSettings,
    points: Sequence[DesignPoint],
    components: Sequence[str],
    answers: Sequence[Design],
) -> list[dict[str, Any]]:
    """The sliders: logarithmic for dollars and prices."""
    sizes = [one.settings.gpus for one in answers]
    most = math.log10(4 * max(point.usd for point in points))
    least = math.log10(min(point.usd for point in points) / 4)
    budget = most if settings.budget_usd is None else math.log10(settings.budget_usd)
    rows = [
        ("gpus", "Devices", 0, len(sizes) - 1, 1, sizes.index(settings.gpus)),
        ("budget", "Budget", least, most, "any", budget),
        ("faults", "Failed servers", 0, 100 * _rates(settings)[-1], "any", 100 * settings.faults),
        *((name, _WORDS.get(name, name), -2, 2, 0.05, 0) for name in components),
    ]
    keys = ("id", "label", "min", "max", "step", "value")
    return [dict(zip(keys, row, strict=True)) for row in rows]
