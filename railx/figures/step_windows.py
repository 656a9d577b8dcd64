"""Windows of generated steps: within passes, and on the replay's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Height, declare
from railx.figures.panels import panel_title, share_legend
from railx.figures.switching_windows import split_by_mean
from railx.figures.tables import Tables, records, stack, to_frame
from railx.figures.theme import DERIVED, GREY, PALETTE, PUBLISHED_MARK, dot, published_mark
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import fidelity_line, quantity

__all__ = ["FIGURE", "StepWindowsSettings"]

#: Published finite windows of figs. 12 and 13: the rows and of how many they are sums.
_FINITE = {
    "h200_128": (("windows_hidden_h200_ms", 3),),
    "gb200_512": (("windows_short_gb200_ms", 3), ("windows_hidden_gb200_ms", 4)),
}
_GRADIENTS = {"overlapped": "behind computation", "in_line": "in line", "sharded": "FSDP"}


@dataclass(frozen=True)
class StepWindowsSettings(CanvasSettings):
    """Windows of generated steps."""

    figure: Literal["step_windows"] = "step_windows"
    height_inches: Height = 5

    passes: str = "deepseek_236b"
    """The step whose windows within passes are drawn beside the published ones."""

    timeline: tuple[str, ...] = ("h200_128", "gb200_512", "perlmutter_llama")
    """Steps whose windows on the clock are drawn."""


def draw(settings: StepWindowsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """The distribution within passes, and every window of some jobs."""
    windows = tables.read("windows", "step", (settings.passes,))
    between = windows["transition"].isin(("PP->EP", "EP->PP"))
    ours = _steps(windows[between & ~windows["within_layer"].astype(bool)])
    published = tables.read("published").rename(columns={"count_per_step": "count"})
    names = published["transition"].str
    published = published[names.contains("fwd|bwd") & ~names.startswith("EP->EP")]
    theirs = _steps(published.rename(columns=lambda name: name.replace("_window_ms", "_ms")))
    clock = tables.read("timeline", "step", settings.timeline)
    clock = clock[clock["gradients"] != "at_end"]
    subtitle = """Left: computation between pipeline and expert traffic of DeepSeek-V2 236B. Right:
        idle time between operations of unlike kind on one rank of each stage, packet switches."""
    sides = {"analytic": "left", "replay": "right"}
    line = fidelity_line(sides, "Generated jobs, no recordings", shows=sides)
    with canvas(subtitle, line) as page:
        left, right = page.subplots(1, 2, width_ratios=(1, 1.25))
        _distribution(left, ours, theirs)
        left.set_title(panel_title("Within passes, 256 windows", 2, settings))
        hues = dict(zip(dict.fromkeys(clock["transition"]), PALETTE, strict=False))
        jobs = _on_the_clock(right, clock, hues, tables.values("headline"))
        right.set_title(panel_title("On the replay's clock", 2, settings))
        legend: dict[str, Any] = {"Ours, within passes": {"color": GREY}}
        legend |= {kind.replace("->", " to "): dot(colour) for kind, colour in hues.items()}
        share_legend(page, legend | {DERIVED.capitalize(): PUBLISHED_MARK}, 4)
    data = stack([ours.assign(shows="pass"), clock.assign(shows="clock")])
    return Drawn(_caption(ours, theirs, clock, jobs), _alternative(ours, jobs), data)


def _steps(rows: DataFrame) -> DataFrame:
    """Window lengths and how many there are."""
    counts: dict[float, float] = {}
    for row in records(rows):
        ends = (float(row["min_ms"]), float(row["max_ms"]), float(row["mean_ms"]))
        for length, count in split_by_mean(*ends, row["count"]):
            counts[length] = counts.get(length, 0) + count
    return to_frame(sorted(counts.items()), ["window_ms", "count"])


def _distribution(axes: Axes, ours: DataFrame, theirs: DataFrame) -> None:
    shares, stated = (100 * rows["count"].cumsum() / rows["count"].sum() for rows in (ours, theirs))
    stairs = ([0.3, *ours["window_ms"], 60], [0, *shares, 100])
    axes.step(*stairs, where="post", color=GREY)
    axes.plot(theirs["window_ms"], stated, **published_mark(GREY))
    axes.set(xscale="log", xlabel="Window (ms)", ylabel="Windows not longer (%)", ylim=(0, 105))
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))


def _on_the_clock(
    axes: Axes, clock: DataFrame, hues: dict[str, str], values: Series[Any]
) -> list[str]:
    names: list[str] = []
    for (step, _), rows in clock.groupby(["step", "job"], sort=False):
        y, first = len(names), rows.iloc[0]
        gradients = _GRADIENTS[str(first["gradients"])]
        names.append(f"{int(first['gpus'])} {first['device']},\n{gradients}")
        spread = np.linspace(-0.25, 0.25, max(2, len(rows)))[: len(rows)]
        fills = [hues[kind] for kind in rows["transition"]]
        axes.scatter(rows["window_ms"], y + spread, s=18, color=fills, zorder=3)
        for row, count in _FINITE.get(str(step), ()):
            axes.plot([float(values[row]) / count], [y], **published_mark("black"))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.set(xlim=(-30, 8000), xlabel="Window (ms)")
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
    return [name.replace("\n", " ") for name in names]


def _caption(ours: DataFrame, theirs: DataFrame, clock: DataFrame, jobs: list[str]) -> str:
    apart = max(abs(a - b) / b for a, b in zip(ours["window_ms"], theirs["window_ms"], strict=True))
    windows = [rows["window_ms"] for _, rows in clock.groupby(["step", "job"], sort=False)]
    parts = "; ".join(
        f"{job} {quantity(float(lengths.clip(lower=0).median()))} ms in the middle"
        f" ({len(lengths)} windows)"
        for job, lengths in zip(jobs, windows, strict=True)
    )
    return f"""Windows of generated steps. Within passes of DeepSeek-V2 236B ours differ from the
        published by {quantity(100 * apart)} % at most. On the clock: {parts}. The diamonds are the
        finite windows behind the published latency sweeps, about half of ours, as are the published
        steps. Negative windows overlap."""


def _alternative(ours: DataFrame, jobs: list[str]) -> str:
    words = ", ".join(
        f"{int(row['count'])} of {quantity(float(row['window_ms']))} ms" for row in records(ours)
    )
    return f"A staircase of windows ({words}) beside dots of the windows of {', '.join(jobs)}."


FIGURE = declare(
    StepWindowsSettings,
    "Windows of generated steps",
    "opus",
    draw,
    windows="steps.windows: step transition within_layer count mean_ms min_ms max_ms",
    timeline="steps.timeline: step job gradients device gpus transition window_ms fidelity",
    published="opus_deepseek236b_windows.csv: transition count_per_step mean_window_ms"
    " min_window_ms max_window_ms",
    headline="opus.csv: id value",
)
