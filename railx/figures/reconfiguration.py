"""Iteration time and stall share of training runs against reconfiguration latency.

The latency is that of the optical switches; lines are fabric modes. Electrical runs
know no reconfiguration and give the level that the others are held against (Opus,
evaluation of on-demand and provisioned switching). An iteration takes as long as its
slowest rank. The stall is what the controller accounts as waiting for light paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    GREY,
    MODE_LABELS,
    canvas,
    colours,
    label,
    panel_title,
    quantity,
    share_legend,
)
from railx.settings import Between

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "ReconfigurationSettings"]

_CAPTION = """\
Training runs with emulated optical switches. Above, the iteration time against the
reconfiguration latency, when light paths are asked for on demand or provisioned ahead;
the dashed line is the run without optical switching. Below, the share of the iteration
that ranks spend waiting for light paths. The electrical runs are measured; in the
others the training is real and the switches are emulated delays.
"""
_ALTERNATIVE = (
    "Lines of the iteration time and of the share of it spent waiting for light paths "
    "over the reconfiguration latency, one line per fabric mode, with bands for the spread "
    "over iterations."
)

_COLUMNS = (
    "run",
    "plan",
    "parallelism",
    "device",
    "mode",
    "reconfiguration_latency_ms",
    "iteration",
    "rank",
    "iteration_ms",
    "stall_ms",
    "fidelity",
)
_KEYS = ["parallelism", "plan", "device", "mode", "reconfiguration_latency_ms"]


@dataclass(frozen=True)
class ReconfigurationSettings(CanvasSettings):
    """Iteration time against reconfiguration latency."""

    figure: Literal["reconfiguration"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Training runs to show, in that order; empty: all that there are."""

    lower_quantile: Annotated[float, Between(0, 0.5)]
    """Lower end of the band over the iterations."""

    upper_quantile: Annotated[float, Between(0.5, 1)]
    """Upper end of the band over the iterations."""

    show_iterations: bool
    """Whether each iteration is drawn as a dot."""


def draw(settings: ReconfigurationSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One column of panels per parallelism and plan.

    The iteration time is above, the stall share below.
    """
    frame = read_frames(inputs, "iterations", _COLUMNS, "run", settings.only)
    steps = _steps(frame)
    groups = list(steps.groupby(["parallelism", "plan", "device"], sort=False))
    low, high = settings.lower_quantile, settings.upper_quantile
    subtitle = (
        f"Line: median over iterations. Band: {100 * low:.0f} % to {100 * high:.0f} % of"
        " them. Dots: iterations."
    )
    footnote = fidelity_line(frame["fidelity"], shows=_origins(frame))
    with canvas(
        settings, output, "Iteration time against reconfiguration latency", subtitle, footnote
    ) as figure:
        panels = figure.subplots(2, len(groups), sharex=True, squeeze=False, height_ratios=[1.7, 1])
        for column, ((parallelism, plan, device), rows) in enumerate(groups):
            _lines(panels[0, column], rows, "iteration_ms", settings)
            _lines(panels[1, column], rows, "stall_percent", settings)
            title = f"{label(str(plan))}\n{label(str(parallelism))}, {str(device).upper()}"
            panels[0, column].set_title(panel_title(title, len(groups), settings))
            panels[1, column].set_xlabel("Reconfiguration latency (ms)")
            _latency_axis(panels[1, column], sorted(set(steps["reconfiguration_latency_ms"])))
            for panel in panels[:, column]:
                panel.set_ylim(bottom=0)
        panels[0, 0].set_ylabel("Iteration time (ms)")
        panels[1, 0].set_ylabel("Stalled (%)")
        found = {
            text: handle
            for axes in panels.flat
            for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        share_legend(figure, list(found.values()), list(found), len(found))
    return Drawn(_CAPTION, _ALTERNATIVE, steps)


def _steps(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per iteration: its slowest rank's time and the mean stall share.

    The share is of the ranks' time.
    """
    frame = frame.assign(
        reconfiguration_latency_ms=frame["reconfiguration_latency_ms"].fillna(0.0),
        stall_percent=100 * frame["stall_ms"].fillna(0.0) / frame["iteration_ms"],
    )
    grouped = frame.groupby([*_KEYS, "run", "iteration"], sort=False, dropna=False)
    return grouped.agg(
        iteration_ms=("iteration_ms", "max"), stall_percent=("stall_percent", "mean")
    ).reset_index()


def _origins(frame: pd.DataFrame) -> dict[str, str]:
    """Which modes have which fidelity.

    An emulated line so is never taken for a measured one.
    """
    pairs = frame[["fidelity", "mode"]].drop_duplicates()
    return {
        str(fidelity): ", ".join(label(mode).lower() for mode in modes)
        for fidelity, modes in pairs.groupby("fidelity")["mode"]
    }


def _lines(axes: Axes, rows: pd.DataFrame, column: str, settings: ReconfigurationSettings) -> None:
    colour = colours(MODE_LABELS)
    for mode in [mode for mode in MODE_LABELS if (rows["mode"] == mode).any()]:
        mine = rows[rows["mode"] == mode]
        by_latency = mine.groupby("reconfiguration_latency_ms")[column]
        middle, low, high = (
            by_latency.quantile(q) for q in (0.5, settings.lower_quantile, settings.upper_quantile)
        )
        if mode == "electrical":
            if column == "iteration_ms":
                axes.axhline(
                    float(middle.iloc[0]),
                    color=colour[mode],
                    linewidth=1.6,
                    linestyle=(0, (5, 2)),
                    label=label(mode),
                )
                axes.axhspan(
                    float(low.iloc[0]),
                    float(high.iloc[0]),
                    color=colour[mode],
                    alpha=0.15,
                    linewidth=0,
                )
            continue
        axes.plot(
            middle.index,
            middle,
            "o-",
            color=colour[mode],
            markersize=4.5,
            linewidth=1.8,
            label=label(mode),
        )
        axes.fill_between(middle.index, low, high, color=colour[mode], alpha=0.18, linewidth=0)
        if settings.show_iterations:
            axes.plot(
                mine["reconfiguration_latency_ms"],
                mine[column],
                ".",
                color=colour[mode],
                markersize=3,
                alpha=0.35,
            )


def _latency_axis(axes: Axes, latencies: Sequence[float]) -> None:
    """Logarithmic beyond the smallest latency, linear down to 0.

    There is a tick at each latency that was run.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    positive = [latency for latency in latencies if latency > 0]
    if positive and max(positive) / min(positive) > 5:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.6)
    axes.xaxis.set_major_locator(FixedLocator(list(latencies)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
    axes.tick_params(axis="x", labelcolor=GREY)


FIGURE = Figure(
    settings=ReconfigurationSettings,
    title="Iteration time against reconfiguration latency",
    paper="opus",
    inputs=(FigureInput("iterations", "training.iterations"),),
    draw=draw,
)
