"""Windows of generated steps: within passes, and on the replay's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from railx.figures.canvas import panel_title, share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, FigureInput, Height
from railx.figures.tables import Tables, records, stack, to_frame
from railx.figures.theme import DERIVED, PALETTE, PUBLISHED_MARK, colours, dot, published_mark
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import fidelity_line, quantity

__all__ = ["FIGURE", "StepWindowsSettings"]

_PUBLISHED = ("transition", "count_per_step", "mean_window_ms", "min_window_ms", "max_window_ms")
#: Published finite windows of figs. 12 and 13: the rows and of how many they are sums.
_FINITE = {
    "h200_128": (("windows_hidden_h200_ms", 3),),
    "gb200_512": (("windows_short_gb200_ms", 3), ("windows_hidden_gb200_ms", 4)),
}


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

    own = tables.read("windows", "step", (settings.passes,))
    own = own[own["transition"].isin(("PP->EP", "EP->PP")) & ~own["within_layer"].astype(bool)]
    ours = _steps(own.rename(columns={"count": "n"}))
    table = tables.read("published")
    theirs = _steps(_rows_of(table))
    clock = tables.read("timeline", "step", settings.timeline)
    clock = clock[clock["gradients"] != "at_end"]
    values = tables.read("headline").set_index("id")["value"]
    subtitle = (
        "Left: computation between pipeline and expert traffic of DeepSeek-V2 236B. Right: idle"
        " time between operations of unlike kind on one rank of each stage, packet switches."
    )
    with canvas(
        subtitle,
        fidelity_line(
            ("analytic", "replay"),
            "Generated jobs, no recordings",
            shows={"analytic": "left", "replay": "right"},
        ),
    ) as page:
        left, right = page.subplots(1, 2, width_ratios=(1, 1.25))
        _distribution(left, ours, theirs)
        left.set_title(panel_title("Within passes, 256 windows", 2, settings))
        kinds = list(dict.fromkeys(clock["transition"]))
        hues = dict(zip(kinds, PALETTE, strict=False))
        jobs = _on_the_clock(right, clock, hues, values)
        right.set_title(panel_title("On the replay's clock", 2, settings))
        handles: list[Any] = [{"color": colours(("electrical",))["electrical"]}]
        texts = ["Ours, within passes"]
        handles += [dot(hues[one]) for one in kinds]
        texts += [one.replace("->", " to ") for one in kinds]
        handles.append(PUBLISHED_MARK)
        texts.append(DERIVED.capitalize())
        share_legend(page, dict(zip(texts, handles, strict=True)), 4)
    return Drawn(_caption(ours, theirs, clock, jobs), _alternative(ours, jobs), _data(ours, clock))


def _rows_of(table: DataFrame) -> DataFrame:
    own = table[
        table["transition"].str.contains("fwd|bwd") & ~table["transition"].str.startswith("EP->EP")
    ]
    names = dict(zip(_PUBLISHED, ("transition", "n", "mean_ms", "min_ms", "max_ms"), strict=True))
    return own.rename(columns=names)


def _steps(rows: DataFrame) -> DataFrame:
    """Window lengths and how many there are; two lengths are told apart by the mean."""
    found: dict[float, float] = {}
    for row in records(rows):
        low, high, mean = float(row["min_ms"]), float(row["max_ms"]), float(row["mean_ms"])
        long = 0 if high - low < 1e-9 else round(row["n"] * (mean - low) / (high - low))
        for length, count in ((low, row["n"] - long), (high, long)):
            if count:
                found[length] = found.get(length, 0) + count
    lengths = sorted(found)
    return to_frame({"window_ms": lengths, "count": [found[one] for one in lengths]})


def _distribution(axes: Axes, ours: DataFrame, theirs: DataFrame) -> None:
    def shares(frame: DataFrame) -> Any:
        return 100 * frame["count"].cumsum() / frame["count"].sum()

    colour = colours(("electrical",))["electrical"]
    axes.step([0.3, *ours["window_ms"], 60], [0, *shares(ours), 100], where="post", color=colour)
    axes.plot(theirs["window_ms"], shares(theirs), **published_mark(colour))
    axes.set_xscale("log")
    axes.set(xlabel="Window (ms)", ylabel="Windows not longer (%)", ylim=(0, 105))
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))


def _on_the_clock(
    axes: Axes, clock: DataFrame, hues: dict[str, str], values: Series[Any]
) -> list[str]:
    words = {"overlapped": "behind computation", "in_line": "in line", "sharded": "FSDP"}
    names: list[str] = []
    places: list[int] = []
    for (step, job), own in clock.groupby(["step", "job"], sort=False):
        place = len(names)
        head = own.iloc[0]
        names.append(f"{int(head['gpus'])} {head['device']},\n{words[str(head['gradients'])]}")
        places.append(place)
        spread = np.linspace(-0.25, 0.25, max(2, len(own)))[: len(own)]
        axes.scatter(
            own["window_ms"],
            place + spread,
            s=18,
            color=[hues[one] for one in own["transition"]],
            zorder=3,
        )
        for row, count in _FINITE.get(str(step), ()):
            axes.plot([float(values[row]) / count], [place], **published_mark("black"))
        del job
    axes.set_yticks(places, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.set_xlim(-30, 8000)
    axes.set_xlabel("Window (ms)")
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
    return [name.replace("\n", " ") for name in names]


def _data(ours: DataFrame, clock: DataFrame) -> DataFrame:
    return stack([ours.assign(shows="pass"), clock.assign(shows="clock")])


def _caption(ours: DataFrame, theirs: DataFrame, clock: DataFrame, jobs: list[str]) -> str:
    apart = max(abs(a - b) / b for a, b in zip(ours["window_ms"], theirs["window_ms"], strict=True))
    parts = "; ".join(
        f"{job} {quantity(float(own['window_ms'].clip(lower=0).median()))} ms in the middle"
        f" ({len(own)} windows)"
        for job, (_, own) in zip(jobs, clock.groupby(["step", "job"], sort=False), strict=True)
    )
    return (
        f"Windows of generated steps. Within passes of DeepSeek-V2 236B ours differ from the"
        f" published by {quantity(100 * apart)} % at most. On the clock: {parts}. The diamonds are"
        " the finite windows behind the published latency sweeps, about half of ours, as are the"
        " published steps. Negative windows overlap."
    )


def _alternative(ours: DataFrame, jobs: list[str]) -> str:
    words = ", ".join(
        f"{int(count)} of {quantity(float(length))} ms"
        for length, count in zip(ours["window_ms"], ours["count"], strict=True)
    )
    return f"A staircase of windows ({words}) beside dots of the windows of {', '.join(jobs)}."


FIGURE = Figure(
    StepWindowsSettings,
    "Windows of generated steps",
    "opus",
    (
        FigureInput(
            "windows", "steps.windows", "step transition within_layer count mean_ms min_ms max_ms"
        ),
        FigureInput(
            "timeline",
            "steps.timeline",
            "step job gradients device gpus transition window_ms fidelity",
        ),
        FigureInput(
            "published",
            columns="transition count_per_step mean_window_ms min_window_ms max_window_ms",
            published="opus_deepseek236b_windows.csv",
        ),
        FigureInput("headline", columns="id value", published="opus.csv"),
    ),
    draw,
)
