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
from railx.figures.theme import canvas, colours, label, panel_title, quantity, share_legend
from railx.figures.words import sentence, spoken
from railx.settings import Between

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "ChannelLoadsSettings"]


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

    columns: Annotated[int, Between(1, 64)]
    """Panels side by side."""

    scale: AxisScale
    """Scale of the load axes."""


def draw(settings: ChannelLoadsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One panel per topology and routing."""
    from matplotlib.lines import Line2D

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
        share_legend(
            figure,
            [Line2D([], [], color=shade) for shade in colour.values()],
            [label(kind) for kind in colour],
            len(colour),
        )
    return Drawn(_caption(frame), _alternative(frame), _data(frame))


def _steps(loads: pd.Series[float]) -> tuple[np.ndarray, np.ndarray]:
    """Share of channels in percent and load, in descending order of load.

    A step for each channel while there are few, else as many as the page can show.
    """
    falling = np.sort(loads.to_numpy())[::-1]
    kept = np.unique(np.linspace(0, len(falling) - 1, min(len(falling), _MOST_STEPS)).astype(int))
    share = 100 * np.append(kept, len(falling)) / len(falling)
    return share, np.append(falling[kept], falling[-1])


def _data(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    parts = []
    for (topology, routing, kind), own in frame.groupby(
        ["topology", "routing", "kind"], sort=False
    ):
        share, load = _steps(own["load"])
        steps = pd.DataFrame({"share_of_channels_percent": share, "load": load})
        parts.append(
            steps.assign(
                topology=str(topology), routing=str(routing), kind=str(kind), channels=len(own)
            )
        )
    whole = pd.concat(parts, ignore_index=True)
    return whole[["topology", "routing", "kind", "channels", *whole.columns[:2]]]


def _groups(frame: pd.DataFrame) -> list[tuple[str, float, float, str]]:
    """Name, largest load, it over the mean of the kind that has it, and that kind."""
    found = []
    for (topology, routing), own in frame.groupby(["topology", "routing"], sort=False):
        busiest = own.iloc[int(own["load"].to_numpy().argmax())]
        mean = float(own.loc[own["kind"] == busiest["kind"], "load"].mean())
        largest = float(busiest["load"])
        name = f"{spoken(label(str(topology)))}, {routing} routing"
        found.append((name, largest, largest / mean, label(str(busiest["kind"])).lower()))
    return found


def _caption(frame: pd.DataFrame) -> str:
    parts = [
        f"{name}: {quantity(largest)} on a link of kind {kind}, {quantity(over)} times the mean of"
        " its kind"
        for name, largest, over, kind in _groups(frame)
    ]
    return sentence(
        "Load of every channel under uniform all-to-all traffic, in descending order, by kind of"
        " channel. The largest load bounds the throughput; the further a line falls, the more"
        " capacity is idle at that bound.",
        f"The largest loads: {'; '.join(parts)}.",
    )


def _alternative(frame: pd.DataFrame) -> str:
    parts = [f"{name} from {quantity(largest)}" for name, largest, _, _ in _groups(frame)]
    return f"Falling lines of channel loads, one per kind of channel: {'; '.join(parts)}."


def _panel(axes: Axes, rows: pd.DataFrame, colour: dict[str, str]) -> None:
    for i, (kind, mine) in enumerate(rows.groupby("kind")):
        share, load = _steps(mine["load"])
        # Lines that lie on one another stay visible: each is thinner than the last.
        wide = max(3.2 - i, 1.0)
        axes.step(share, load, where="post", color=colour[str(kind)], linewidth=wide)
    axes.margins(y=0.14)
    axes.set_xlim(0, 100)


FIGURE = Figure(
    settings=ChannelLoadsSettings,
    title="Channel loads under uniform all-to-all traffic",
    paper="railx",
    inputs=(FigureInput("channels", "network.channels", columns=_COLUMNS),),
    draw=draw,
)
