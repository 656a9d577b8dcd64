"""Iteration time and stall share of training runs against reconfiguration latency.

The latency is that of the optical switches; lines are fabric modes. Electrical runs
know no reconfiguration and give the level that the others are held against (Opus,
evaluation of on-demand and provisioned switching). The stall is what the controller
accounts as waiting for light paths. Medians and intervals are over repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.figures.canvas import panel_title, share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import ticks
from railx.figures.repeats import REPEAT_COLUMNS, middle, per_repeat, repeats_words
from railx.figures.tables import FigureInput, Tables, records, stack, to_frame
from railx.figures.theme import GREY, MODE_LABELS, colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, quantity
from railx.settings import Between

__all__ = ["FIGURE", "ReconfigurationSettings"]

#: What the panels of a column show, from above, and the words on their axes.
_SHOWN = {"iteration_ms": "Iteration time (ms)", "stall_percent": "Stalled (%)"}
_KEYS = ["run", "parallelism", "plan", "device", "mode", "reconfiguration_latency_ms"]


@dataclass(frozen=True)
class ReconfigurationSettings(CanvasSettings):
    """Iteration time against reconfiguration latency."""

    figure: Literal["reconfiguration"] = "reconfiguration"
    height_inches: Height = 5.8

    only: tuple[str, ...] = ()
    """Training runs to show, in that order; empty: all that there are."""

    confidence: Annotated[float, Between(0.5, 0.999)] = 0.95
    """Confidence of the intervals over repeats."""

    show_repeats: bool = True
    """Whether each repeat is drawn as a dot."""


def draw(settings: ReconfigurationSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One column of panels per run.

    The iteration time is above, the stall share below.
    """
    frame = tables.read("iterations", "run", settings.only)
    repeats = per_repeat(frame)
    points = _points(repeats, settings.confidence)
    runs = list(dict.fromkeys(points["run"]))
    subtitle = (
        f"Lines: medians over repeats, bars: {100 * settings.confidence:g} % intervals (bootstrap),"
        f" dots: repeats, crosses: repeats set aside. Here: {repeats_words(repeats)}."
    )
    footnote = fidelity_line(frame["fidelity"], shows=_origins(frame))
    with canvas(subtitle, footnote) as page:
        panels = page.subplots(2, len(runs), sharex=True, squeeze=False, height_ratios=[1.7, 1])
        latencies = sorted(set(points["reconfiguration_latency_ms"]))
        for column, run in enumerate(runs):
            rows = points[points["run"] == run]
            for axes, shown in zip(panels[:, column], _SHOWN, strict=True):
                if settings.show_repeats:
                    _dots(axes, repeats[repeats["run"] == run], shown)
                _lines(axes, rows[rows["shows"] == shown])
                axes.set_ylim(0, 1.1 * max(axes.dataLim.y1, 1.0))
            title = (
                f"{label(str(rows['plan'].iloc[0]))}\n{label(str(rows['parallelism'].iloc[0]))},"
                f" {str(rows['device'].iloc[0]).upper()}"
            )
            panels[0, column].set_title(panel_title(title, len(runs), settings))
            panels[1, column].set_xlabel("Latency (ms)")
            _latency_axis(panels[1, column], latencies)
        for axes, words in zip(panels[:, 0], _SHOWN.values(), strict=True):
            axes.set_ylabel(words)
        legend = {
            text: handle
            for axes in panels.flat
            for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        share_legend(page, legend, len(legend))
    return Drawn(_caption(points, repeats), _alternative(points, runs), _data(points, repeats))


def _points(repeats: DataFrame, confidence: float) -> DataFrame:
    """One row per setting and what is shown: median, interval, how many repeats."""
    chosen = repeats[repeats["counts"]]
    rows: list[dict[str, Any]] = []
    for keys, part in chosen.groupby(_KEYS, sort=False):
        for shown in (*_SHOWN, "over_electrical"):
            median = middle(list(part[shown]), confidence)
            rows.append(
                {
                    **dict(zip(_KEYS, keys, strict=True)),
                    "shows": shown,
                    "median": median.value,
                    "low": median.low,
                    "high": median.high,
                    "repeats": median.samples,
                }
            )
    return to_frame(rows)


def _origins(frame: DataFrame) -> dict[str, str]:
    """Which modes have which fidelity.

    An emulated line so is never taken for a measured one.
    """
    pairs = frame[["fidelity", "mode"]].drop_duplicates()
    return {
        str(fidelity): ", ".join(label(mode).lower() for mode in modes)
        for fidelity, modes in pairs.groupby("fidelity")["mode"]
    }


def _lines(axes: Axes, points: DataFrame) -> None:
    colour = colours(MODE_LABELS)
    for mode in [mode for mode in MODE_LABELS if (points["mode"] == mode).any()]:
        mine = points[points["mode"] == mode].sort_values("reconfiguration_latency_ms")
        if mode == "electrical":
            if (mine["shows"] == "iteration_ms").all():
                only = mine.iloc[0]
                look: dict[str, Any] = {"color": colour[mode], "linestyle": (0, (5, 2))}
                axes.axhline(float(only["median"]), label=label(mode), **look)
                axes.axhspan(
                    *(float(only[end]) for end in ("low", "high")),
                    color=colour[mode],
                    alpha=0.15,
                    linewidth=0,
                )
            continue
        x = mine["reconfiguration_latency_ms"]
        axes.plot(x, mine["median"], "o-", color=colour[mode], label=label(mode))
        axes.vlines(x, mine["low"], mine["high"], color=colour[mode], linewidth=3.2, alpha=0.45)


def _dots(axes: Axes, repeats: DataFrame, shown: str) -> None:
    colour = colours(MODE_LABELS)
    for mode in MODE_LABELS:
        if mode == "electrical" and shown != "iteration_ms":
            continue
        mine = repeats[repeats["mode"] == mode]
        for disturbed, mark in ((False, "."), (True, "x")):
            chosen = mine[mine["disturbed"] == disturbed]
            axes.plot(
                chosen["reconfiguration_latency_ms"],
                chosen[shown],
                mark,
                color=colour[mode],
                markersize=4.5,
                alpha=0.6,
            )


def _latency_axis(axes: Axes, latencies: Sequence[float]) -> None:
    """Logarithmic beyond the smallest latency, linear down to 0.

    Ticks stand at latencies that were run and are not too near to each other.
    """
    positive = [latency for latency in latencies if latency > 0]
    if positive and max(positive) / min(positive) > 5:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.6)
    shown = [latency for latency in latencies if latency == 0]
    for latency in positive:
        if latency >= 2.4 * (shown[-1] if shown else 0):
            shown.append(latency)
    ticks(axes.xaxis, shown)
    axes.tick_params(axis="x", labelcolor=GREY)


def _data(points: DataFrame, repeats: DataFrame) -> DataFrame:
    """The medians, and below them the repeats behind them."""
    values = repeats.melt(
        id_vars=[*_KEYS, "repeat", "disturbed", "fidelity"],
        value_vars=list(_SHOWN),
        var_name="shows",
        value_name="value",
    )
    drawn = points[points["shows"].isin(_SHOWN)]
    return stack([drawn, values])


def _longest(points: DataFrame, run: str, shows: str) -> dict[str, Any]:
    """Median and interval of each optical mode at the longest latency of a run."""
    rows = points[(points["run"] == run) & (points["shows"] == shows)]
    optical = rows[rows["mode"] != "electrical"]
    last = optical[
        optical["reconfiguration_latency_ms"] == optical["reconfiguration_latency_ms"].max()
    ]
    return {str(row["mode"]): row for row in records(last)}


def _caption(points: DataFrame, repeats: DataFrame) -> str:
    sentences = []
    for run in dict.fromkeys(points["run"]):
        parts = []
        latency = 0.0
        for mode, row in _longest(points, str(run), "over_electrical").items():
            latency = float(row["reconfiguration_latency_ms"])
            text = f"{label(mode).lower()} {quantity(row['median'])}"
            if row["low"] == row["low"]:
                text += f" ({quantity(row['low'])} to {quantity(row['high'])})"
            parts.append(text)
        if parts:
            sentences.append(
                f"{label(str(run))} at {quantity(latency)} ms: {', '.join(parts)} times the"
                " electrical iteration."
            )
    return (
        f"Training with emulated optical switches, {repeats_words(repeats)}."
        f" {' '.join(sentences)} Above, the iteration time of the slowest rank; below, the share of"
        " it in which ranks wait for light paths. The electrical runs are measured; in the others"
        " the training is real and the switches are emulated delays."
    )


def _alternative(points: DataFrame, runs: Sequence[str]) -> str:
    parts = []
    for run in runs:
        stalls = _longest(points, run, "stall_percent")
        values = ", ".join(
            f"{label(mode).lower()} {quantity(row['median'])} %" for mode, row in stalls.items()
        )
        if values:
            latency = next(iter(stalls.values()))["reconfiguration_latency_ms"]
            parts.append(f"{label(run)} stalled {values} at {quantity(latency)} ms")
    return (
        "Lines of the iteration time and of the share of it spent waiting for light paths over the"
        f" reconfiguration latency, a column per run: {'; '.join(parts)}."
    )


FIGURE = Figure(
    ReconfigurationSettings,
    "Iteration time against reconfiguration latency",
    "opus",
    (FigureInput("iterations", "training.iterations", REPEAT_COLUMNS),),
    draw,
)
