"""How much of planning a batch hides behind the training of the one before.

Above the times of a step: training it, planning its batch beside the one before, and
what ranks still waited for the plan. Below the share of planning for which nobody
waited, a dot for each repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import beside, name_rows
from railx.figures.tables import Tables, records, where
from railx.figures.theme import INK, PALETTE, dot, label
from railx.figures.words import counted, fidelity_line, phrase, phrases, quantity

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
    rows = _per_repeat(tables.read("iterations", "run", settings.only))
    means = rows.groupby("run", sort=False).mean(numeric_only=True).reset_index()
    note = "Means over the steps of a repeat; the slowest rank counts"
    subtitle = """A process beside the ranks plans the next batch while this one is trained. Hidden
        is planning for which no rank waits. Bars: means of the repeats."""
    with canvas(subtitle, fidelity_line(rows["fidelity"], note)) as page:
        times, shares = page.subplots(1, 2, width_ratios=(3, 2))
        _times(times, means)
        for position, row in enumerate(records(means)):
            hidden = 100 * where(rows, run=row["run"])["hidden_share"]
            shares.barh(position, 100 * row["hidden_share"], 0.5, color=PALETTE[2])
            shares.plot(hidden, [position] * len(hidden), **dot(INK, 3.5))
            beside(shares, phrase("{hidden_share:q%}", row), float(hidden.max()), position, 6)
        shares.set(xlim=(0, 125), xlabel="Planning that is hidden (%)")
        shares.set_xticks(range(0, 101, 25))
        name_rows(times, [*map(label, means["run"])], above=0.55, below=0.55)
        name_rows(shares, [""] * len(means), above=0.55, below=0.55)
    facts = phrases(
        means,
        """{run:label}, {hidden_share:q%} of {planning_ms:q} ms hidden behind steps of
        {iteration_ms:q} ms""",
    )
    repeats = int(rows.groupby("run").size().min())
    caption = f"""Planning of a batch beside the training of the one before: {facts}. Means of
        {counted(repeats, "repeat")} with electrical switching. Ranks and planner share the
        machine's processors, so both are slower than alone. No paper prints this share; FlexSP and
        InfiniPipe say that planning is hidden."""
    alternative = f"""Bars of the time of a training step, of planning its batch and of the wait for
        the plan, beside the share of planning that is hidden: {facts}."""
    return Drawn(caption, alternative, rows)


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


def _times(axes: Axes, means: DataFrame) -> None:
    height = 0.8 / len(_TIMES)
    for position, (column, (name, colour)) in enumerate(_TIMES.items()):
        at = np.arange(len(means)) + (position - 1) * height
        bars = axes.barh(at, means[column], 0.92 * height, color=colour)
        texts = [f"{name}: {quantity(value)}" for value in means[column]]
        axes.bar_label(bars, texts, padding=4)
    longest = float(means[[*_TIMES]].to_numpy().max())
    axes.set(xlim=(0, 1.6 * longest), xlabel="Time of a step (ms)")


FIGURE = declare(
    PlanningHiddenSettings,
    "Planning hidden by training",
    "flexsp",
    draw,
    iterations="training.iterations: run plan mode reconfiguration_latency_ms iteration repeat"
    " rank iteration_ms planning_ms planning_wait_ms disturbed fidelity",
)
