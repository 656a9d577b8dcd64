"""How long networks idle between phases, beside how long optical switches take.

Windows and phases are Opus' own numbers for its jobs; the switching times are those of
switch technologies, most of them recalled and drawn as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import milliseconds, published_frame, published_mark
from railx.figures.settings import CanvasSettings
from railx.figures.theme import GREY, INK, PALETTE, canvas, label, lighter, quantity, share_legend

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "SwitchingWindowsSettings"]

_WINDOWS = (
    "transition",
    "count_per_step",
    "mean_window_ms",
    "min_window_ms",
    "max_window_ms",
)
_TECHNOLOGIES = ("technology", "example_device", "ports", "switching_time", "confidence")
_PHASES = ("case", "phase_sequence", "transitions_per_iteration")
_JOBS = {
    "llama16": "Llama-3 8B, 16 GPUs",
    "llama64": "Llama-3 8B, 64 GPUs",
    "deepseek3d": "DeepSeek, DP, PP and TP",
    "deepseek2d": "DeepSeek, PP and TP",
}
_HUES = {"PP": PALETTE[3], "DP": PALETTE[2], "EP": PALETTE[1]}
_LINE = PALETTE[0]
_NOTE = (
    "All numbers are published or derived from published ones: the windows are the artifact's"
    " analytical model of DeepSeek-V2 236B on 256 GPUs, the phases its traces of rank 0 on"
    " Perlmutter; pale switching times are recalled, not verified"
)


@dataclass(frozen=True)
class SwitchingWindowsSettings(CanvasSettings):
    """Windows between phases against switching times."""

    figure: Literal["switching_windows"]
    """Which figure it is."""


def draw(settings: SwitchingWindowsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Switching times above the distribution of windows, phases of a step below."""
    from matplotlib.patches import Patch

    windows = _windows(published_frame(inputs, "windows", _WINDOWS))
    switches = _switches(published_frame(inputs, "technologies", _TECHNOLOGIES), windows)
    phases = _phases(published_frame(inputs, "phases", _PHASES))
    subtitle = (
        "Right of a switch's diamond lie the windows that hide its switching. Both axes of time are"
        " the same. Below, the phases of one iteration, as wide as they have operations."
    )
    with canvas(
        settings, output, "Idle windows between phases, and how fast switches are", subtitle, _NOTE
    ) as figure:
        jobs = list(dict.fromkeys(phases["job"]))
        above, middle, below = figure.subplots(
            3, 1, height_ratios=[0.30 * len(switches) + 0.2, 2.6, 0.34 * len(jobs) + 0.3]
        )
        _technologies(above, switches)
        _distribution(middle, windows)
        above.set_xlim(middle.get_xlim())
        _pattern(below, phases, jobs)
        kinds = [kind for kind in _HUES if (phases["phase"] == kind).any()]
        names = {"PP": "Pipeline (PP)", "DP": "Data (DP)", "EP": "Expert (EP)"}
        share_legend(
            figure,
            [Patch(facecolor=lighter(_HUES[kind], 0.35)) for kind in kinds],
            [f"{names[kind]} phase" for kind in kinds],
            len(kinds),
        )
    return Drawn(
        _caption(windows, switches, phases), _alternative(windows), _data(windows, switches, phases)
    )


def _windows(table: pd.DataFrame) -> pd.DataFrame:
    """Length and number of the windows between phases of different kinds.

    A transition has two lengths at most; the mean says how many have the longer one.
    Sums over transitions and those that change nothing are left out.
    """
    import pandas as pd

    rows = []
    for row in table.to_dict("records"):
        name = str(row["transition"])
        first, _, second = name.partition("->")
        both_ways = name.split(" ")[0]
        summed = name == both_ways and any(
            str(other).startswith(f"{both_ways} ") for other in table["transition"]
        )
        if first == second.split(" ")[0] or summed or name.endswith(" all"):
            continue
        low, high, mean = row["min_window_ms"], row["max_window_ms"], row["mean_window_ms"]
        count = int(row["count_per_step"])
        longer = round(count * (mean - low) / (high - low)) if high > low else 0
        for length, number in ((low, count - longer), (high, longer)):
            if number:
                rows.append({"transition": name, "window_ms": float(length), "count": number})
    return pd.DataFrame(rows).sort_values("window_ms", ignore_index=True)


def _longer(windows: pd.DataFrame, time_ms: float) -> float:
    """The share of windows at least as long as a time."""
    total = windows["count"].sum()
    return float(windows.loc[windows["window_ms"] >= time_ms, "count"].sum() / total)


def _switches(table: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    times = table["switching_time"].map(milliseconds)
    known = table.assign(switching_ms=times)[times.notna()].sort_values("switching_ms")
    return known.assign(hidden=[_longer(windows, time) for time in known["switching_ms"]])


def _phases(table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for row in table.to_dict("records"):
        job = _JOBS.get(str(row["case"]), label(str(row["case"])))
        sequence = str(row["phase_sequence"])
        parts = re.findall(r"\b([A-Z]P)\((\d+)", sequence)
        if not parts:  # one phase for the whole run
            found = re.search(r"\b([A-Z]P) only.*?(\d+)-op", sequence)
            parts = [(found[1], found[2])] if found else []
        rows += [
            {
                "job": job,
                "phase": kind,
                "operations": int(count),
                "transitions": int(row["transitions_per_iteration"]),
            }
            for kind, count in parts
        ]
    return pd.DataFrame(rows)


def _technologies(axes: Axes, switches: pd.DataFrame) -> None:
    for place, row in enumerate(switches.to_dict("records")):
        sure = row["confidence"] != "low"
        colour = INK if sure else GREY
        axes.plot(row["switching_ms"], place, **published_mark(colour))
        axes.annotate(
            f"{_time(row['switching_ms'])}: {100 * row['hidden']:.0f} %",
            (row["switching_ms"], place),
            (8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    axes.set_yticks(
        range(len(switches)),
        [
            f"{row['technology'].split(' (')[0]}, {row['example_device'].split(' (')[0]}"
            for row in switches.to_dict("records")
        ],
    )
    axes.set_xscale("log")
    axes.set_ylim(len(switches) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_title("Switching time, and the share of windows it fits into")
    axes.set_xlabel("Switching time")
    axes.xaxis.set_major_formatter(lambda value, _: _time(value))


def _time(time_ms: float) -> str:
    for unit, scale in (("s", 1e3), ("ms", 1.0), ("us", 1e-3), ("ns", 1e-6)):
        if time_ms >= scale:
            return f"{quantity(time_ms / scale)} {unit}"
    return f"{quantity(time_ms)} ms"


def _distribution(axes: Axes, windows: pd.DataFrame) -> None:
    cumulated = windows.groupby("window_ms")["count"].sum().cumsum()
    shares = 100 * cumulated / cumulated.iloc[-1]
    drawn = shares[shares.index > 0]
    start = 100 - 100 * _longer(windows, 1e-12)
    left = 5e-6
    axes.step(
        [left, *drawn.index, 1e4],
        [start, *drawn, 100],
        where="post",
        color=_LINE,
        linewidth=1.8,
    )
    axes.plot(drawn.index, drawn, **published_mark(_LINE))
    before = drawn.shift(fill_value=start)
    for length, share in drawn[drawn - before >= 10].items():  # the others are too near
        axes.annotate(
            f"{quantity(float(length))} ms",
            (float(length), float(share)),
            (-7, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
        )
    axes.set_xscale("log")
    axes.set(xlim=(left, 1e4), ylim=(0, 112))
    axes.set(xlabel="Window", ylabel="Windows not longer (%)")
    axes.set_title(f"{int(windows['count'].sum())} windows between unlike phases of a step")
    axes.yaxis.set_major_locator(_ticks())
    axes.xaxis.set_major_formatter(lambda value, _: _time(value))


def _ticks() -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator([0, 25, 50, 75, 100])


def _pattern(axes: Axes, phases: pd.DataFrame, jobs: list[str]) -> None:
    for place, job in enumerate(jobs):
        own = phases[phases["job"] == job]
        start = np.concatenate([[0], np.cumsum(own["operations"])[:-1]])
        axes.barh(
            [place] * len(own),
            own["operations"],
            left=start,
            height=0.8,
            color=[lighter(_HUES.get(kind, GREY), 0.35) for kind in own["phase"]],
            edgecolor="white",
        )
        for left, row in zip(start, own.to_dict("records"), strict=True):
            axes.text(
                left + row["operations"] / 2,
                place,
                str(row["operations"]),
                ha="center",
                va="center",
            )
        total = int(own["operations"].sum())
        count = int(own["transitions"].iloc[0])
        axes.annotate(
            f"{count} switches", (total, place), (6, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(jobs)), jobs)
    axes.set_ylim(len(jobs) - 0.5, -0.5)
    axes.set_xlim(0, 1.14 * float(phases.groupby("job")["operations"].sum().max()))
    axes.set_xlabel("Network operations of rank 0, one iteration (the last job: its whole run)")
    axes.grid(visible=False)


def _data(windows: pd.DataFrame, switches: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    columns = ["technology", "example_device", "switching_ms", "hidden", "confidence"]
    return pd.concat(
        [
            windows.assign(shows="window"),
            switches[columns].assign(shows="switch"),
            phases.assign(shows="phase"),
        ],
        ignore_index=True,
    )


def _caption(windows: pd.DataFrame, switches: pd.DataFrame, phases: pd.DataFrame) -> str:
    total = int(windows["count"].sum())
    steps = ", ".join(
        f"{100 * _longer(windows, bound):.0f} % last {bound:g} ms or more" for bound in (1, 2, 10)
    )
    sure = switches[switches["confidence"] != "low"]
    fits = "; ".join(
        f"{row['example_device']} ({_time(row['switching_ms'])}) {100 * row['hidden']:.0f} %"
        for row in sure.to_dict("records")
    )
    counts = "; ".join(
        f"{job} {int(own['transitions'].iloc[0])}" for job, own in phases.groupby("job", sort=False)
    )
    text = f"Of {total} windows between unlike phases {steps}."
    if fits:
        text += f" Share of the windows that hide a switch's time, times that were read: {fits}."
    return (
        f"{text} {len(switches) - len(sure)} of the {len(switches)} switching times are recalled"
        f" and drawn pale. Switches of an iteration: {counts}. A transition with two lengths is"
        " split by its mean."
    )


def _alternative(windows: pd.DataFrame) -> str:
    steps = windows.groupby("window_ms")["count"].sum()
    words = ", ".join(
        f"{int(count)} of {quantity(float(length))} ms"
        for length, count in zip(steps.index, steps, strict=True)
    )
    return (
        "A staircase of the lengths of windows under diamonds of the switching times of optical"
        f" switches, on one logarithmic axis of time; windows: {words}. Below, blocks of the phases"
        " of an iteration of four jobs."
    )


FIGURE = Figure(
    settings=SwitchingWindowsSettings,
    title="Idle windows between phases, and how fast switches are",
    paper="opus",
    inputs=(
        FigureInput("windows", published="opus_deepseek236b_windows.csv", columns=_WINDOWS),
        FigureInput("technologies", published="opus_ocs_technologies.csv", columns=_TECHNOLOGIES),
        FigureInput("phases", published="opus_phase_pattern.csv", columns=_PHASES),
    ),
    draw=draw,
)
