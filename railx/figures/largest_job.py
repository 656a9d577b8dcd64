"""Largest job that a grid with failed nodes still holds, by system.

Systems differ in what they let one job take.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import GREY, INK, canvas, share_legend
from railx.settings import Between

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "LargestJobSettings"]

_CAPTION = """\
The largest job that the grid still holds when nodes have failed, as a share of all
nodes. RailX and HammingMesh let a job take any rows times any columns, a torus only a
contiguous block. The optimum is exact for every draw; the dashed line is the closed
form for failures of which no two share a row or a column, the worst case while there
are at most as many as lines.
"""
_ALTERNATIVE = (
    "Lines of the share of nodes that the largest job can use over the number of failed "
    "nodes: RailX and HammingMesh on one line, the torus far below, and the closed form "
    "for failures in distinct lines."
)

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


@dataclass(frozen=True)
class LargestJobSettings(CanvasSettings):
    """Largest usable job against failed nodes."""

    figure: Literal["largest_job"]
    """Which figure it is."""

    lower_quantile: Annotated[float, Between(0, 0.5)]
    """Lower end of the band over the random draws."""

    upper_quantile: Annotated[float, Between(0.5, 1)]
    """Upper end of the band over the random draws."""


def draw(settings: LargestJobSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Means over the random draws with a band between two quantiles.

    Beside them is the formula for failures in distinct lines.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    frame = read_frames(inputs, "faults", _COLUMNS)
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
    return Drawn(_CAPTION, _ALTERNATIVE, frame)


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


FIGURE = Figure(
    settings=LargestJobSettings,
    title="Largest job against failed nodes",
    paper="railx",
    inputs=(FigureInput("faults", "tenancy.faults"),),
    draw=draw,
)
