"""How much of the grid a stream of jobs uses, and what it costs the jobs.

By system, queue and failures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import INK, canvas, label, quantity, share_legend
from railx.settings import NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "UtilisationSettings"]

_CAPTION = """\
The share of the grid that is busy under a random stream of jobs, and what it costs the
jobs: rejections, or the mean wait. All systems see the same arrivals and failures.
RailX and HammingMesh place by the same rule and come out equal; they differ in the
switches, which node counts do not show. On the torus with failed nodes the largest jobs
may never find a block; they then count as rejected even where jobs wait, and are
missing from its mean wait. The paper prints no numbers: sizes, durations and failure
rates are choices of this project.
"""
_ALTERNATIVE = (
    "Bars of the share of busy nodes and of rejections or waiting times, by system, with "
    "and without failed nodes."
)

_COLUMNS = (
    "system",
    "policy",
    "queue",
    "scenario",
    "failed_nodes",
    "offered_load",
    "utilisation",
    "rejected_share",
    "wait_mean_hours",
    "fidelity",
)
_COLOURS = {"railx": "#0072B2", "hammingmesh": "#E69F00", "torus": "#D55E00"}
_NAMES = {
    "railx": "RailX",
    "hammingmesh": "HammingMesh (same rule)",
    "torus": "Torus (contiguous blocks)",
}
_QUEUES = {
    "reject": "jobs that do not fit are rejected",
    "fifo": "jobs wait in order",
    "backfill": "jobs wait, later ones may pass",
}


@dataclass(frozen=True)
class UtilisationSettings(CanvasSettings):
    """Use of the grid by a stream of jobs."""

    figure: Literal["utilisation"]
    """Which figure it is."""

    policy: Annotated[str, NotEmpty()]
    """Placement policy of the rows to show."""

    offered_load: float | None
    """Offered load of the rows to show, as a share of the grid; null: the highest."""


def draw(settings: UtilisationSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One column per queue: utilisation above, below it what it costs the jobs.

    That is rejected jobs (reject) or the mean wait; dots are the single draws. Raises
    ValueError when no row has the policy and offered load of the settings.
    """
    from matplotlib.ticker import PercentFormatter

    frame = read_frames(inputs, "utilisation", _COLUMNS)
    load = frame["offered_load"].max() if settings.offered_load is None else settings.offered_load
    rows = frame[(frame["policy"] == settings.policy) & np.isclose(frame["offered_load"], load)]
    if rows.empty:
        known = sorted(
            {f"{p} with {o:g}" for p, o in zip(frame["policy"], frame["offered_load"], strict=True)}
        )
        raise ValueError(
            f"policy: no rows for {settings.policy} with offered load {load:g}; allowed:"
            f" {', '.join(known)}"
        )
    queues = [queue for queue in _QUEUES if queue in set(rows["queue"])]
    subtitle = (
        f"Offered load {load:.0%} of the whole grid, {label(settings.policy).lower()}; bars are"
        " means, dots single streams."
    )
    note = (
        "Event-driven simulation of placements in units of nodes, no network; sizes and durations"
        " are our own choice"
    )
    with canvas(
        settings,
        output,
        "Use of the grid by a stream of jobs",
        subtitle,
        fidelity_line(rows["fidelity"], note),
    ) as figure:
        panels = figure.subplots(2, len(queues), sharex=True, squeeze=False)
        for upper, lower, queue in zip(*panels, queues, strict=True):
            own = rows[rows["queue"] == queue]
            _bars(upper, own, "utilisation")
            upper.set_title(f"{label(queue)}: {_QUEUES[queue]}")
            upper.set(ylim=(0, 1), ylabel="Busy nodes / all nodes")
            _bars(lower, own, "rejected_share" if queue == "reject" else "wait_mean_hours")
            lower.set_ylabel("Rejected jobs / all jobs" if queue == "reject" else "Mean wait (h)")
            for axes in (upper, lower) if queue == "reject" else (upper,):
                axes.yaxis.set_major_formatter(
                    PercentFormatter(1, decimals=None if axes is upper else 0)
                )
        handles, names = panels[0, 0].get_legend_handles_labels()
        share_legend(figure, handles, names, 3)
    return Drawn(_CAPTION, _ALTERNATIVE, rows)


def _bars(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    scenarios = list(dict.fromkeys(rows["scenario"]))
    systems = [system for system in _NAMES if system in set(rows["system"])]
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        own = rows[rows["system"] == system].groupby("scenario", sort=False)[column]
        at = np.arange(len(scenarios)) + (i - (len(systems) - 1) / 2) * width
        means = own.mean().reindex(scenarios).astype(float)
        axes.bar(at, means, 0.92 * width, color=_COLOURS[system], label=_NAMES[system])
        for x, scenario, mean in zip(at, scenarios, means, strict=True):
            values = own.get_group(scenario).astype(float)
            axes.plot(
                [x] * len(values),
                values,
                linestyle="none",
                marker="o",
                markersize=2.6,
                color=INK,
                alpha=0.7,
            )
            if np.isfinite(mean):
                text = (
                    quantity(mean)
                    if column == "wait_mean_hours"
                    else f"{mean:.0%}"
                    if mean >= 0.1
                    else f"{mean:.1%}"
                )
                axes.annotate(
                    text,
                    (float(x), float(values.max())),
                    (0, 3),
                    textcoords="offset points",
                    ha="center",
                )
    if column != "utilisation":  # room for the numbers above the dots
        axes.set_ylim(0, max(1.2 * float(rows[column].astype(float).max()), 1e-3))
    failed = rows.groupby("scenario")["failed_nodes"].first()
    names = [
        f"{failed[name]} nodes failed" if failed[name] else label(str(name)) for name in scenarios
    ]
    axes.set_xticks(np.arange(len(scenarios)), names)
    axes.grid(visible=False, axis="x")


FIGURE = Figure(
    settings=UtilisationSettings,
    title="Use of the grid by a stream of jobs",
    paper="railx",
    inputs=(FigureInput("utilisation", "tenancy.utilisation"),),
    draw=draw,
)
