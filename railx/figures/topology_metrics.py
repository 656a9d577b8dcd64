"""Hops between the nodes of the topologies, and what crosses their middle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import canvas, colours, label, lighter, quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "TopologyMetricsSettings"]

_CAPTION = """\
Hops between nodes and bisection bandwidth of the topologies. A hop is a link that
leaves a node; the bar ends at the diameter, the dot is the mean over all pairs of chips
in different places. RailX spans 2 hops as a 2D HyperX, 3 with one split dimension or as
a Dragonfly, 4 with both dimensions split. The bisection is counted on the family's
natural cut and checked against its closed form.
"""
_ALTERNATIVE = (
    "A row per topology: a line that ends at the diameter with a dot at the mean number "
    "of hops between nodes, and a bar of the bisection bandwidth as a share of the "
    "injection bandwidth."
)

_COLUMNS = (
    "topology",
    "family",
    "chips",
    "diameter_node_hops",
    "mean_node_hops",
    "bisection_gb_s_per_chip",
    "injection_gb_s_per_chip",
    "fidelity",
)


@dataclass(frozen=True)
class TopologyMetricsSettings(CanvasSettings):
    """Hops between nodes and bisection, one row per topology."""

    figure: Literal["topology_metrics"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Topologies to show, in that order; empty: all that there are."""


def draw(settings: TopologyMetricsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One row per topology.

    Mean hops are a dot, the diameter is the end of a line, the bisection is a share of
    the injection.
    """
    frame = read_frames(inputs, "topologies", _COLUMNS, "topology", settings.only)
    title = "Hops between nodes and bisection by topology"
    subtitle = (
        "A hop is a link that leaves a node (board, server or single chip). Bisection: one"
        " direction of the family's natural cut."
    )
    with canvas(settings, output, title, subtitle, fidelity_line(frame["fidelity"])) as figure:
        hops, bisection = figure.subplots(1, 2, sharey=True, width_ratios=[1.15, 1])
        colour = colours(frame["family"])
        _hops(hops, frame, colour)
        _bisection(bisection, frame, colour)
        hops.set_yticks(
            range(len(frame)),
            [
                f"{label(name)} ({chips:,})"
                for name, chips in zip(frame["topology"], frame["chips"], strict=True)
            ],
        )
        hops.set_ylim(len(frame) - 0.5, -0.5)
        for panel in (hops, bisection):
            panel.grid(axis="y", visible=False)
    return Drawn(_CAPTION, _ALTERNATIVE, frame)


def _hops(axes: Axes, frame: pd.DataFrame, colour: dict[str, str]) -> None:
    largest = float(frame["diameter_node_hops"].max())
    columns = ("family", "diameter_node_hops", "mean_node_hops")
    for place, (family, diameter, mean) in enumerate(
        zip(*(frame[column].tolist() for column in columns), strict=True)
    ):
        shade = colour[str(family)]
        axes.plot(
            [0, diameter],
            [place, place],
            color=lighter(shade, 0.5),
            linewidth=3,
            solid_capstyle="butt",
        )
        axes.plot([diameter], [place], "|", color=shade, markersize=12, markeredgewidth=2.5)
        axes.plot([mean], [place], "o", color=shade, markersize=6)
        text = f"{diameter:.0f}, mean {quantity(mean)}"
        axes.annotate(
            text,
            (diameter, place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set(title="Hops: mean (dot) and diameter (bar)", xlabel="Hops between nodes")
    axes.set_xscale("symlog", linthresh=4, linscale=2)
    axes.set_xlim(0, 8 * largest)  # room for the words
    ticks = [tick for tick in (0, 1, 2, 3, 4, 8, 16, 32, 64, 128) if tick <= 1.5 * largest]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])


def _bisection(axes: Axes, frame: pd.DataFrame, colour: dict[str, str]) -> None:
    share = 100 * frame["bisection_gb_s_per_chip"] / frame["injection_gb_s_per_chip"]
    bars = axes.barh(
        range(len(frame)),
        share,
        height=0.6,
        color=[colour[str(family)] for family in frame["family"]],
    )
    axes.bar_label(bars, [f"{quantity(value)} %" for value in share], padding=4)
    axes.set(
        title="Bisection over injection", xlabel="Bisection per chip (% of injection bandwidth)"
    )
    axes.set_xlim(0, float(share.max()) * 1.2)


FIGURE = Figure(
    settings=TopologyMetricsSettings,
    title="Hops and bisection by topology",
    paper="railx",
    inputs=(FigureInput("topologies", "metrics.topologies"),),
    draw=draw,
)
