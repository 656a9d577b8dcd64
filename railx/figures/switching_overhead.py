"""What optical switching adds to a training step, published and ours.

Every panel is one source against its own step without switching: the paper's runs on
Perlmutter with emulated delays, its simulations, the training runs of this experiment,
live, and generated steps, replayed. Absolute times differ by job and machine and are
not drawn.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from railx.figures.figure import Axes, Canvas, DataFrame, Drawn, Height, RunChoice, Tables, declare
from railx.figures.panels import published_line, share_legend, ticks
from railx.figures.published_steps import PUBLISHED_STEPS, published_steps
from railx.figures.repeats import REPEAT_COLUMNS, middle, per_repeat, repeats_words
from railx.figures.tables import stack, to_frame, where
from railx.figures.theme import (
    INK,
    LINE_POINTS,
    MODES,
    OPUS_JOBS,
    PUBLISHED,
    PUBLISHED_LINE,
    label,
    mode_colours,
    published_series,
)
from railx.figures.words import fidelity_line, phrases, quantity
from railx.settings import Between

__all__ = ["FIGURE", "SwitchingOverheadSettings"]

#: Generated steps that have a published one beside them.
_GENERATED = {
    **OPUS_JOBS,
    "h200_128": "H200, 128 GPUs",
    "gb200_512": "GB200, 512 GPUs",
    "smoke": "smoke run of 8 GPUs",
    "deepseek2d": "DeepSeek, PP and TP only",
}
_SOURCES = {
    "ours": "Ours, live",
    "replay": "Ours, replay",
    "simulation": "Published, simulation",
    "perlmutter": "Published, Perlmutter",
}
_COLUMNS = 4
#: Characters of a bold line over a panel.
_WIDE = 26
_LATENCY = "reconfiguration_latency_ms"
_NOTE = """Published on Perlmutter: real jobs with emulated delays, bars of one standard deviation;
    published simulation: against electrical switches at full bandwidth"""


@dataclass(frozen=True)
class SwitchingOverheadSettings(RunChoice):
    """Time that optical switching adds, published beside ours."""

    figure: Literal["switching_overhead"] = "switching_overhead"
    height_inches: Height = 8.6

    linear_percent: Annotated[float, Between(0.1, 1000)] = 10
    """Overhead up to which the axis is linear; logarithmic beyond."""

    confidence: Annotated[float, Between(0.5, 0.999)] = 0.95
    """Confidence of the intervals over our repeats."""


def draw(settings: SwitchingOverheadSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of panels per source, all on the same axes."""
    frame = tables.read("iterations", "run", settings.only)
    repeats = per_repeat(frame)
    promised = 100 * float(tables.values("headline")["training_overhead"])
    points = _points(tables, repeats, settings.confidence)
    by_panel = dict(iter(points.groupby(["source", "panel"], sort=False)))
    panels = {
        source: [str(name) for position, name in by_panel if position == source]
        for source in _SOURCES
        if source in set(points["source"])
    }
    subtitle = f"""Step time over the same source's step without switching, less one; all panels on
        the same axes. Hollow diamonds: published. Ours: {repeats_words(repeats)}."""
    replayed = ["replay"] if "replay" in panels else []
    with canvas(subtitle, fidelity_line([*frame["fidelity"], *replayed], _NOTE)) as page:
        lines = sum(-(-len(names) // _COLUMNS) for names in panels.values())
        grid = page.subplots(lines, _COLUMNS, sharex=True, sharey=True, squeeze=False)
        line = 0
        for source, names in panels.items():
            for number, name in enumerate(names):
                axes = grid[line + number // _COLUMNS, number % _COLUMNS]
                _panel(axes, by_panel[source, name], promised, source)
                title = (_SOURCES[source], f"{name[:1].upper()}{name[1:]}")
                axes.set_title(
                    "\n".join(part for text in title for part in textwrap.wrap(text, _WIDE))
                )
            line += -(-len(names) // _COLUMNS)
        _axes(grid, points, settings.linear_percent)
        legend: dict[str, Any] = {}
        for mode, colour in mode_colours().items():
            legend[f"{label(mode)}, published"] = published_series(colour)
            legend[f"{label(mode)}, ours"] = {"color": colour, "marker": "o"}
        legend[f"Abstract, {PUBLISHED}: below {promised:g} %"] = PUBLISHED_LINE
        share_legend(page, legend, 3)
    return Drawn(_caption(points, repeats, promised), _alternative(points), points)


def _points(tables: Tables, repeats: DataFrame, confidence: float) -> DataFrame:
    """A row for each source, panel, mode and latency."""
    points = stack([_ours(repeats, confidence), _replayed(tables), _published(tables)])
    names = ["source", "panel", "mode", _LATENCY, "overhead_percent", "low_percent"]
    points = points.reindex(columns=[*names, "high_percent", "set_aside"])
    return points.assign(set_aside=points["set_aside"].eq(True))


def _published(tables: Tables) -> DataFrame:
    """Simulations, the smoke run and runs on Perlmutter, over their references."""
    steps = published_steps(tables).rename(columns={"latency_ms": _LATENCY})
    spread = {"overhead_percent": 0.0, "low_percent": -1.0, "high_percent": 1.0}
    for column, sign in spread.items():
        seconds = steps["seconds"] + (sign * steps["spread_s"] if sign else 0.0)
        steps[column] = 100 * (seconds / steps["base_s"] - 1)
    return steps.assign(panel=steps["words"].replace(_GENERATED))


def _ours(repeats: DataFrame, confidence: float) -> DataFrame:
    """The median of each setting with its interval, and every repeat."""
    rows: list[dict[str, Any]] = []
    keys = ["run", "device", "mode", _LATENCY]
    switched = repeats[repeats["mode"].isin(MODES)]
    for (run, device, mode, latency), runs in switched.groupby(keys, sort=False):
        panel = f"{label(str(run))} ({str(device).upper()})"
        head = {"panel": panel, "mode": mode, _LATENCY: float(str(latency))}
        percents = 100 * (runs["over_electrical"] - 1)
        median = middle(list(percents[runs["counts"]]), confidence)
        interval = {"low_percent": median.low, "high_percent": median.high}
        rows.append({"source": "ours", **head, "overhead_percent": median.value, **interval})
        rows += [
            {"source": "repeat", **head, "overhead_percent": percent, "set_aside": not counts}
            for percent, counts in zip(percents, runs["counts"], strict=True)
        ]
    return to_frame(rows)


def _replayed(tables: Tables) -> DataFrame:
    """Generated steps by a bit a stage, gradients reduced behind computation."""
    if "times" not in tables:
        return to_frame([])
    rows = tables.query(
        """
        select 'replay' as source, step, job, mode, reconfiguration_latency_ms,
            100 * (step_ms / electrical_ms - 1) as overhead_percent
        from times
        where rule = 'stage_bits' and gradients in ('overlapped', 'sharded')
            and mode in ('on_demand', 'provisioned') and reconfiguration_latency_ms <= 3000
        qualify scale_out_gb_s = first(scale_out_gb_s) over (partition by step, job order by rowid_)
        order by min(rowid_) over (partition by step, job), rowid_
        """
    )
    rows["panel"] = rows["job"].map(_GENERATED).fillna(rows["step"].map(_GENERATED))
    return rows[rows["panel"].notna()]


def _panel(axes: Axes, rows: DataFrame, promised: float, source: str) -> None:
    axes.axhline(0, color=INK, linewidth=0.8)
    published_line(axes, promised, "y", zorder=1.5)
    for mode, colour in mode_colours().items():
        line = rows[rows["mode"] == mode].sort_values(_LATENCY)
        style: dict[str, Any] = published_series(colour)
        if source in ("ours", "replay"):
            style = {"marker": "o", "linewidth": LINE_POINTS, "color": colour}
        axes.plot(line[_LATENCY], line["overhead_percent"], **style)
        bars = line[line["low_percent"].notna()]
        ends = (bars["low_percent"], bars["high_percent"])
        axes.vlines(bars[_LATENCY], *ends, color=colour, linewidth=1.1)


def _axes(grid: np.ndarray, points: DataFrame, step: float) -> None:
    drawn = points[points["source"] != "repeat"]
    most = float(np.nanmax([drawn["overhead_percent"].max(), drawn["high_percent"].max()]))
    minimum = float(np.nanmin([drawn["overhead_percent"].min(), drawn["low_percent"].min(), 0]))
    latencies = points[_LATENCY]
    linear = float(max(1.0, latencies[latencies > 0].min())) if (latencies > 0).any() else 1.0
    for axes in grid.flat:
        axes.set_xscale("symlog", linthresh=linear, linscale=0.5)
        axes.set_yscale("symlog", linthresh=step, linscale=1)
        axes.set_ylim(1.25 * minimum - 0.3 * step, 2 * most)
        axes.set_xlim(-0.15 * linear, 1.5 * latencies.max())
        ticks(axes.xaxis, [0, 10, 100, 1000])
        ticks(axes.yaxis, [times * step for times in (-10, -1, 0, 1, 10, 100, 1000)])
        if not axes.lines:
            axes.set_visible(False)
    for column in grid.T:
        lowest = [axes for axes in column if axes.get_visible()][-1]
        lowest.tick_params(labelbottom=True)
    # One label for all panels: it is longer than a panel.
    grid[len(grid) // 2, 0].set_ylabel("Added time (%)")
    grid[-1, 1 if grid[-1, 1].get_visible() else 0].set_xlabel("Switching latency (ms)")


def _within(rows: DataFrame, column: str, percent: float) -> float:
    """The longest latency up to which every point stays within ``percent``."""
    line = rows.sort_values(_LATENCY)
    return float(line.loc[(line[column] <= percent).cummin(), _LATENCY].max())


def _caption(points: DataFrame, repeats: DataFrame, promised: float) -> str:
    sentences = []
    for source, name in _SOURCES.items():
        parts = []
        rows = where(points, source=source, mode="provisioned")
        for panel, line in rows.groupby("panel", sort=False):
            if source == "ours" and line["high_percent"].isna().any():
                parts.append(f"{panel} undecided: too few repeats")
                continue
            # Ours count with the upper end of their interval.
            column = "high_percent" if source == "ours" else "overhead_percent"
            longest = _within(line, column, promised)
            reach = f"up to {quantity(longest)} ms" if longest == longest else "at no latency"
            parts.append(f"{panel} {reach}")
        if parts:
            sentences.append(f"{name}: {'; '.join(parts)}.")
    return f"""Time that switching adds to a step. Provisioned switching stays within {promised:g} %
        of the step without it: {" ".join(sentences)} The paper's points are other jobs on other
        machines; only the shape can be compared. Ours live are real training steps on processor
        cores, with emulated switches; ours replayed are generated steps at the published settings.
        Ours: {repeats_words(repeats)}."""


def _alternative(points: DataFrame) -> str:
    parts = []
    for source, name in _SOURCES.items():
        for panel, rows in where(points, source=source).groupby("panel", sort=False):
            latency = rows[_LATENCY].max()
            longest = where(rows, **{_LATENCY: latency})
            values = phrases(longest, "{mode:lower} {overhead_percent:q} %", ", ")
            parts.append(f"{name}, {panel}: {values} at {quantity(latency)} ms")
    return f"Panels of added time over switching latency. {'; '.join(parts)}."


FIGURE = declare(
    SwitchingOverheadSettings,
    "What optical switching adds to a training step",
    "opus",
    draw,
    iterations=f"training.iterations: {REPEAT_COLUMNS}",
    times="steps.times (optional): step job gradients scale_out_gb_s rule mode"
    " reconfiguration_latency_ms step_ms electrical_ms fidelity",
    **PUBLISHED_STEPS,
    headline="opus.csv: id value",
)
