"""The list of figures, how to look one up and how to draw it.

A figure is imported only when it is looked up, so that a changed module redraws its
figures alone. A module needs no plotting library until it draws, so that settings are
checked without one.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Annotated

from railx.figures.canvas import canvas
from railx.figures.figure import CanvasSettings, Figure
from railx.figures.tables import FigureFiles, Tables, refuse
from railx.io import write_json, write_text
from railx.settings import Registered

__all__ = ["FIGURES", "FigureSettings", "draw_figure", "figure_module", "figure_of"]

#: The module of this package that declares each figure.
FIGURES: dict[str, str] = {
    "all_claims": "all_claims",
    "rail_rings": "rail_rings",
    "topology_metrics": "topologies",
    "all_to_all_bandwidth": "topologies",
    "cost": "cost",
    "cost_model_error": "model_errors",
    "price_sensitivity": "claim_maps",
    "cost_scale": "cost",
    "claim_map": "claim_maps",
    "network_prices": "comparisons",
    "live_switching": "switched_runs",
    "switching_overhead": "added_time",
    "switching_windows": "windows",
    "step_switches": "added_time",
    "step_sweeps": "step_sweeps",
    "step_windows": "windows",
    "step_model": "model_errors",
    "plans_at_scale": "scale",
    "sharded_replicas": "scale",
    "rail_savings": "rails",
    "rail_bills": "rails",
    "rail_claims": "claim_maps",
    "switch_technologies": "windows",
    "switched_circuits": "circuit_panels",
    "rail_steps": "circuit_panels",
    "reconfiguration": "switched_runs",
    "cluster_time": "training_runs",
    "loss_curves": "training_runs",
    "planning_hidden": "training_runs",
    "adaptive_speedups": "comparisons",
    "planners": "plan_times",
    "all_to_all_degree": "plans",
    "corpus_lengths": "corpus_lengths",
    "sequence_parallel_plan": "plans",
    "underlay": "plans",
    "pipeline_speedups": "comparisons",
    "pipeline_schedule": "pipelines",
    "iteration_parts": "plan_times",
    "held_memory": "pipelines",
    "stage_memory": "pipelines",
    "channel_loads": "topologies",
    "ring_all_reduce": "collectives",
    "collective_time": "collectives",
    "agreement": "model_errors",
    "latency_load": "latency_load",
    "largest_job": "tenancy",
    "step_time": "step_time",
    "utilisation": "tenancy",
}


def figure_module(name: str) -> str:
    """The dotted name of the module that declares a figure.

    Raises ValueError for a name that is not in the list.
    """
    if name not in FIGURES:
        refuse(f"figure: got {name!r}", FIGURES)
    return f"railx.figures.{FIGURES[name]}"


def figure_of(name: str) -> Figure:
    """The figure of this name; ValueError for a name that is not in the list."""
    declared: Figure = getattr(importlib.import_module(figure_module(name)), name)
    return declared


def _members() -> dict[str, type]:
    return {name: figure_of(name).settings for name in FIGURES}


#: The settings of any figure; ``figure`` names the figure.
FigureSettings = Annotated[CanvasSettings, Registered("figure", _members)]


def draw_figure(settings: CanvasSettings, inputs: FigureFiles, output: Path) -> None:
    """Draw the figure that ``settings.figure`` names.

    ``inputs`` holds the files under its input keys. ``output`` is written with each of
    ``ENDINGS``: the images, the data behind them, the caption alone and all words.
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
    page = functools.partial(canvas, settings, output, title=figure.title)
    drawn = figure.draw(settings, Tables(figure.inputs, inputs), page)
    published = {table.key for table in figure.inputs if table.published}
    files = {key: [Path(path) for path in paths] for key, paths in inputs.items()}
    write_text(output.with_suffix(".csv"), drawn.data.to_csv(index=False, lineterminator="\n"))
    caption, alternative = (
        " ".join(text.split()) for text in (drawn.caption, drawn.alternative_text)
    )
    write_text(output.with_suffix(".rst"), f"{caption}\n")
    write_json(
        output.with_suffix(".json"),
        {
            "title": drawn.title or figure.title,
            "paper": drawn.paper or figure.paper,
            "caption": f"{caption}\n",
            "alternative_text": alternative,
            "published": [path.name for key in files if key in published for path in files[key]],
            "tables": [
                _name(path, output) for key in files if key not in published for path in files[key]
            ],
        },
    )


def _name(path: Path, output: Path) -> str:
    """A table as a reader finds it: its path below the results of the experiment."""
    results = output.resolve().parent.parent
    full_path = path.resolve()
    return str(full_path.relative_to(results) if full_path.is_relative_to(results) else path.name)
