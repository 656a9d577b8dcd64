"""Runs on emulated optical switches against reconfiguration latency: times and stalls.

The stall is what the controller accounts as waiting for light paths. Electrical runs
have no reconfiguration and are the reference of the others (Opus, evaluation of
on-demand and provisioned switching). Medians and intervals are over repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from railx.figures.figure import Canvas, Choice, Drawn, Tables, figure, reads
from railx.figures.panels import entries, panel_title, share_legend, ticks
from railx.figures.repeats import REPEAT_COLUMNS, per_repeat, repeats_words
from railx.figures.tables import records, stack, to_frame, where
from railx.figures.theme import GREY, INK, MODE_COLOURS, MODES, dot, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, phrase, phrases, quantity, span
from railx.intervals import estimate
from railx.settings import Between

# Training runs: iteration time and stall share, a column of panels for each

#: What the panels of a column show, from above, and the words on their axes.
_SHOWN = {"iteration_ms": "Iteration time (ms)", "stall_percent": "Stalled (%)"}
_KEYS = ["run", "parallelism", "plan", "device", "mode", "reconfiguration_latency_ms"]


@dataclass(frozen=True)
class ReconfigurationSettings(Choice):
    """Iteration time against reconfiguration latency."""

    confidence: Annotated[float, Between(0.5, 0.999)] = 0.95
    """Confidence of the intervals over repeats."""
    show_repeats: bool = True
    """Whether each repeat is drawn as a dot."""


@figure("Iteration time against reconfiguration latency", "opus", height=5.8)
@reads(iterations=f"training.iterations: {REPEAT_COLUMNS}")
def reconfiguration(settings: ReconfigurationSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One column of panels per run.

    The iteration time is above, the stall share below.
    """
    frame = tables.read("iterations", "run", settings.only)
    repeats = per_repeat(frame)
    points = _points(repeats, settings.confidence)
    runs = list(points["run"].unique())
    subtitle = f"""Lines: medians over repeats, bars: {100 * settings.confidence:g} % intervals,
        dots: repeats, crosses: repeats set aside. Here: {repeats_words(repeats)}."""
    # An emulated line is never taken for a measured one.
    modes = frame.drop_duplicates(["fidelity", "mode"]).groupby("fidelity")["mode"]
    origins = {
        str(fidelity): ", ".join(map(str.lower, map(label, rows))) for fidelity, rows in modes
    }
    with canvas(subtitle, fidelity_line(frame["fidelity"], shows=origins)) as page:
        panels = page.subplots(2, len(runs), sharex=True, squeeze=False, height_ratios=[1.7, 1])
        latencies = sorted(set(points["reconfiguration_latency_ms"]))
        for column, run in enumerate(runs):
            rows = where(points, run=run)
            for axes, shown in zip(panels[:, column], _SHOWN, strict=True):
                if settings.show_repeats:
                    _dots(axes, where(repeats, run=run), shown)
                _lines(axes, where(rows, shows=shown))
                axes.set_ylim(0, 1.1 * max(axes.dataLim.y1, 1.0))
            title = phrase("{plan:label}\n{parallelism:label}, {device:upper}", rows.iloc[0])
            panels[0, column].set_title(panel_title(title, len(runs), settings))
            panels[1, column].set_xlabel("Latency (ms)")
            _latency_axis(panels[1, column], latencies)
        for axes, words in zip(panels[:, 0], _SHOWN.values(), strict=True):
            axes.set_ylabel(words)
        legend = {text: mark for axes in panels.flat for text, mark in entries(axes).items()}
        share_legend(page, legend, len(legend))
    parts = []
    for run in runs:
        stalls = _longest(points, run, "stall_percent")
        if len(stalls):
            texts = phrases(stalls, "{mode:lower} {median:q} %", ", ")
            parts.append(f"{label(run)} stalled {texts} at {quantity(stalls['ms'].iloc[0])} ms")
    alternative = f"""Lines of the iteration time and of the share of it spent waiting for light
        paths over the reconfiguration latency, a column per run: {"; ".join(parts)}."""
    keys = [*_KEYS, "repeat", "disturbed", "fidelity"]
    values = repeats.melt(keys, list(_SHOWN), var_name="shows", value_name="value")
    # The medians, and below them the repeats behind them.
    data = stack([points[points["shows"].isin(_SHOWN)], values])
    return Drawn(_caption(points, repeats), alternative, data)


def _points(repeats: DataFrame, confidence: float) -> DataFrame:
    """One row per setting and what is shown: median, interval, how many repeats."""
    rows = []
    for keys, part in where(repeats, counts=True).groupby(_KEYS, sort=False):
        for shown in (*_SHOWN, "over_electrical"):
            median = estimate(list(part[shown]), confidence)
            ends = median.ends or (np.nan, np.nan)
            rows.append((*keys, shown, median.value, *ends, median.samples))
    return to_frame(rows, [*_KEYS, "shows", "median", "low", "high", "repeats"])


def _lines(axes: Axes, points: DataFrame) -> None:
    for mode, colour in MODE_COLOURS.items():
        line = where(points, mode=mode).sort_values("reconfiguration_latency_ms")
        if line.empty:
            continue
        if mode != "electrical":
            x = line["reconfiguration_latency_ms"]
            axes.plot(x, line["median"], "o-", color=colour, label=label(mode))
            axes.vlines(x, line["low"], line["high"], color=colour, linewidth=3.2, alpha=0.45)
        elif (line["shows"] == "iteration_ms").all():
            median, low, high = map(float, line[["median", "low", "high"]].iloc[0])
            axes.axhline(median, label=label(mode), color=colour, linestyle=(0, (5, 2)))
            axes.axhspan(low, high, color=colour, alpha=0.15, linewidth=0)


def _dots(axes: Axes, repeats: DataFrame, shown: str) -> None:
    for mode, colour in MODE_COLOURS.items():
        for disturbed, mark in ((False, "."), (True, "x")):
            if mode != "electrical" or shown == "iteration_ms":
                rows = where(repeats, mode=mode, disturbed=disturbed)
                style = dot(colour, 4.5, marker=mark, alpha=0.6)
                axes.plot(rows["reconfiguration_latency_ms"], rows[shown], **style)


def _latency_axis(axes: Axes, latencies: Sequence[float]) -> None:
    """Logarithmic beyond the smallest latency, linear down to 0.

    Ticks are latencies of runs that are not too near to each other.
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


def _longest(points: DataFrame, run: str, shows: str) -> DataFrame:
    """Median and interval of each optical mode at the longest latency of a run."""
    rows = where(points, run=run, shows=shows)
    optical = rows[rows["mode"] != "electrical"]
    return where(
        optical, reconfiguration_latency_ms=optical["reconfiguration_latency_ms"].max()
    ).rename(columns={"reconfiguration_latency_ms": "ms"})


def _caption(points: DataFrame, repeats: DataFrame) -> str:
    sentences = []
    for run in dict.fromkeys(points["run"]):
        rows = _longest(points, run, "over_electrical")
        parts = [
            phrase("{mode:lower} {median:q}", row)
            + (phrase(" ({low:q} to {high:q})", row) if row["low"] == row["low"] else "")
            for row in records(rows)
        ]
        if parts:
            sentences.append(f"""{label(run)} at {quantity(rows["ms"].iloc[0])} ms:
                {", ".join(parts)} times the electrical iteration.""")
    return f"""Training with emulated optical switches, {repeats_words(repeats)}.
        {" ".join(sentences)} Above, the iteration time of the slowest rank; below, the share of it
        in which ranks wait for light paths. The electrical runs are measured; in the others the
        training is real and the switches are emulated delays."""


# Programs in plain torch: time and stalls against what windows do not hide


@figure("Plain torch on switched rails", "opus", height=6.4)
@reads(
    settings="live.settings: program mode reconfiguration_latency_ms controller_restarted ranks"
    " iteration_ms predicted_iteration_ms all_stalls_ms all_predicted_stalls_ms fidelity"
)
def live_switching(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """Iteration time and stalls of programs in plain torch."""
    frame = tables.read("settings", "program", settings.only)
    programs = list(frame["program"].unique())
    subtitle = """Lines: the time at the least latency and, for each change of circuits, the latency
        less its window. Windows are those of the same iterations, by the ranks' own clocks;
        crosses: the controller was killed and started again in the middle."""
    footnote = fidelity_line(frame["fidelity"], "Ranks share the cores of one machine")
    title = "FSDP2, tensor parallelism and 1F1B of plain torch on switched rails"
    with canvas(subtitle, footnote, title=title) as page:
        grid = page.subplots(len(programs), 2, squeeze=False)
        for (left, right), program in zip(grid, programs, strict=True):
            rows = where(frame, program=program)
            electrical = where(rows, mode="electrical")["iteration_ms"]
            if len(electrical):
                left.axhline(electrical.iloc[0], color=MODE_COLOURS["electrical"], linewidth=0.8)
            _pairs(left, rows, "iteration_ms", "predicted_iteration_ms")
            _pairs(right, rows, "all_stalls_ms", "all_predicted_stalls_ms")
            title = f"{label(program)}, {rows['ranks'].iloc[0]} ranks"
            left.set(title=title, ylabel="Iteration (ms)")
            right.set(title="Waiting for light, all groups", ylabel="Stall (ms per iteration)")
        for axes in grid[-1]:
            axes.set_xlabel("Switching latency (ms)")
        legend = {label(mode): dot(MODE_COLOURS[mode]) for mode in MODES}
        legend["By the windows"] = {"color": INK}
        legend[label("electrical")] = {"color": MODE_COLOURS["electrical"], "linewidth": 0.8}
        share_legend(page, legend, 4)
    caption = "Iteration time and waiting for light of programs in plain torch on emulated rails."
    compared = where(frame, mode="provisioned", controller_restarted=False)
    compared = compared[compared["all_predicted_stalls_ms"] > 0]
    if len(compared):
        ratios = compared["all_stalls_ms"] / compared["all_predicted_stalls_ms"]
        caption += f""" Provisioned, the controller's account of the stalls is {span(ratios)} times
            what the windows leave of the latency."""
    switched = frame[frame["mode"] != "electrical"].groupby(["program", "mode"], sort=False)
    longest = stack(rows.sort_values("reconfiguration_latency_ms").tail(1) for _, rows in switched)
    row = """{program:label}, {mode:lower}: {iteration_ms:q} ms per iteration at
        {reconfiguration_latency_ms:q} ms"""
    return Drawn(caption, f"Two panels per program. {phrases(longest, row)}.", frame)


def _pairs(axes: Axes, rows: DataFrame, measured: str, predicted: str) -> None:
    """Marks for what was measured, a line for the rule."""
    for mode in MODES:
        line = where(rows, mode=mode).sort_values("reconfiguration_latency_ms")
        for restarted, marker in ((False, "o"), (True, "x")):
            marks = where(line, controller_restarted=restarted)
            x = marks["reconfiguration_latency_ms"]
            if not restarted:
                axes.plot(x, marks[predicted], color=MODE_COLOURS[mode])
            axes.plot(x, marks[measured], **dot(MODE_COLOURS[mode], marker=marker))
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
