"""Channel loads under uniform all-to-all traffic, by kind of channel.

Channels are drawn in descending order of their load. The largest load bounds the
throughput; how fast the line falls shows how much of the capacity is idle at that
bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.figures.figure import AxisScale, Canvas, Drawn, Height, Tables, TopologyChoice, declare
from railx.figures.panels import panel_title, share_legend, tiles
from railx.figures.tables import stack, to_frame
from railx.figures.theme import colours, label
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import fidelity_line, quantity, sentence, spoken
from railx.settings import Between

__all__ = ["FIGURE", "ChannelLoadsSettings"]

_MOST_STEPS = 800


@dataclass(frozen=True)
class ChannelLoadsSettings(TopologyChoice):
    """Channel loads in descending order, one panel per topology."""

    figure: Literal["channel_loads"] = "channel_loads"
    height_inches: Height = 6

    only: tuple[str, ...] = ("railx_hyperx", "railx_hyperx_m4n2")

    columns: Annotated[int, Between(1, 64)] = 2
    """Panels side by side."""

    scale: AxisScale = "linear"
    """Scale of the load axes."""


def draw(settings: ChannelLoadsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One panel per topology and routing."""
    frame = tables.read("channels", "topology", settings.only)
    groups = list(frame.groupby(["topology", "routing"], sort=False))
    columns = min(settings.columns, len(groups))
    subtitle = """Every channel in descending order of its load. Load: flits per cycle on a channel
        when each chip offers one flit per cycle."""
    with canvas(subtitle, fidelity_line(frame["fidelity"])) as page:
        panels = tiles(page, len(groups), columns, sharex=True)
        colour = colours(sorted(set(frame["kind"])))
        for axes, ((topology, routing), rows) in zip(panels, groups, strict=True):
            _panel(axes, rows, colour)
            title = f"{label(str(topology))}, {label(str(routing))}"
            title += f"\nlargest {quantity(rows['load'].max())}"
            axes.set(title=panel_title(title, columns, settings), yscale=settings.scale)
            if settings.scale == "linear":
                axes.set_ylim(bottom=0)
        for axes in panels[-columns:]:
            axes.set_xlabel("Share of channels of the kind (%)")
            axes.tick_params(labelbottom=True)
        for axes in panels[::columns]:
            axes.set_ylabel("Load")
        legend = {label(kind): {"color": shade} for kind, shade in colour.items()}
        share_legend(page, legend, len(colour))
    return Drawn(_caption(frame), _alternative(frame), _data(frame))


def _steps(loads: Series[float]) -> tuple[np.ndarray, np.ndarray]:
    """Share of channels in percent and load, in descending order of load.

    A step for each channel while there are few, else as many as the page can show.
    """
    falling = np.sort(loads.to_numpy())[::-1]
    chosen = np.unique(np.linspace(0, len(falling) - 1, min(len(falling), _MOST_STEPS)).astype(int))
    share = 100 * np.append(chosen, len(falling)) / len(falling)
    return share, np.append(falling[chosen], falling[-1])


def _data(frame: DataFrame) -> DataFrame:
    parts = []
    for (topology, routing, kind), rows in frame.groupby(
        ["topology", "routing", "kind"], sort=False
    ):
        share, load = _steps(rows["load"])
        steps = to_frame({"share_of_channels_percent": share, "load": load})
        names = {"topology": str(topology), "routing": str(routing), "kind": str(kind)}
        steps = steps.assign(**names, channels=len(rows))
        parts.append(steps[[*names, "channels", "share_of_channels_percent", "load"]])
    return stack(parts)


def _groups(frame: DataFrame) -> list[tuple[str, float, float, str]]:
    """Name, largest load, it over the mean of the kind that has it, and that kind."""
    largest_loads = []
    for (topology, routing), rows in frame.groupby(["topology", "routing"], sort=False):
        busiest = rows.iloc[int(rows["load"].to_numpy().argmax())]
        mean = float(rows.loc[rows["kind"] == busiest["kind"], "load"].mean())
        largest = float(busiest["load"])
        name = f"{spoken(label(str(topology)))}, {routing} routing"
        largest_loads.append((name, largest, largest / mean, label(str(busiest["kind"])).lower()))
    return largest_loads


def _caption(frame: DataFrame) -> str:
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


def _alternative(frame: DataFrame) -> str:
    parts = [f"{name} from {quantity(largest)}" for name, largest, _, _ in _groups(frame)]
    return f"Falling lines of channel loads, one per kind of channel: {'; '.join(parts)}."


def _panel(axes: Axes, rows: DataFrame, colour: dict[str, str]) -> None:
    for i, (kind, mine) in enumerate(rows.groupby("kind")):
        share, load = _steps(mine["load"])
        # Lines that lie on one another stay visible: each is thinner than the last.
        wide = max(3.2 - i, 1.0)
        axes.step(share, load, where="post", color=colour[str(kind)], linewidth=wide)
    axes.margins(y=0.14)
    axes.set_xlim(0, 100)


FIGURE = declare(
    ChannelLoadsSettings,
    "Channel loads under uniform all-to-all traffic",
    "railx",
    draw,
    channels="network.channels: topology routing src dst kind rail load fidelity",
)
