"""Latency against offered load, and where each network saturates.

Saturation is shown as a share of the network's static limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    GREY,
    INK,
    PALETTE,
    canvas,
    label,
    quantity,
    share_legend,
)
from railx.figures.words import counted, listed, sentence, spoken
from railx.settings import AtLeast

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure
    from matplotlib.lines import Line2D

__all__ = ["FIGURE", "LatencyLoadSettings"]

_COLUMNS = (
    "sweep",
    "topology",
    "family",
    "chips",
    "traffic",
    "routing",
    "offered_flits_per_chip_cycle",
    "accepted_flits_per_chip_cycle",
    "latency_mean_cycles",
    "latency_ci95_cycles",
    "saturated",
    "saturation_flits_per_chip_cycle",
    "bound_flits_per_chip_cycle",
    "ideal_flits_per_chip_cycle",
    "seed",
    "fidelity",
)
_OFFERED, _ACCEPTED, _LATENCY = (
    "offered_flits_per_chip_cycle",
    "accepted_flits_per_chip_cycle",
    "latency_mean_cycles",
)
_SATURATION, _BOUND, _IDEAL = (
    f"{what}_flits_per_chip_cycle" for what in ("saturation", "bound", "ideal")
)
#: Rows of text that the limits need for themselves, beside one per sweep.
_ROWS_AROUND = 4.5


@dataclass(frozen=True)
class LatencyLoadSettings(CanvasSettings):
    """Latency over the offered load, one line per sweep, and the saturation points.

    The points stand against the static limits.
    """

    figure: Literal["latency_load"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Sweeps to show, in that order; empty: all that there are."""

    panels: dict[str, tuple[str, ...]]
    """Title of each panel, with the families that it shows. Sweeps of families that
    are not named share one more panel."""

    max_latency_cycles: Annotated[float, AtLeast(10)] | None
    """Top of the latency axis in cycles; null: the largest latency."""


def draw(settings: LatencyLoadSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Above, the mean latency over the offered load by group of families.

    Below, saturation and limits of every sweep. Over several seeds lines are medians
    and bands reach from the least to the most.
    """
    frame = read_frames(inputs, "points", _COLUMNS, "sweep", settings.only)
    points, sweeps = _points(frame), _sweeps(frame)
    seeds = int(sweeps["seeds"].max())
    repeats = (
        f"line: median, band: least to most of {seeds} seeds"
        if seeds > 1
        else "one seed, bars: 95 % confidence"
    )
    subtitle = (
        f"Above: creation to arrival of the tail, queueing at the source included; {repeats};"
        " hollow: saturated; dotted: the saturation point. Below: the loads at which each network"
        " saturates and would at best."
    )
    panels = _panels(frame, settings.panels)
    with canvas(
        settings, output, "Latency against offered load", subtitle, fidelity_line(frame["fidelity"])
    ) as figure:
        below = min(0.6, max(0.28, (len(sweeps) + _ROWS_AROUND) * 0.21 / settings.height_inches))
        halves: Any = figure.subfigures(2, 1, height_ratios=[1 - below, below])
        top, bottom = halves
        colours = {
            item: PALETTE[i % len(PALETTE)] for own in panels.values() for i, item in enumerate(own)
        }
        names = _names(frame)
        _draw_latency(top, points, sweeps, settings, panels, colours, names)
        order = [item for own in panels.values() for item in own]
        _draw_limits(bottom.subplots(), sweeps.loc[order], colours, names)
        marks = _marks()
        share_legend(figure, [mark for mark, _ in marks], [meaning for _, meaning in marks], 2)
    data = points.merge(
        sweeps.drop(columns="seeds"), left_on="sweep", right_index=True, validate="many_to_one"
    )
    return Drawn(_caption(sweeps, names), _alternative(sweeps, names), data)


def _points(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each sweep and load: medians over the seeds, and how far they go."""
    groups = frame.groupby(["sweep", _OFFERED], sort=False)
    points = groups.agg(
        latency=(_LATENCY, "median"),
        least=(_LATENCY, "min"),
        most=(_LATENCY, "max"),
        confidence=("latency_ci95_cycles", "max"),
        accepted=(_ACCEPTED, "median"),
        saturated=("saturated", "mean"),
        seeds=("seed", "nunique"),
    ).reset_index()
    return points.assign(saturated=points["saturated"] >= 0.5)


def _sweeps(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each sweep: saturation and limits as medians over the seeds."""
    each = frame.groupby(["sweep", "seed"], sort=False).agg(
        saturation=(_SATURATION, "first"),
        bound=(_BOUND, "first"),
        ideal=(_IDEAL, "first"),
        accepted=(_ACCEPTED, "max"),
    )
    over = each.groupby("sweep", sort=False)
    return over.median().assign(
        saturation_least=over["saturation"].min(),
        saturation_most=over["saturation"].max(),
        seeds=over.size(),
    )


def _panels(frame: pd.DataFrame, wanted: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """The sweeps of each panel that has any, in the order of the files."""
    family = frame.groupby("sweep", sort=False)["family"].first()
    named = {each for families in wanted.values() for each in families}
    panels = {
        title: family[family.isin(families)].index.tolist() for title, families in wanted.items()
    }
    others = "Other networks" if any(panels.values()) else "Latency"
    panels[others] = family[~family.isin(named)].index.tolist()
    return {title: items for title, items in panels.items() if items}


def _draw_latency(
    figure: SubFigure,
    points: pd.DataFrame,
    sweeps: pd.DataFrame,
    settings: LatencyLoadSettings,
    panels: dict[str, list[str]],
    colours: dict[str, str],
    names: dict[str, str],
) -> None:
    lowest = 0.8 * float(points["least"].min())
    highest = settings.max_latency_cycles or 1.2 * float(points["most"].max())
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, items) in zip(row, panels.items(), strict=True):
        for item in items:
            line = points[points["sweep"] == item].sort_values(_OFFERED)
            _draw_line(axes, line, colours[item], names[item])
            axes.axvline(sweeps.loc[item, "saturation"], color=colours[item], linestyle=":", lw=1)
        axes.set_xlim(0, 1.25 * float(sweeps.loc[items, "saturation"].max()))
        axes.legend(
            title=title,
            title_fontproperties={"weight": "bold"},
            alignment="left",
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            handlelength=1.4,
            labelspacing=0.25,
            borderaxespad=0.2,
        )
    row[0].set(yscale="log", ylabel="Mean latency (cycles)", ylim=(lowest, highest))
    row[0].yaxis.set_major_formatter(lambda value, _: quantity(value))
    row[0].yaxis.set_minor_formatter(
        lambda value, _: quantity(value) if f"{value:.0e}"[0] in "25" else ""
    )
    figure.supxlabel("Offered load (flits/chip/cycle)")


def _draw_line(axes: Axes, line: pd.DataFrame, colour: str, name: str) -> None:
    axes.plot(line[_OFFERED], line["latency"], label=name, linewidth=1.6, color=colour)
    if line["seeds"].max() > 1:
        axes.fill_between(
            line[_OFFERED], line["least"], line["most"], color=colour, alpha=0.25, linewidth=0
        )
    else:
        width = np.minimum(line["confidence"].fillna(0.0), 0.9 * line["latency"])
        axes.errorbar(
            line[_OFFERED],
            line["latency"],
            yerr=width,
            linestyle="none",
            elinewidth=1,
            capsize=2,
            color=colour,
        )
    for saturated in (False, True):
        points = line[line["saturated"] == saturated]
        axes.plot(
            points[_OFFERED],
            points["latency"],
            "o",
            color=colour,
            markerfacecolor="white" if saturated else colour,
            markersize=4.5,
        )


def _draw_limits(
    axes: Axes, sweeps: pd.DataFrame, colours: dict[str, str], names: dict[str, str]
) -> None:
    for row, (item, sweep) in enumerate(sweeps.iterrows()):
        colour = colours[str(item)]
        axes.hlines(
            row,
            sweep["saturation"],
            max(sweep["ideal"], sweep["bound"]),
            color=colour,
            linewidth=1,
        )
        axes.hlines(
            row, sweep["saturation_least"], sweep["saturation_most"], color=colour, linewidth=4
        )
        axes.plot(sweep["ideal"], row, "s", color=GREY, markerfacecolor="none", markersize=7)
        axes.plot(sweep["bound"], row, "|", color=INK, markersize=11, markeredgewidth=1.8)
        axes.plot(sweep["accepted"], row, "o", color=colour, markerfacecolor="none", markersize=5.5)
        axes.plot(sweep["saturation"], row, "o", color=colour, markersize=5.5)
    axes.set(
        ylim=(len(sweeps) - 0.4, -0.6),
        xlabel="Offered load (flits/chip/cycle)",
        title="Saturation and limits",
    )
    axes.set_yticks(range(len(sweeps)), [names[str(item)] for item in sweeps.index])
    rates = axes.secondary_yaxis("right")
    shares = sweeps["accepted"] / sweeps["bound"]
    rates.set_yticks(range(len(sweeps)), [f"{share:.0%}" for share in shares])
    rates.set_ylabel("Largest rate / bound")
    low = float(sweeps["saturation_least"].min())
    high = float(sweeps[["ideal", "bound", "accepted"]].max().max())
    axes.set_xlim(0.75 * low, 1.2 * high)
    ticks = [step * 10.0**power for power in range(-4, 5) for step in (1, 2, 3, 5, 7)]
    shown = [tick for tick in ticks if 0.75 * low < tick < 1.2 * high]
    if len(shown) > 3:  # networks far apart; else a linear axis says more
        axes.set_xscale("log")
        axes.set_xticks(shown)
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
    axes.grid(visible=False, axis="y")


def _caption(sweeps: pd.DataFrame, names: dict[str, str]) -> str:
    seeds, shares = int(sweeps["seeds"].max()), sweeps["saturation"] / sweeps["bound"]
    ordered = shares.sort_values()
    far, near = str(ordered.index[0]), str(ordered.index[-1])
    late, early = sweeps["saturation"].idxmax(), sweeps["saturation"].idxmin()
    over = [
        spoken(names[str(item)])
        for item in sweeps.index[sweeps["accepted"] > 1.005 * sweeps["bound"]]
    ]
    spread = float(((sweeps["saturation_most"] / sweeps["saturation_least"]) - 1).max())
    return sentence(
        f"{counted(len(sweeps), 'sweep')} of the offered load, packet by packet, under"
        f" {counted(seeds, 'seed')}.",
        f"Saturation points lie within {quantity(100 * spread)} % over the seeds."
        if seeds > 1
        else "",
        f"{spoken(names[str(late)])} saturates last, at {quantity(sweeps['saturation'].max())}"
        f" flits per"
        f" chip and cycle, {spoken(names[str(early)])} first, at"
        f" {quantity(sweeps['saturation'].min())}.",
        f"Packets come nearest to the static bound, the load at which the busiest channel is full,"
        f" on {spoken(names[near])} with {ordered.iloc[-1]:.0%} of it, and stay farthest below on"
        f" {spoken(names[far])} with {ordered.iloc[0]:.0%}: a buffer is first in, first out, and"
        f" a blocked"
        " head holds up what stands behind it.",
        f"Under overload more than the bound arrives on {listed(over)}: traffic that does not cross"
        " the busiest channel goes on."
        if over
        else "",
        "The ideal is the load at which the external links would be full if they were evenly"
        " loaded. The paper's own curves are not available as numbers.",
    )


def _alternative(sweeps: pd.DataFrame, names: dict[str, str]) -> str:
    rows = "; ".join(
        f"{spoken(names[str(item)])}: saturates at {quantity(row['saturation'])}, bound"
        f" {quantity(row['bound'])}, ideal {quantity(row['ideal'])}"
        for item, row in sweeps.iterrows()
    )
    return (
        "Lines of mean latency over offered load that turn up at saturation, and the saturation"
        f" points in flits per chip and cycle. {rows}."
    )


def _marks() -> list[tuple[Line2D, str]]:
    """What the marks below mean."""
    from matplotlib.lines import Line2D

    own: dict[str, Any] = {"linestyle": "none", "color": INK}
    return [
        (Line2D([], [], marker="o", markersize=5.5, **own), "saturation point"),
        (
            Line2D([], [], marker="o", markersize=5.5, markerfacecolor="none", **own),
            "largest rate accepted",
        ),
        (
            Line2D([], [], marker="|", markersize=11, markeredgewidth=1.8, **own),
            "static bound: busiest channel full",
        ),
        (
            Line2D(
                [],
                [],
                marker="s",
                markersize=7,
                markerfacecolor="none",
                markeredgecolor=GREY,
                linestyle="none",
            ),
            "ideal: external links evenly loaded",
        ),
    ]


def _names(frame: pd.DataFrame) -> dict[str, str]:
    """Topology, and what tells a sweep from the others on the same topology."""
    first = frame.groupby("sweep", sort=False).first()
    alone = first.groupby("topology")[["routing", "traffic"]].nunique() == 1
    names = {}
    for item, sweep in first.iterrows():
        extra = (
            [label(sweep["traffic"]).lower()] if not alone.loc[sweep["topology"], "traffic"] else []
        )
        extra += [str(sweep["routing"])] if not alone.loc[sweep["topology"], "routing"] else []
        names[str(item)] = ", ".join([label(sweep["topology"]), *extra])
    return names


FIGURE = Figure(
    settings=LatencyLoadSettings,
    title="Latency against offered load",
    paper="railx",
    inputs=(FigureInput("points", "packets.points", columns=_COLUMNS),),
    draw=draw,
)
