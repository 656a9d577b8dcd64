"""How much of the grid a stream of jobs uses, and what it costs the jobs.

By system, queue and failures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.errors import UserError
from railx.figures.canvas import panel_title, share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import beside, entries
from railx.figures.tables import FigureInput, Tables
from railx.figures.theme import INK, PALETTE, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line
from railx.settings import NotEmpty

__all__ = ["FIGURE", "UtilisationSettings"]

_COLOURS = {"railx": PALETTE[0], "hammingmesh": PALETTE[1], "torus": PALETTE[5]}
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

    figure: Literal["utilisation"] = "utilisation"
    height_inches: Height = 6.4

    policy: Annotated[str, NotEmpty()] = "best_fit"
    """Placement policy of the rows to show."""

    offered_load: float | None = None
    """Offered load of the rows to show, as a share of the grid; null: the highest."""


def draw(settings: UtilisationSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One column per queue: utilisation above, below it what it costs the jobs.

    That is rejected jobs (reject) or the mean wait; dots are the single draws. Raises
    ValueError when no row has the policy and offered load of the settings.
    """
    frame = tables.read("utilisation")
    load = frame["offered_load"].max() if settings.offered_load is None else settings.offered_load
    rows = frame[(frame["policy"] == settings.policy) & np.isclose(frame["offered_load"], load)]
    if rows.empty:
        allowed = sorted(
            {f"{p} with {o:g}" for p, o in zip(frame["policy"], frame["offered_load"], strict=True)}
        )
        raise UserError(
            f"policy: no rows for {settings.policy} with offered load {load:g}; allowed:"
            f" {', '.join(allowed)}"
        )
    queues = [queue for queue in _QUEUES if queue in set(rows["queue"])]
    subtitle = (
        f"Offered load {100 * load:.3g} % of the whole grid, {label(settings.policy).lower()}; bars"
        f" are means of {_streams(rows)} streams of jobs, dots the single ones."
    )
    note = (
        "Event-driven simulation of placements in units of nodes, no network; sizes and durations"
        " are our own choice"
    )
    with canvas(subtitle, fidelity_line(rows["fidelity"], note)) as page:
        panels = page.subplots(2, len(queues), sharex=True, squeeze=False)
        for upper, lower, queue in zip(*panels, queues, strict=True):
            part = rows[rows["queue"] == queue]
            _bars(upper, part, "utilisation")
            title = f"{label(queue)}: {_QUEUES[queue]}"
            upper.set_title(panel_title(title, len(queues), settings))
            upper.set(ylim=(0, 100), ylabel="Busy nodes (%)")
            _bars(lower, part, "rejected_share" if queue == "reject" else "wait_mean_hours")
            lower.set_ylabel("Rejected jobs (%)" if queue == "reject" else "Mean wait (h)")
        share_legend(page, entries(panels[0, 0]), 3)
    return Drawn(_caption(rows, load), _alternative(rows), rows)


def _bars(axes: Axes, rows: DataFrame, column: str) -> None:
    scenarios = list(dict.fromkeys(rows["scenario"]))
    systems = [system for system in _NAMES if system in set(rows["system"])]
    width = 0.8 / len(systems)
    scale = 1 if column == "wait_mean_hours" else 100
    for i, system in enumerate(systems):
        part = rows[rows["system"] == system].groupby("scenario", sort=False)[column]
        at = np.arange(len(scenarios)) + (i - (len(systems) - 1) / 2) * width
        means = scale * part.mean().reindex(scenarios).astype(float)
        axes.bar(at, means, 0.92 * width, color=_COLOURS[system], label=_NAMES[system])
        for x, scenario, mean in zip(at, scenarios, means, strict=True):
            values = scale * part.get_group(scenario).astype(float)
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
                beside(
                    axes,
                    f"{mean:.2g}",
                    float(x),
                    float(values.max()),
                    0,
                    3,
                    ha="center",
                    va="baseline",
                )
    if column != "utilisation":  # room for the numbers above the dots
        axes.set_ylim(0, max(1.2 * scale * float(rows[column].astype(float).max()), 0.1))
    names = [_scenario(rows[rows["scenario"] == name]) for name in scenarios]
    axes.set_xticks(np.arange(len(scenarios)), names)
    axes.grid(visible=False, axis="x")


def _scenario(rows: DataFrame) -> str:
    """Words for the scenario of the rows."""
    failed = int(rows["failed_nodes"].iloc[0])
    return f"{failed} nodes failed" if failed else label(str(rows["scenario"].iloc[0]))


def _streams(rows: DataFrame) -> int:
    """Streams of jobs behind a bar, at most."""
    return int(rows.groupby(["system", "queue", "scenario"]).size().max())


def _means(rows: DataFrame, queue: str) -> str:
    """Mean use by scenario and system."""
    part = rows[rows["queue"] == queue]
    parts = []
    for _, some in part.groupby("scenario", sort=False):
        means = some.groupby("system")["utilisation"].mean()
        values = ", ".join(
            f"{label(system)} {100 * float(means[system]):.3g} %"
            for system in _NAMES
            if system in means.index
        )
        parts.append(f"{_scenario(some)} {values}")
    return "; ".join(parts)


def _caption(rows: DataFrame, load: float) -> str:
    queues = [queue for queue in _QUEUES if queue in set(rows["queue"])]
    sentences = [f"{_QUEUES[queue].capitalize()}: {_means(rows, queue)}." for queue in queues]
    text = (
        f"Share of the grid that is busy under random streams of jobs that ask for"
        f" {100 * load:.3g} % of it, means of {_streams(rows)}. {' '.join(sentences)} All systems"
        " see the same arrivals and failures."
    )
    means = rows.groupby(["system", "queue", "scenario"])["utilisation"].mean().unstack("system")
    if {"railx", "hammingmesh"} <= set(means.columns):
        apart = float((means["railx"] - means["hammingmesh"]).abs().max())
        text += (
            " RailX and HammingMesh place by the same rule"
            + (
                " and come out equal"
                if apart < 1e-9
                else f" and differ by {100 * apart:.2g} points"
            )
            + "; they differ in the switches, which node counts do not show."
        )
    return (
        f"{text} On the torus with failed nodes the largest jobs may never find a block; they then"
        " count as rejected even where jobs wait, and are missing from its mean wait. The paper"
        " prints no numbers: sizes, durations and failure rates are choices of this project."
    )


def _alternative(rows: DataFrame) -> str:
    queues = [queue for queue in _QUEUES if queue in set(rows["queue"])]
    parts = "; ".join(f"{queue}: {_means(rows, queue)}" for queue in queues)
    return (
        "Bars of the share of busy nodes by system, and below them of rejected jobs or the mean"
        f" wait, a column per queue. Busy nodes, {parts}."
    )


FIGURE = Figure(
    UtilisationSettings,
    "Use of the grid by a stream of jobs",
    "railx",
    (
        FigureInput(
            "utilisation",
            "tenancy.utilisation",
            "system policy queue scenario failed_nodes offered_load utilisation "
            "rejected_share wait_mean_hours fidelity",
        ),
    ),
    draw,
)
