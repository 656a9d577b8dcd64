"""Hops and bisection of the topologies: how far chips are apart between nodes, and what
crosses the middle.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from railx.figures.fidelity import fidelity_line
from railx.figures.settings import TopologyMetricsSettings
from railx.figures.tables import Inputs, read_frames
from railx.figures.theme import canvas, colours, label, lighter, quantity

__all__ = ["draw"]

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


def draw(settings: TopologyMetricsSettings, inputs: Inputs, output: Path) -> None:
    """A row per topology: mean hops as a dot, the diameter as the end of a line, the
    bisection as a share of the injection.
    """
    frame = read_frames(inputs, "metrics", _COLUMNS)
    if settings.only:
        unknown = [name for name in settings.only if name not in set(frame["topology"])]
        if unknown:
            raise ValueError(
                f"only: no metrics of {', '.join(unknown)}; allowed: {', '.join(frame['topology'])}"
            )
        frame = frame.set_index("topology").loc[list(settings.only)].reset_index()
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
            fontsize="small",
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
    axes.bar_label(bars, [f"{quantity(value)} %" for value in share], padding=4, fontsize="small")
    axes.set(
        title="Bisection over injection", xlabel="Bisection per chip (% of injection bandwidth)"
    )
    axes.set_xlim(0, float(share.max()) * 1.2)
