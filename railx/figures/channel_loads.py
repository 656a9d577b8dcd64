"""Channel loads under uniform all-to-all traffic, by kind of channel.

Every channel stands in descending order of its load. The largest load bounds the
throughput; how fast the line falls shows how much of the capacity is idle at that
bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import AxisScale, CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import canvas, colours, label, panel_title, quantity
from railx.settings import AtLeast

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "ChannelLoadsSettings"]

_CAPTION = """\
Load of every channel under uniform all-to-all traffic, in descending order, by kind of
channel. The largest load bounds the throughput; the further the line falls, the more
capacity is idle at that bound.
"""
_ALTERNATIVE = (
    "For each topology, the load of its channels in descending order, one line per kind of channel."
)

_COLUMNS = ("topology", "routing", "src", "dst", "kind", "rail", "load", "fidelity")
_MOST_STEPS = 800
_BREAK = "\n"


@dataclass(frozen=True)
class ChannelLoadsSettings(CanvasSettings):
    """Channel loads in descending order, one panel per topology."""

    figure: Literal["channel_loads"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Topologies to show, in that order; empty: all that there are."""

    columns: Annotated[int, AtLeast(1)]
    """Panels side by side."""

    scale: AxisScale
    """Scale of the load axes."""


def draw(settings: ChannelLoadsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One panel per topology and routing."""
    frame = read_frames(inputs, "channels", _COLUMNS, "topology", settings.only)
    frame = frame.assign(
        panel=frame["topology"].astype(str) + _BREAK + frame["routing"].astype(str)
    )
    names = list(dict.fromkeys(frame["panel"]))
    columns = min(settings.columns, len(names))
    rows = math.ceil(len(names) / columns)
    subtitle = (
        "Every channel in descending order of its load. "
        "Load: flits per cycle on a channel when each chip offers one flit per cycle."
    )
    with canvas(
        settings,
        output,
        "Channel loads under uniform all-to-all traffic",
        subtitle,
        fidelity_line(frame["fidelity"]),
    ) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
        colour = colours(sorted(set(frame["kind"])))
        for axes, name in zip(panels.flat, names, strict=False):
            _panel(axes, frame[frame["panel"] == name], colour)
            largest = frame.loc[frame["panel"] == name, "load"].max()
            title = (
                f"{', '.join(label(part) for part in name.split(_BREAK))}\nlargest"
                f" {quantity(largest)}"
            )
            axes.set_title(panel_title(title, columns, settings))
            axes.set_yscale(settings.scale)
            if settings.scale == "linear":
                axes.set_ylim(bottom=0)
        for axes in panels.flat[len(names) :]:
            axes.set_visible(False)
        for column in range(columns):
            lowest = panels[(len(names) - 1 - column) // columns, column]
            lowest.set_xlabel("Share of channels of the kind (%)")
            lowest.tick_params(labelbottom=True)
        for axes in panels[:, 0]:
            axes.set_ylabel("Load")
    return Drawn(_CAPTION, _ALTERNATIVE, frame)


def _panel(axes: Axes, rows: pd.DataFrame, colour: dict[str, str]) -> None:
    for kind, mine in rows.groupby("kind"):
        loads = np.sort(mine["load"].to_numpy())[::-1]
        # A step for each channel while there are few, else as many steps as the page
        # can show.
        kept = np.unique(np.linspace(0, len(loads) - 1, min(len(loads), _MOST_STEPS)).astype(int))
        share = 100 * np.append(kept, len(loads)) / len(loads)
        name = f"{label(str(kind))} ({len(loads):,})"
        axes.step(
            share,
            np.append(loads[kept], loads[-1]),
            where="post",
            color=colour[str(kind)],
            linewidth=1.8,
            label=name,
        )
    axes.margins(y=0.14)
    axes.set_xlim(0, 100)
    axes.legend(loc="best")


FIGURE = Figure(
    settings=ChannelLoadsSettings,
    title="Channel loads under uniform all-to-all traffic",
    paper="railx",
    inputs=(FigureInput("channels", "network.channels"),),
    draw=draw,
)
