"""All-to-all bandwidth per chip by topology: the ideal and the routing's bound.

Both stand beside the injection bandwidth too. The ideal spreads the load evenly over
the external channels. The bound divides the capacity by the largest static channel load
under the routing (RailX, all-to-all formulas).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import AxisScale, CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import canvas, colours, label, lighter, quantity
from railx.settings import NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "AllToAllBandwidthSettings"]

_CAPTION = """\
All-to-all bandwidth per chip under uniform traffic. The *ideal* spreads the load evenly
over the external channels; the *bound* divides the capacity by the load of the busiest
channel under the given routing. On the right both are a share of the injection
bandwidth, so that networks with different ports can be compared.
"""
_ALTERNATIVE = (
    "Bars of the all-to-all bandwidth per chip of each topology: the ideal, the bound "
    "under the given routing, and both as a share of the injection bandwidth."
)

_COLUMNS = (
    "topology",
    "family",
    "chips",
    "traffic",
    "routing",
    "injection_gb_s_per_chip",
    "ideal_gb_s_per_chip",
    "bound_gb_s_per_chip",
    "fidelity",
)


@dataclass(frozen=True)
class AllToAllBandwidthSettings(CanvasSettings):
    """All-to-all bandwidth by topology for one traffic pattern."""

    figure: Literal["all_to_all_bandwidth"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Topologies to show, in that order; empty: all that there are."""

    traffic: Annotated[str, NotEmpty()]
    """Traffic pattern of the rows to show."""

    scale: AxisScale
    """Scale of the bandwidth axes."""


def draw(settings: AllToAllBandwidthSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A group of bars per topology: the ideal, then the bound under each routing.

    The rows are those of ``settings.traffic``. Raises ValueError when no row has that
    traffic.
    """
    frame = read_frames(inputs, "bounds", _COLUMNS, "topology", settings.only)
    rows = frame[frame["traffic"] == settings.traffic].reset_index(drop=True)
    if rows.empty:
        raise ValueError(
            f"traffic: got {settings.traffic!r}; allowed:"
            f" {', '.join(sorted(set(frame['traffic'])))}"
        )
    share = rows.assign(
        ideal=100 * rows["ideal_gb_s_per_chip"] / rows["injection_gb_s_per_chip"],
        bound=100 * rows["bound_gb_s_per_chip"] / rows["injection_gb_s_per_chip"],
    )
    bandwidth = rows.assign(ideal=rows["ideal_gb_s_per_chip"], bound=rows["bound_gb_s_per_chip"])
    ideal_and_bound = (
        "Ideal: even load on all external channels. Bound: set by the most loaded channel."
    )
    subtitle = f"{label(settings.traffic)} traffic, one direction. {ideal_and_bound}"
    with canvas(
        settings,
        output,
        "All-to-all bandwidth by topology",
        subtitle,
        fidelity_line(rows["fidelity"]),
    ) as figure:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.15, 1])
        _groups(left, bandwidth, "")
        _groups(right, share, " %")
        left.set(title="Bandwidth", xlabel="All-to-all bandwidth per chip (GB/s)")
        right.set(title="Share of injection", xlabel="Share of injection bandwidth (%)")
        for panel in (left, right):
            panel.set_xscale(settings.scale)
            panel.margins(x=0.0)
            low, high = panel.get_xlim()
            panel.set_xlim(low, high * (1.6 if settings.scale == "linear" else 4.0))
    return Drawn(_CAPTION, _ALTERNATIVE, rows)


def _groups(axes: Axes, rows: pd.DataFrame, unit: str) -> None:
    """Horizontal bars in groups.

    Where all routings have the same bound, one bar stands for them.
    """
    colour = colours(rows["family"])
    place, ticks, names = 0.0, [], []
    for _, group in rows.groupby("topology", sort=False):
        first = group.iloc[0]
        shade = colour[str(first["family"])]
        bars = [("ideal", float(first["ideal"]), lighter(shade, 0.65))]
        bounds = {
            str(routing): float(bound)
            for routing, bound in zip(group["routing"], group["bound"], strict=True)
        }
        if max(bounds.values()) <= min(bounds.values()) * (1 + 1e-9):
            bars.append(("bound", next(iter(bounds.values())), lighter(shade, 0)))
        else:
            fills = [lighter(shade, 0.3 * i / len(bounds)) for i in range(len(bounds))]
            bars += [
                (f"bound, {routing} routing", bounds[routing], fill)
                for routing, fill in zip(bounds, fills, strict=True)
            ]
        start = place
        for name, value, fill in bars:
            bar = axes.barh(place, value, height=0.9, color=fill)
            axes.bar_label(bar, [f"{quantity(value)}{unit} {name}"], padding=3)
            place += 1
        ticks.append((start + place - 1) / 2)
        names.append(_name(first))
        place += 0.8
    axes.set_yticks(ticks, names)
    axes.set_ylim(place - 1.1, -0.8)
    axes.grid(axis="y", visible=False)


def _name(row: pd.Series) -> str:
    return (
        f"{label(row['topology'])}\n{row['chips']:,} chips,"
        f" {quantity(row['injection_gb_s_per_chip'])} GB/s injection"
    )


FIGURE = Figure(
    settings=AllToAllBandwidthSettings,
    title="All-to-all bandwidth by topology",
    paper="railx",
    inputs=(FigureInput("bounds", "network.bounds"),),
    draw=draw,
)
