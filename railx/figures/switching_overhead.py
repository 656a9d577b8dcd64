"""What optical switching adds to a training step, published and ours.

Every panel is one source against its own step without switching: the paper's runs on
Perlmutter with emulated delays, its simulations, the training runs of this experiment,
live, and generated steps, replayed. Absolute times differ by job and machine and are
not drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame, published_series
from railx.figures.repeats import REPEAT_COLUMNS, middle, per_repeat, repeats_words
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    INK,
    LINE_POINTS,
    PUBLISHED,
    canvas,
    colours,
    label,
    published_handle,
    published_line,
    quantity,
    share_legend,
)
from railx.settings import Between

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "SwitchingOverheadSettings"]

_PERLMUTTER = (
    "case",
    "mode",
    "reconfig_latency_ms",
    "mean_iteration_latency_s",
    "std_iteration_latency_s",
)
_SIMULATED = ("figure", "platform", "gpus", "system", "reconfig_latency_ms", "step_latency_s")
_SMOKE = ("reconfig_latency_ms", "eps_step_s", "on_demand_step_s", "provision_step_s")
_TIMES = (
    *("step", "job", "gradients", "scale_out_gb_s", "rule", "mode"),
    *("reconfiguration_latency_ms", "step_ms", "electrical_ms", "fidelity"),
)
_MODES = ("on_demand", "provisioned")
#: Generated steps that have a published one beside them.
_GENERATED = {
    "h200_128": "H200, 128 GPUs",
    "gb200_512": "GB200, 512 GPUs",
    "smoke": "smoke run of 8 GPUs",
    "llama16": "Llama-3 8B, 16 GPUs",
    "llama64": "Llama-3 8B, 64 GPUs",
    "deepseek3d": "DeepSeek, DP, PP and TP",
    "deepseek2d": "DeepSeek, PP and TP only",
}
_JOBS = {
    "llama16": "Llama-3 8B, 16 GPUs",
    "llama64": "Llama-3 8B, 64 GPUs",
    "deepseek3d": "DeepSeek, DP, PP and TP",
    "deepseek2d": "DeepSeek, PP and TP only",
}
_SOURCES = {
    "ours": "Ours, live",
    "replay": "Ours, replay",
    "simulation": "Published, simulation",
    "perlmutter": "Published, Perlmutter",
}
_BEHIND = ("overlapped", "sharded")
_COLUMNS = 4
#: Characters of a bold line over a panel.
_WIDE = 26


@dataclass(frozen=True)
class SwitchingOverheadSettings(CanvasSettings):
    """Time that optical switching adds, published beside ours."""

    figure: Literal["switching_overhead"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Training runs to show, in that order; empty: all that there are."""

    linear_percent: Annotated[float, Between(0.1, 1000)]
    """Overhead up to which the axis is linear; logarithmic beyond."""

    confidence: Annotated[float, Between(0.5, 0.999)]
    """Confidence of the intervals over our repeats."""


def draw(settings: SwitchingOverheadSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A row of panels per source, all on the same axes."""
    from matplotlib.lines import Line2D

    frame = read_frames(inputs, "iterations", REPEAT_COLUMNS, "run", settings.only)
    repeats = per_repeat(frame)
    headline = published_frame(inputs, "headline", ("id", "value")).set_index("id")["value"]
    promised = 100 * float(headline["training_overhead"])
    points = _points(inputs, repeats, settings.confidence)
    sources = [source for source in _SOURCES if (points["source"] == source).any()]
    panels = {
        source: list(dict.fromkeys(points.loc[points["source"] == source, "panel"]))
        for source in sources
    }
    subtitle = (
        "Step time over the same source's step without switching, less one; all panels"
        " on the same axes. Hollow diamonds: published."
        f" Ours: {repeats_words(repeats)}."
    )
    with canvas(
        settings,
        output,
        "What optical switching adds to a training step",
        subtitle,
        fidelity_line([*frame["fidelity"], *_replay_fidelity(points)], _NOTE),
    ) as figure:
        grid = figure.subplots(
            sum(-(-len(names) // _COLUMNS) for names in panels.values()),
            _COLUMNS,
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        line = 0
        for source, names in panels.items():
            for number, name in enumerate(names):
                axes = grid[line + number // _COLUMNS, number % _COLUMNS]
                own = points[(points["source"] == source) & (points["panel"] == name)]
                _panel(axes, own, promised, source)
                title = f"{_SOURCES[source]}\n{name[:1].upper()}{name[1:]}"
                axes.set_title(_title(title))
            line += -(-len(names) // _COLUMNS)
        _axes(grid, points, settings.linear_percent)
        colour = colours(("electrical", *_MODES))
        handles: list[Any] = []
        texts: list[str] = []
        for mode in _MODES:
            handles += [
                Line2D([], [], **published_series(colour[mode])),
                Line2D([], [], color=colour[mode], marker="o"),
            ]
            texts += [f"{label(mode)}, published", f"{label(mode)}, ours"]
        handles.append(published_handle(line=True))
        texts.append(f"Abstract, {PUBLISHED}: below {promised:g} %")
        share_legend(figure, handles, texts, 3)
    return Drawn(
        _caption(points, repeats, promised), _alternative(points), points.drop(columns="order")
    )


def _replay_fidelity(points: pd.DataFrame) -> list[str]:
    return ["replay"] if (points["source"] == "replay").any() else []


_NOTE = (
    "Published on Perlmutter: real jobs with emulated delays, bars of one standard deviation;"
    " published simulation: against electrical switches at full bandwidth"
)


def _title(text: str) -> str:
    """A panel's title in lines that fit."""
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, _WIDE))


def _points(inputs: FigureFiles, repeats: pd.DataFrame, confidence: float) -> pd.DataFrame:
    import pandas as pd

    rows = [
        *_ours(repeats, confidence),
        *_replayed(inputs),
        *_simulated(inputs),
        *_perlmutter(inputs),
    ]
    points = pd.DataFrame(rows)
    return points.assign(order=range(len(points)))


def _percent(seconds: float, reference: float) -> float:
    return 100 * (seconds / reference - 1)


def _row(
    source: str, panel: str, mode: str, latency_ms: float, percent: float, **more: Any
) -> dict[str, Any]:
    return {
        "source": source,
        "panel": panel,
        "mode": mode,
        "reconfiguration_latency_ms": latency_ms,
        "overhead_percent": percent,
        "low_percent": np.nan,
        "high_percent": np.nan,
        "set_aside": False,
        **more,
    }


def _perlmutter(inputs: FigureFiles) -> list[dict[str, Any]]:
    table = published_frame(inputs, "perlmutter", _PERLMUTTER)
    rows = []
    for case, own in table.groupby("case", sort=False):
        reference = float(
            own.loc[own["mode"] == "no_controller", "mean_iteration_latency_s"].iloc[0]
        )
        for run in own[own["mode"] != "no_controller"].to_dict("records"):
            mean, spread = run["mean_iteration_latency_s"], run["std_iteration_latency_s"]
            rows.append(
                _row(
                    "perlmutter",
                    _JOBS.get(str(case), label(str(case))),
                    "on_demand" if run["mode"] == "on_demand" else "provisioned",
                    run["reconfig_latency_ms"],
                    _percent(mean, reference),
                    low_percent=_percent(mean - spread, reference),
                    high_percent=_percent(mean + spread, reference),
                )
            )
    return rows


def _simulated(inputs: FigureFiles) -> list[dict[str, Any]]:
    table = published_frame(inputs, "simulation", _SIMULATED)
    modes = {"opus_on_demand": "on_demand", "opus_provision": "provisioned"}
    rows = []
    for (name, platform, gpus), own in table.groupby(["figure", "platform", "gpus"], sort=False):
        reference = float(
            own.loc[own["system"] == "eps_full_bw_analytical", "step_latency_s"].iloc[0]
        )
        panel = f"{platform}, {gpus} GPUs ({str(name).replace('fig', 'fig. ')})"
        rows += [
            _row(
                "simulation",
                panel,
                modes[run["system"]],
                run["reconfig_latency_ms"],
                _percent(run["step_latency_s"], reference),
            )
            for run in own[own["system"].isin(modes)].to_dict("records")
        ]
    for run in published_frame(inputs, "smoke", _SMOKE).to_dict("records"):
        for mode, column in (
            ("on_demand", "on_demand_step_s"),
            ("provisioned", "provision_step_s"),
        ):
            percent = _percent(run[column], run["eps_step_s"])
            panel = "smoke run of 8 GPUs"
            rows.append(_row("simulation", panel, mode, run["reconfig_latency_ms"], percent))
    return rows


def _ours(repeats: pd.DataFrame, confidence: float) -> list[dict[str, Any]]:
    rows = []
    switched = repeats[repeats["mode"].isin(_MODES)]
    keys = ["run", "device", "mode", "reconfiguration_latency_ms"]
    for (run, device, mode, latency), own in switched.groupby(keys, sort=False):
        panel = f"{label(str(run))} ({str(device).upper()})"
        setting = (str(mode), float(str(latency)))
        percents = 100 * (own["over_electrical"] - 1)
        found = middle(list(percents[own["counts"]]), confidence)
        rows.append(
            _row(
                "ours",
                panel,
                *setting,
                found.value,
                low_percent=found.low,
                high_percent=found.high,
            )
        )
        rows += [
            _row("repeat", panel, *setting, percent, set_aside=not counts)
            for percent, counts in zip(percents, own["counts"], strict=True)
        ]
    return rows


def _replayed(inputs: FigureFiles) -> list[dict[str, Any]]:
    """Generated steps by a bit a stage, gradients reduced behind computation."""
    if not inputs.get("times"):
        return []
    frame = read_frames(inputs, "times", _TIMES)
    kept = frame[(frame["rule"] == "stage_bits") & frame["gradients"].isin(_BEHIND)]
    rows = []
    for (step, job), own in kept.groupby(["step", "job"], sort=False):
        panel = _GENERATED.get(str(job)) or _GENERATED.get(str(step))
        first = own["scale_out_gb_s"].iloc[0]
        rows += [
            _row(
                "replay",
                panel,
                one["mode"],
                one["reconfiguration_latency_ms"],
                _percent(one["step_ms"], one["electrical_ms"]),
            )
            for one in own.to_dict("records")
            if panel and one["scale_out_gb_s"] == first and one["mode"] in _MODES
            if one["reconfiguration_latency_ms"] <= 3000
        ]
    return rows


def _linear_ms(points: pd.DataFrame) -> float:
    latencies = points["reconfiguration_latency_ms"]
    return float(max(1.0, latencies[latencies > 0].min())) if (latencies > 0).any() else 1.0


def _panel(axes: Axes, own: pd.DataFrame, promised: float, source: str) -> None:
    colour = colours(("electrical", *_MODES))
    axes.axhline(0, color=INK, linewidth=0.8)
    published_line(axes, promised, "y", zorder=1.5)
    for mode in _MODES:
        mine = own[own["mode"] == mode].sort_values("reconfiguration_latency_ms")
        x, y = mine["reconfiguration_latency_ms"], mine["overhead_percent"]
        style: Mapping[str, Any] = (
            {"marker": "o", "linewidth": LINE_POINTS, "color": colour[mode]}
            if source in ("ours", "replay")
            else published_series(colour[mode])
        )
        axes.plot(x, y, **style)
        bars = mine[mine["low_percent"].notna()]
        axes.vlines(
            bars["reconfiguration_latency_ms"],
            bars["low_percent"],
            bars["high_percent"],
            color=colour[mode],
            linewidth=1.1,
        )


def _axes(grid: np.ndarray, points: pd.DataFrame, linear_percent: float) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    drawn = points[points["source"] != "repeat"]
    most = float(np.nanmax([drawn["overhead_percent"].max(), drawn["high_percent"].max()]))
    least = float(np.nanmin([drawn["overhead_percent"].min(), drawn["low_percent"].min(), 0]))
    step = linear_percent
    ticks = [-10 * step, -step, 0, step, 10 * step, 100 * step, 1000 * step]
    for axes in grid.flat:
        axes.set_xscale("symlog", linthresh=_linear_ms(points), linscale=0.5)
        axes.set_yscale("symlog", linthresh=linear_percent, linscale=1)
        axes.set_ylim(1.25 * least - 0.3 * step, 1.4 * most)
        axes.set_xlim(-0.15 * _linear_ms(points), 1.5 * points["reconfiguration_latency_ms"].max())
        axes.xaxis.set_major_locator(FixedLocator([0, 10, 100, 1000]))
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, _: quantity(value))
        if not axes.lines:
            axes.set_visible(False)
    for column in grid.T:
        lowest = [axes for axes in column if axes.get_visible()][-1]
        lowest.tick_params(labelbottom=True)
    # One label each: it is longer than a panel.
    grid[len(grid) // 2, 0].set_ylabel("Added time (%)")
    grid[-1, 1 if grid[-1, 1].get_visible() else 0].set_xlabel("Switching latency (ms)")


def _within(own: pd.DataFrame, percent: float) -> float:
    """The longest latency up to which every point stays within ``percent``.

    Ours count with the upper end of their interval.
    """
    longest = float("nan")
    ours = (own["source"] == "ours").all()
    for row in own.sort_values("reconfiguration_latency_ms").to_dict("records"):
        if row["high_percent" if ours else "overhead_percent"] > percent:
            break
        longest = row["reconfiguration_latency_ms"]
    return longest


def _caption(points: pd.DataFrame, repeats: pd.DataFrame, promised: float) -> str:
    sentences = []
    for source, name in _SOURCES.items():
        parts = []
        rows = points[(points["source"] == source) & (points["mode"] == "provisioned")]
        for panel, own in rows.groupby("panel", sort=False):
            if source == "ours" and own["high_percent"].isna().any():
                parts.append(f"{panel} undecided: too few repeats")
                continue
            longest = _within(own, promised)
            parts.append(
                f"{panel} up to {quantity(longest)} ms"
                if longest == longest
                else f"{panel} at no latency"
            )
        if parts:
            sentences.append(f"{name}: {'; '.join(parts)}.")
    unlike = (
        "The paper's points are other jobs on other machines; only the shape can be compared. Ours"
        " live are real training steps on processor cores, with emulated switches; ours replayed"
        " are generated steps at the published settings."
    )
    return (
        f"Time that switching adds to a step. Provisioned switching stays within {promised:g} % of"
        f" the step without it: {' '.join(sentences)} {unlike} Ours: {repeats_words(repeats)}."
    )


def _alternative(points: pd.DataFrame) -> str:
    parts = []
    for source, name in _SOURCES.items():
        for panel, own in points[points["source"] == source].groupby("panel", sort=False):
            longest = own[
                own["reconfiguration_latency_ms"] == own["reconfiguration_latency_ms"].max()
            ]
            values = ", ".join(
                f"{label(row['mode']).lower()} {quantity(row['overhead_percent'])} %"
                for row in longest.to_dict("records")
            )
            latency = quantity(float(longest["reconfiguration_latency_ms"].iloc[0]))
            parts.append(f"{name}, {panel}: {values} at {latency} ms")
    return "Panels of added time over switching latency. " + "; ".join(parts) + "."


FIGURE = Figure(
    settings=SwitchingOverheadSettings,
    title="What optical switching adds to a training step",
    paper="opus",
    inputs=(
        FigureInput("iterations", "training.iterations"),
        FigureInput("times", "steps.times", columns=_TIMES, required=False),
        FigureInput("perlmutter", published="opus_perlmutter_iteration_latency.csv"),
        FigureInput("simulation", published="opus_simulation_latency.csv"),
        FigureInput("smoke", published="opus_simulation_smoke.csv"),
        FigureInput("headline", published="opus.csv"),
    ),
    draw=draw,
)
