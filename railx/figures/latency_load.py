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
from railx.figures.theme import GREY, INK, PALETTE, canvas, label, quantity, share_legend
from railx.settings import AtLeast

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure
    from matplotlib.lines import Line2D

__all__ = ["FIGURE", "LatencyLoadSettings"]

_CAPTION = """\
Packet by packet, under the cycle model of the RailX simulator's published inputs
(4-flit packets, 64 flits for each of the virtual channels, three of them on most
networks). Latency counts from the creation of a packet to the arrival of its tail,
queueing at the source included, over the packets that arrive in the measured window;
saturated is a load of which less than the given share is accepted. The static bound is
the load at which the busiest channel is full under the same routing, the ideal that at
which the external links would be if they were evenly loaded. Networks of one group
share their ports per chip, not their latencies: those are the published ones of each.
Packets fall short of the bound because a buffer is first in, first out: a blocked head
holds up what stands behind it, the more so the fewer virtual channels a link has. Under
overload more than the bound may arrive: traffic that does not cross the busiest channel
goes on.
"""
_ALTERNATIVE = (
    "Lines of the mean packet latency over the offered load, one line per sweep, which rise "
    "steeply at the saturation point; below, for each sweep, the saturation point, the "
    "largest rate accepted, the static bound and the ideal."
)

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

    Below, saturation and limits of every sweep.
    """
    frame = _medians(read_frames(inputs, "points", _COLUMNS, "sweep", settings.only))
    subtitle = (
        "Above: creation to arrival of the tail, queueing at the source included; bars: 95 %"
        " confidence; hollow: saturated; dotted: the saturation point. Below: the loads at which"
        " each network saturates and would at best; the number is the largest rate accepted over"
        " the static bound."
    )
    panels = _panels(frame, settings.panels)
    with canvas(
        settings, output, "Latency against offered load", subtitle, fidelity_line(frame["fidelity"])
    ) as figure:
        sweeps = frame["sweep"].nunique()
        below = min(0.6, max(0.28, (sweeps + _ROWS_AROUND) * 0.23 / settings.height_inches))
        halves: Any = figure.subfigures(2, 1, height_ratios=[1 - below, below])
        top, bottom = halves
        colours = {
            item: PALETTE[i % len(PALETTE)] for own in panels.values() for i, item in enumerate(own)
        }
        names = _names(frame)
        _draw_latency(top, frame, settings, panels, colours, names)
        order = [item for own in panels.values() for item in own]
        _draw_limits(
            bottom.subplots(), frame.groupby("sweep").first().loc[order], frame, colours, names
        )
        marks = _marks()
        share_legend(figure, [mark for mark, _ in marks], [meaning for _, meaning in marks], 4)
    return Drawn(_CAPTION, _ALTERNATIVE, frame)


def _medians(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per sweep and load: medians over the seeds.

    Saturated is a load that most of them cannot take.
    """
    words = ["sweep", "topology", "family", "chips", "traffic", "routing", "fidelity"]
    keys = [*words, _OFFERED]
    whole = frame.assign(
        **{
            column: frame.groupby("sweep", sort=False)[column].transform("median")
            for column in (_SATURATION, _BOUND, _IDEAL)
        }
    )
    medians = whole.groupby(keys, sort=False, dropna=False).median().reset_index()
    return medians.assign(saturated=medians["saturated"] >= 0.5)[list(_COLUMNS)]


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
    frame: pd.DataFrame,
    settings: LatencyLoadSettings,
    panels: dict[str, list[str]],
    colours: dict[str, str],
    names: dict[str, str],
) -> None:
    lowest = 0.8 * float(frame[_LATENCY].min())
    highest = settings.max_latency_cycles or 1.2 * float(frame[_LATENCY].max())
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, items) in zip(row, panels.items(), strict=True):
        for item in items:
            _draw_line(
                axes,
                frame[frame["sweep"] == item].sort_values(_OFFERED),
                colours[item],
                names[item],
                highest,
            )
        own = frame[frame["sweep"].isin(items)]
        axes.set(title=title, xlim=(0, 1.25 * float(own[_SATURATION].max())))
        axes.legend(
            loc="upper left",
            handlelength=1.2,
            labelspacing=0.25,
            borderaxespad=0.3,
            frameon=True,
            edgecolor="none",
            framealpha=0.85,
        )
    row[0].set(yscale="log", ylabel="Mean latency (cycles)", ylim=(lowest, highest))
    row[0].yaxis.set_major_formatter(lambda value, _: quantity(value))
    row[0].yaxis.set_minor_formatter(
        lambda value, _: quantity(value) if f"{value:.0e}"[0] in "25" else ""
    )
    figure.supxlabel("Offered load (flits/chip/cycle)")


def _draw_line(axes: Axes, line: pd.DataFrame, colour: str, name: str, highest: float) -> None:
    width = np.minimum(line["latency_ci95_cycles"].fillna(0.0), 0.9 * line[_LATENCY])
    axes.errorbar(
        line[_OFFERED],
        line[_LATENCY],
        yerr=width,
        label=name,
        linewidth=1.6,
        elinewidth=1,
        capsize=2,
        color=colour,
    )
    axes.vlines(line[_SATURATION].iloc[0], 0.1, highest, color=colour, linewidth=1, linestyle=":")
    for saturated in (False, True):
        points = line[line["saturated"] == saturated]
        face = "white" if saturated else colour
        axes.plot(
            points[_OFFERED],
            points[_LATENCY],
            "o",
            color=colour,
            markerfacecolor=face,
            markersize=4.5,
        )


def _draw_limits(
    axes: Axes,
    first: pd.DataFrame,
    frame: pd.DataFrame,
    colours: dict[str, str],
    names: dict[str, str],
) -> None:
    accepted = frame.groupby("sweep")[_ACCEPTED].max().to_dict()
    for row, (item, sweep) in enumerate(first.iterrows()):
        colour = colours[str(item)]
        axes.hlines(
            row,
            sweep[_SATURATION],
            max(sweep[_IDEAL], sweep[_BOUND]),
            color=colour,
            linewidth=1.2,
            alpha=0.5,
        )
        axes.plot(sweep[_IDEAL], row, "D", color=GREY, markerfacecolor="white", markersize=6)
        axes.plot(sweep[_BOUND], row, "|", color=INK, markersize=11, markeredgewidth=1.8)
        axes.plot(accepted[item], row, "o", color=colour, markerfacecolor="white", markersize=5.5)
        axes.plot(sweep[_SATURATION], row, "o", color=colour, markersize=5.5)
        beside = 1.08 * max(sweep[_IDEAL], sweep[_BOUND], accepted[item])
        axes.text(
            beside,
            row,
            f"{accepted[item] / sweep[_BOUND]:.0%}",
            va="center",
            color=GREY,
        )
    axes.set(
        ylim=(len(first) - 0.4, -0.6),
        xlabel="Offered load (flits/chip/cycle)",
        title="Saturation and limits",
    )
    axes.set_yticks(range(len(first)), [names[str(item)] for item in first.index])
    low, high = float(first[_SATURATION].min()), float(first[[_IDEAL, _BOUND]].max().max())
    axes.set_xlim(0.75 * low, 1.4 * high)
    ticks = [step * 10.0**power for power in range(-4, 5) for step in (1, 2, 3, 5, 7)]
    shown = [tick for tick in ticks if 0.75 * low < tick < 1.4 * high]
    if len(shown) > 3:  # networks far apart; else a linear axis says more
        axes.set_xscale("log")
        axes.set_xticks(shown)
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
    axes.grid(visible=False, axis="y")


def _marks() -> list[tuple[Line2D, str]]:
    """What the marks below mean."""
    from matplotlib.lines import Line2D

    own: dict[str, Any] = {"linestyle": "none", "color": INK}
    return [
        (Line2D([], [], marker="o", markersize=5.5, **own), "saturation point"),
        (
            Line2D([], [], marker="o", markersize=5.5, markerfacecolor="white", **own),
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
                marker="D",
                markersize=6,
                markerfacecolor="white",
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
    inputs=(FigureInput("points", "packets.points"),),
    draw=draw,
)
