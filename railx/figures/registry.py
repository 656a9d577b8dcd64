"""The list of figures, how to look one up and how to draw it.

A figure is imported only when it is looked up, so that a changed module redraws its
figures alone. A module needs no plotting library until it draws, so that settings are
checked without one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from railx.figures.canvas import canvas, narrow_canvas
from railx.figures.figure import CanvasSettings, Drawn, Figure
from railx.figures.tables import FigureFiles, Tables, refuse
from railx.figures.words import fidelity_line
from railx.io import write_json, write_text
from railx.settings import Registered

#: Modules of this package with the figures that each declares.
_MODULES = {
    "all_claims": "all_claims",
    "topologies": "topology_metrics all_to_all_bandwidth channel_loads rail_rings",
    "cost": "cost cost_scale",
    "model_errors": "cost_model_error step_model agreement",
    "claim_maps": "price_sensitivity claim_map rail_claims",
    "comparisons": "network_prices adaptive_speedups pipeline_speedups",
    "added_time": "switching_overhead step_switches",
    "windows": "switching_windows step_windows switch_technologies",
    "step_sweeps": "step_sweeps",
    "rails": "rail_savings rail_bills switched_circuits rail_steps",
    "training_runs": "cluster_time loss_curves planning_hidden live_switching reconfiguration",
    "plan_times": "planners iteration_parts all_to_all_degree",
    "plans": "corpus_lengths sequence_parallel_plan underlay",
    "pipelines": "pipeline_schedule held_memory stage_memory",
    "simulations": "ring_all_reduce collective_time latency_load",
    "tenancy": "largest_job utilisation fault_trace",
    "step_times": "step_time node_prices design_front arena plans_at_scale sharded_replicas",
}
#: The module of each figure.
FIGURES = {name: module for module, names in _MODULES.items() for name in names.split()}


def figure_module(name: str) -> str:
    """The dotted name of a figure's module; ValueError for a name not in the list."""
    if name not in FIGURES:
        refuse(f"figure: got {name!r}", FIGURES)
    return f"railx.figures.{FIGURES[name]}"


def figure_of(name: str) -> Figure:
    """The figure of this name; ValueError for a name that is not in the list."""
    declared: Figure = getattr(importlib.import_module(figure_module(name)), name)
    return declared


@cache
def _settings(names: tuple[str, ...]) -> dict[str, type[CanvasSettings]]:
    return {name: figure_of(name).settings for name in names}


#: The settings of any figure; ``figure`` names the figure.
FigureSettings = Annotated[CanvasSettings, Registered("figure", lambda: _settings(tuple(FIGURES)))]


def draw_figure(settings: CanvasSettings, inputs: FigureFiles, output: Path) -> None:
    """Draw the figure that ``settings.figure`` names.

    ``inputs`` holds the files under its input keys. ``output`` is written with several
    endings: the images, the data behind them, the caption alone and all words.
    Raises ValueError for a missing or unknown input and for a table that does not hold
    what the figure needs.
    """
    figure = figure_of(settings.figure)
    keys = [table.key for table in figure.inputs]
    unknown = sorted(set(inputs) - set(keys))
    if unknown:
        refuse(f"input {', '.join(unknown)}: not known to {settings.figure}", keys)
    missing = [table.key for table in figure.inputs if table.required and not inputs.get(table.key)]
    if missing:
        got = f"input {', '.join(missing)}: no file given for {settings.figure}"
        refuse(got, "one file or more")
    drawn = _draw(canvas, figure, settings, inputs, output)
    _draw_narrow(figure, settings, inputs, output)
    published = {table.key for table in figure.inputs if table.published}
    files = {key: [Path(path) for path in paths] for key, paths in inputs.items()}
    write_text(output.with_suffix(".csv"), drawn.data.to_csv(index=False, lineterminator="\n"))
    caption = " ".join(drawn.caption.split())
    alternative = " ".join(drawn.alternative_text.split())
    write_text(output.with_suffix(".rst"), f"{caption}\n")
    words = {
        "title": drawn.title or figure.title,
        "paper": drawn.paper or figure.paper,
        "caption": f"{caption}\n",
        "alternative_text": alternative,
        "published": [path.name for key in files if key in published for path in files[key]],
        "tables": [
            _name(path, output) for key in files if key not in published for path in files[key]
        ],
    }
    write_json(output.with_suffix(".json"), words)


def _draw(
    opened: Any, figure: Figure, settings: CanvasSettings, inputs: FigureFiles, output: Path
) -> Drawn:
    """Draw a figure on a page that a canvas opens."""

    def page(
        subtitle: str, fidelities: Iterable[str], note: str = "", title: str = "", **shows: Any
    ) -> Any:
        line = fidelity_line(fidelities, note, **shows)
        return opened(settings, output, subtitle, line, title or figure.title)

    return figure.draw(settings, Tables(figure.inputs, inputs), page)


def _draw_narrow(
    figure: Figure, settings: CanvasSettings, inputs: FigureFiles, output: Path
) -> None:
    """Write the narrow form; where a figure has none, the wide one stands for it."""
    from railx.figures.narrow import NoNarrowForm

    try:
        _draw(narrow_canvas, figure, settings, inputs, output)
    except NoNarrowForm:
        wide = output.with_suffix(".svg").read_text(encoding="utf-8")
        write_text(output.with_suffix(".narrow.svg"), wide)


def _name(path: Path, output: Path) -> str:
    """A table as a reader finds it: its path below the results of the experiment."""
    results = output.resolve().parent.parent
    full_path = path.resolve()
    return str(full_path.relative_to(results) if full_path.is_relative_to(results) else path.name)
