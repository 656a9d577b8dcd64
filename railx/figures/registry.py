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

from railx.errors import UserError
from railx.figures.canvas import canvas
from railx.figures.figure import CanvasSettings, Figure
from railx.figures.tables import FigureFiles, Tables, refuse
from railx.io import write_json, write_text
from railx.settings import Registered

__all__ = ["FIGURES", "FigureSettings", "draw_figure", "figure_module", "figure_of"]

#: Every figure: the modules of this package that declare one.
FIGURES: tuple[str, ...] = (
    "all_claims",
    "rail_rings",
    "topology_metrics",
    "all_to_all_bandwidth",
    "cost",
    "cost_model_error",
    "price_sensitivity",
    "cost_scale",
    "claim_map",
    "network_prices",
    "live_switching",
    "switching_overhead",
    "switching_windows",
    "step_switches",
    "step_sweeps",
    "step_windows",
    "step_model",
    "plans_at_scale",
    "sharded_replicas",
    "rail_savings",
    "rail_bills",
    "rail_claims",
    "switch_technologies",
    "switched_circuits",
    "rail_steps",
    "reconfiguration",
    "cluster_time",
    "loss_curves",
    "planning_hidden",
    "adaptive_speedups",
    "planners",
    "all_to_all_degree",
    "corpus_lengths",
    "sequence_parallel_plan",
    "underlay",
    "pipeline_speedups",
    "pipeline_schedule",
    "iteration_parts",
    "held_memory",
    "stage_memory",
    "channel_loads",
    "ring_all_reduce",
    "collective_time",
    "agreement",
    "latency_load",
    "largest_job",
    "step_time",
    "utilisation",
)
#: Modules that declare several figures; else a module has the name of its figure.
_SHARED_MODULES = {
    "added_time": ("switching_overhead", "step_switches"),
    "circuit_panels": ("rail_steps", "switched_circuits"),
    "claim_maps": ("claim_map", "rail_claims", "price_sensitivity"),
    "collectives": ("ring_all_reduce", "collective_time"),
    "comparisons": ("adaptive_speedups", "network_prices", "pipeline_speedups"),
    "cost": ("cost", "cost_scale"),
    "model_errors": ("agreement", "cost_model_error", "step_model"),
    "pipelines": ("pipeline_schedule", "stage_memory", "held_memory"),
    "plan_times": ("planners", "iteration_parts"),
    "plans": ("sequence_parallel_plan", "underlay", "all_to_all_degree"),
    "rails": ("rail_bills", "rail_savings"),
    "scale": ("plans_at_scale", "sharded_replicas"),
    "switched_runs": ("reconfiguration", "live_switching"),
    "tenancy": ("largest_job", "utilisation"),
    "topologies": ("topology_metrics", "all_to_all_bandwidth", "channel_loads"),
    "training_runs": ("loss_curves", "planning_hidden", "cluster_time"),
    "windows": ("switching_windows", "step_windows", "switch_technologies"),
}


def figure_module(name: str) -> str:
    """The dotted name of the module that declares a figure.

    Raises ValueError for a name that is not in the list.
    """
    if name not in FIGURES:
        raise UserError(f"figure: got {name!r}; allowed: {', '.join(FIGURES)}")
    module = next((key for key, names in _SHARED_MODULES.items() if name in names), name)
    return f"railx.figures.{module}"


def figure_of(name: str) -> Figure:
    """The figure of this name; ValueError for a name that is not in the list."""
    members = vars(importlib.import_module(figure_module(name))).values()
    figures = [member for member in members if isinstance(member, Figure)]
    return next(figure for figure in figures if getattr(figure.settings, "figure", "") == name)


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
        raise UserError(
            f"input {', '.join(missing)}: no file given for {settings.figure}; allowed: one file"
            " or more"
        )
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
