"""How much of planning a batch hides behind the training of the one before.

Above the times of a step: training it, planning its batch beside the one before, and
what ranks still waited for the plan. Below the share of planning for which nobody
waited, a dot for each repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from railx.errors import UserError
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import beside
from railx.figures.tables import FigureInput, Tables
from railx.figures.theme import INK, PALETTE, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, quantity

__all__ = ["FIGURE", "PlanningHiddenSettings"]

_TIMES = {
    "iteration_ms": ("Training step", PALETTE[0]),
    "planning_ms": ("Planning of its batch", PALETTE[2]),
    "planning_wait_ms": ("Wait for the plan", PALETTE[5]),
}


@dataclass(frozen=True)
class PlanningHiddenSettings(CanvasSettings):
    """Planning that training hides."""

    figure: Literal["planning_hidden"] = "planning_hidden"
    height_inches: Height = 3.4

    only: tuple[str, ...] = ()
    """Training runs to show, in that order; empty: all that plan while training."""


def draw(settings: PlanningHiddenSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of bars and one of shares, a place for each run.

    ValueError where no run plans while it trains.
    """
    frame = tables.read("iterations", "run", settings.only)
    rows = _per_repeat(frame)
    fidelity = fidelity_line(
        rows["fidelity"], "Means over the steps of a repeat; the slowest rank counts"
    )
    subtitle = (
        "A process beside the ranks plans the next batch while this one is trained. Hidden is"
        " planning for which no rank waits. Bars: means of the repeats."
    )
    with canvas(subtitle, fidelity) as page:
        upper, lower = page.subplots(1, 2, width_ratios=(3, 2))
        _times(upper, rows)
        _shares(lower, rows)
    return Drawn(_caption(rows), _alternative(rows), rows)


def _per_repeat(frame: DataFrame) -> DataFrame:
    """A row for each run and repeat, with electrical switching.

    Repeats that were disturbed count where all were.
    """
    part = frame[(frame["mode"] == "electrical") & frame["planning_ms"].notna()]
    if part.empty:
        raise UserError(
            "iterations: no run plans while it trains; allowed: a run with training.planning:"
            " while_training"
        )
    calm = part.groupby("run")["disturbed"].transform("all") | ~part["disturbed"].astype(bool)
    steps = part[calm].groupby(["run", "plan", "repeat", "iteration", "fidelity"], sort=False)
    slowest = steps[list(_TIMES)].max().reset_index()
    repeats = slowest.groupby(["run", "plan", "repeat", "fidelity"], sort=False)
    rows = repeats[list(_TIMES)].mean().reset_index()
    shares = 1 - rows["planning_wait_ms"] / rows["planning_ms"]
    return rows.assign(hidden_share=shares.clip(lower=0))


def _runs(rows: DataFrame) -> list[str]:
    return list(dict.fromkeys(rows["run"]))


def _times(axes: Axes, rows: DataFrame) -> None:
    runs = _runs(rows)
    means = rows.groupby("run")[list(_TIMES)].mean()
    height = 0.8 / len(_TIMES)
    for position, (column, (name, colour)) in enumerate(_TIMES.items()):
        at = [index + (position - 1) * height for index in range(len(runs))]
        values = [float(means[column][run]) for run in runs]
        axes.barh(at, values, 0.92 * height, color=colour)
        for y, value in zip(at, values, strict=True):
            text = f"{name}: {quantity(value)}"
            beside(axes, text, value, y, 4)
    axes.set_xlim(0, 1.6 * float(means.to_numpy().max()))
    axes.set_xlabel("Time of a step (ms)")
    axes.set_yticks(range(len(runs)), [label(run) for run in runs])
    axes.set_ylim(len(runs) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")


def _shares(axes: Axes, rows: DataFrame) -> None:
    runs = _runs(rows)
    for position, run in enumerate(runs):
        shares = 100 * rows.loc[rows["run"] == run, "hidden_share"]
        axes.barh(position, shares.mean(), 0.5, color=PALETTE[2])
        axes.plot(shares, [position] * len(shares), "o", color=INK, markersize=3.5)
        beside(axes, f"{quantity(float(shares.mean()))} %", float(shares.max()), position, 6)
    axes.set_xlim(0, 125)
    axes.set_xticks(range(0, 101, 25))
    axes.set_xlabel("Planning that is hidden (%)")
    axes.set_yticks(range(len(runs)), [""] * len(runs))
    axes.set_ylim(len(runs) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")


def _facts(rows: DataFrame) -> str:
    parts = []
    for run in _runs(rows):
        part = rows[rows["run"] == run].mean(numeric_only=True)
        parts.append(
            f"{label(run)}, {quantity(100 * part['hidden_share'])} % of"
            f" {quantity(part['planning_ms'])} ms hidden behind steps of"
            f" {quantity(part['iteration_ms'])} ms"
        )
    return "; ".join(parts)


def _caption(rows: DataFrame) -> str:
    repeats = int(rows.groupby("run").size().min())
    return (
        f"Planning of a batch beside the training of the one before: {_facts(rows)}. Means of"
        f" {repeats} repeat{'s' if repeats > 1 else ''} with electrical switching. Ranks and"
        " planner share the machine's processors, so both are slower than alone. No paper prints"
        " this share; FlexSP and InfiniPipe say that planning is hidden."
    )


def _alternative(rows: DataFrame) -> str:
    return (
        "Bars of the time of a training step, of planning its batch and of the wait for the plan,"
        f" beside the share of planning that is hidden: {_facts(rows)}."
    )


FIGURE = Figure(
    PlanningHiddenSettings,
    "Planning hidden by training",
    "flexsp",
    (
        FigureInput(
            "iterations",
            "training.iterations",
            "run plan mode reconfiguration_latency_ms iteration repeat rank iteration_ms "
            "planning_ms planning_wait_ms disturbed fidelity",
        ),
    ),
    draw,
)
