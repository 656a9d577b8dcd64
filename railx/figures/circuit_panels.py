"""Panels of step times over switching latency, and bars of cost and power.

What the figures of RailX and Opus side by side have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn
from railx.figures.settings import CanvasSettings
from railx.figures.theme import (
    GREY,
    LINE_POINTS,
    PALETTE,
    canvas,
    quantity,
    share_legend,
)
from railx.figures.words import sentence

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["COLUMNS", "CircuitPanelsSettings", "PanelWords", "SwitchedLine", "draw_panels"]

#: What a table has to have; jobs by their names in the settings.
COLUMNS = (
    "network",
    "job",
    "gpus",
    "basis",
    "mode",
    "rule",
    "latency_ms",
    "changes",
    "step_ms",
    "stall_ms",
    "cost_per_gpu_usd",
    "watts_per_gpu",
    "reason",
    "fidelity",
)
_BASES = {"equal_bandwidth": "equal bandwidth", "equal_cost": "equal cost"}
_MARKS = "os^vDPX"
#: Those of the palette that are far from each other and from grey.
_COLOURS = (0, 5, 4, 7, 2, 1)
#: Where latency 0 stands on an axis of logarithms, in decades left of the least.
_ZERO = 10


@dataclass(frozen=True)
class SwitchedLine:
    """A network in one of its modes."""

    words: str
    """Words for it."""

    network: str
    """Network of the table."""

    mode: str
    """Mode of the table: set_once, every_phase, where_it_pays or packets."""

    rule: str
    """Rule of the table: provisioned or on_demand."""

    dashed: bool = False
    """Whether the line is dashed."""


@dataclass(frozen=True)
class CircuitPanelsSettings(CanvasSettings):
    """Step times over the latency of the switches."""

    jobs: dict[str, str]
    """Jobs of the table with words for each, a column of panels each."""

    lines: tuple[SwitchedLine, ...]
    """What is drawn; the first is what times are divided by, at equal bandwidth."""

    bars: dict[str, str]
    """Networks with words, for the bars of cost and power of the last job at equal
    bandwidth.
    """

    below: float
    """Lower edge of the panels, in times of the first line."""

    above: dict[str, float]
    """Upper edge of the panels by job; lines go on beyond it."""


@dataclass(frozen=True)
class PanelWords:
    """What a figure says in its own words."""

    title: str
    subtitle: str
    #: Ends the line on fidelity.
    note: str
    #: Begins the caption.
    caption: str
    #: Of whom cost and power are.
    bars: str


def draw_panels(
    settings: CircuitPanelsSettings, table: pd.DataFrame, output: Path, words: PanelWords
) -> Drawn:
    """A row of panels per basis, and bars of cost and power.

    Raises ValueError for a job, a network or a mode that the table does not have.
    """
    from matplotlib.lines import Line2D

    points = _points(settings, table)
    with canvas(
        settings,
        output,
        words.title,
        words.subtitle,
        fidelity_line(table["fidelity"], words.note),
    ) as figure:
        wide = len(settings.jobs)
        places = figure.add_gridspec(3, 2 * wide, height_ratios=[1, 1, 0.62])
        for row, (basis, basis_words) in enumerate(_BASES.items()):
            for column, (job, name) in enumerate(settings.jobs.items()):
                axes = figure.add_subplot(places[row, 2 * column : 2 * column + 2])
                own = points[(points["basis"] == basis) & (points["job"] == job)]
                _panel(axes, settings, own)
                axes.set_ylim(settings.below, settings.above[job])
                axes.set_title(name)
                axes.set_xlabel("Switching latency (ms)")
                if column == 0:
                    base = settings.lines[0].words
                    axes.set_ylabel(f"{basis_words.capitalize()}\nstep time ({base}: 1)")
        bars = _bars(settings, table)
        for place, column_, what in (
            (places[2, :wide], "cost_per_gpu_usd", "Cost"),
            (places[2, wide:], "watts_per_gpu", "Power"),
        ):
            unit = "USD" if what == "Cost" else "W"
            title = f"{what} {words.bars} ({unit} per GPU)"
            _bar_panel(figure.add_subplot(place), bars, column_, title)
        handles = [
            Line2D([], [], **_style(settings, number)) for number in range(len(settings.lines))
        ]
        share_legend(figure, handles, [line.words for line in settings.lines], 2)
    return Drawn(_caption(settings, points, bars, words), _alternative(settings, points), points)


def _style(settings: CircuitPanelsSettings, number: int) -> dict[str, Any]:
    line = settings.lines[number]
    # A colour for each network and mode; rules of one mode differ in the dashes.
    modes = list(dict.fromkeys((own.network, own.mode) for own in settings.lines))
    modes = [own for own in modes if own[1] != "packets"]
    colour = GREY
    if line.mode != "packets":
        place = modes.index((line.network, line.mode))
        colour = PALETTE[_COLOURS[place % len(_COLOURS)]]
    return {
        "color": colour,
        "linestyle": (0, (4, 2)) if line.dashed else "solid",
        "linewidth": LINE_POINTS,
        "marker": _MARKS[number % len(_MARKS)],
        "markersize": 4,
    }


def _points(settings: CircuitPanelsSettings, table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    for key, wanted, column in (
        ("jobs", list(settings.jobs), "job"),
        ("bars", list(settings.bars), "network"),
        ("lines", [line.network for line in settings.lines], "network"),
    ):
        known = list(dict.fromkeys(table[column]))
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise UserError(f"{key}: got {', '.join(unknown)}; allowed: {', '.join(known)}")
    if set(settings.above) != set(settings.jobs):
        raise UserError(f"above: got {', '.join(settings.above)}; allowed: the jobs")
    rows: list[dict[str, Any]] = []
    for job in settings.jobs:
        for basis in _BASES:
            own = table[
                (table["job"] == job) & (table["basis"] == basis) & table["step_ms"].notna()
            ]
            for number, line in enumerate(settings.lines):
                chosen = own[
                    (own["network"] == line.network)
                    & (own["mode"] == line.mode)
                    & (own["rule"] == line.rule)
                ].sort_values("latency_ms")
                if chosen.empty:
                    raise UserError(
                        f"lines[{number}]: no {line.mode} of {line.network} for {job}; allowed:"
                        f" {', '.join(sorted(set(own['mode'])))}"
                    )
                rows += [
                    {
                        "job": job,
                        "basis": basis,
                        "line": number,
                        "words": line.words,
                        **{name: row[name] for name in COLUMNS[4:12]},
                    }
                    for row in chosen.to_dict("records")
                ]
    points = pd.DataFrame(rows)
    base = points[(points["line"] == 0) & (points["basis"] == "equal_bandwidth")]
    least = base.groupby("job")["step_ms"].min()
    points["relative"] = points["step_ms"] / points["job"].map(least)
    return points


def _bars(settings: CircuitPanelsSettings, table: pd.DataFrame) -> pd.DataFrame:
    own = table[(table["basis"] == "equal_bandwidth") & (table["job"] == list(settings.jobs)[-1])]
    own = own.drop_duplicates("network")
    bars = own.set_index("network").loc[list(settings.bars)]
    return bars.assign(words=list(settings.bars.values())).reset_index()


def _panel(axes: Axes, settings: CircuitPanelsSettings, points: pd.DataFrame) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    some = sorted({value for value in points["latency_ms"] if value > 0})
    zero = some[0] / _ZERO
    for number in range(len(settings.lines)):
        own = points[points["line"] == number].sort_values("latency_ms")
        x = own["latency_ms"].where(own["latency_ms"] > 0, zero)
        axes.plot(x, own["relative"], **_style(settings, number))
    axes.set_xscale("log")
    ticks = [
        zero,
        *(10.0**power for power in range(-1, 4, 2) if some[0] <= 10.0**power <= some[-1]),
    ]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "0" if abs(value / zero - 1) < 1e-6 else f"{value:,g}")
    )


def _bar_panel(axes: Axes, bars: pd.DataFrame, column: str, title: str) -> None:
    places = np.arange(len(bars))
    axes.barh(places, bars[column], color=GREY, height=0.62)
    for place, words, value in zip(places, bars["words"], bars[column], strict=True):
        axes.annotate(
            f"{words}: {quantity(float(value))}",
            (float(value), place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.8 * float(bars[column].max()))
    axes.set_xticks([])
    axes.set_title(title)


def _caption(
    settings: CircuitPanelsSettings,
    points: pd.DataFrame,
    bars: pd.DataFrame,
    words: PanelWords,
) -> str:
    parts = []
    for basis, basis_words in _BASES.items():
        for job, name in settings.jobs.items():
            own = points[(points["basis"] == basis) & (points["job"] == job)]
            at = float(own.loc[own["latency_ms"] >= 10, "latency_ms"].min())
            there = own[own["latency_ms"] == at].sort_values("step_ms")
            best = there.iloc[0]
            switched = there[there["mode"] != "packets"].iloc[0]
            text = (
                f"{name} at {basis_words} and {at:g} ms: {switched['words']} is the fastest optical"
            )
            text += f" network at {quantity(switched['relative'])}"
            if best["mode"] == "packets":
                text += f", {best['words']} at {quantity(best['relative'])}"
            parts.append(text + ".")
    costs = "; ".join(
        f"{row['words']} {quantity(row['cost_per_gpu_usd'])} USD and"
        f" {quantity(row['watts_per_gpu'])} W per GPU"
        for row in bars.to_dict("records")
    )
    return sentence(
        words.caption,
        *parts,
        f"{words.bars.capitalize()}: {costs}.",
    )


def _alternative(settings: CircuitPanelsSettings, points: pd.DataFrame) -> str:
    texts = []
    for job, name in settings.jobs.items():
        for number, line in enumerate(settings.lines):
            own = points[
                (points["job"] == job)
                & (points["line"] == number)
                & (points["basis"] == "equal_bandwidth")
            ].sort_values("latency_ms")
            texts.append(
                f"{name}, {line.words}: {quantity(own['relative'].iloc[0])} without latency,"
                f" {quantity(own['relative'].iloc[-1])} at {own['latency_ms'].iloc[-1]:g} ms"
            )
    return (
        "Step times over switching latency at equal bandwidth and at equal cost, with bars of cost"
        f" and power of {len(settings.bars)} networks. {'; '.join(texts)}."
    )
