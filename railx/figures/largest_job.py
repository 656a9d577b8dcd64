"""Largest job that a grid with failed nodes still holds, by what a system lets one job
take.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from railx.figures.fidelity import fidelity_line
from railx.figures.settings import LargestJobSettings
from railx.figures.tables import Inputs, read_frame, selected_paths
from railx.figures.theme import GREY, INK, canvas, share_legend

__all__ = ["draw"]

_COLUMNS = (
    "system",
    "placement",
    "failed_nodes",
    "usable_share",
    "healthy_share",
    "formula_share",
    "nodes",
    "fidelity",
)
_COLOURS = {"railx": "#0072B2", "hammingmesh": "#E69F00", "torus": "#D55E00"}
_NAMES = {
    "railx": "RailX, any rows x any columns",
    "hammingmesh": "HammingMesh, the same rule",
    "torus": "Torus, contiguous block",
}


def draw(settings: LargestJobSettings, inputs: Inputs, output: Path) -> None:
    """Means over the random draws with a band between two quantiles; the formula for
    failures in distinct lines beside them.
    """
    frame = read_frame(selected_paths(inputs, "faults")[0], _COLUMNS)
    drawn = frame[frame["placement"] == "random"]
    if drawn.empty:
        raise ValueError(
            "placement: no rows with randomly drawn failures; allowed: a table with placement"
            " random"
        )
    nodes = int(frame["nodes"].iloc[0])
    subtitle = (
        f"Exact optimum for one job on {nodes:,} nodes, failed nodes drawn uniformly: mean, band"
        f" from the {settings.lower_quantile:.0%} to the {settings.upper_quantile:.0%} quantile."
    )
    with canvas(
        settings,
        output,
        "Largest job against failed nodes",
        subtitle,
        fidelity_line(drawn["fidelity"]),
    ) as figure:
        axes = figure.subplots()
        healthy = drawn.groupby("failed_nodes")["healthy_share"].first()
        axes.plot(
            healthy.index,
            healthy,
            color=GREY,
            linewidth=1,
            linestyle=":",
            label="All healthy nodes",
        )
        for system in _NAMES:
            own = drawn[drawn["system"] == system]
            if not own.empty:
                _line(axes, own, system, settings)
        formula = frame[
            (frame["placement"] == "distinct_lines") & (frame["system"] == "railx")
        ].sort_values("failed_nodes")
        axes.plot(
            formula["failed_nodes"],
            formula["formula_share"],
            color=INK,
            linewidth=1.2,
            linestyle="--",
            label="No two failures in one line, (1 - f / R)²",
        )
        axes.set(
            xlabel="Failed nodes", ylabel="Nodes of the largest job / all nodes", ylim=(0, 1.03)
        )
        axes.set_xlim(0, max(float(drawn["failed_nodes"].max()), 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        share_legend(figure, *axes.get_legend_handles_labels(), 2)


def _line(axes: Axes, own: pd.DataFrame, system: str, settings: LargestJobSettings) -> None:
    shares = own.groupby("failed_nodes")["usable_share"]
    mean = shares.mean()
    # HammingMesh lies on RailX; a dashed line on top leaves both visible.
    style: dict[str, Any] = (
        {"linestyle": (0, (4, 4))} if system == "hammingmesh" else {"linewidth": 2.4}
    )
    axes.plot(mean.index, mean, color=_COLOURS[system], label=_NAMES[system], **style)
    if system != "hammingmesh":
        low, high = (
            shares.quantile(settings.lower_quantile),
            shares.quantile(settings.upper_quantile),
        )
        axes.fill_between(mean.index, low, high, color=_COLOURS[system], alpha=0.18, linewidth=0)
