"""Largest job that a grid with failed nodes still holds, by system.

Systems differ in what they let one job take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.canvas import share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import entries
from railx.figures.tables import FigureInput, Tables, stack
from railx.figures.theme import GREY, INK, PALETTE, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line
from railx.settings import Between

__all__ = ["FIGURE", "LargestJobSettings"]

_COLOURS = {"railx": PALETTE[0], "hammingmesh": PALETTE[1], "torus": PALETTE[5]}
_NAMES = {
    "railx": "RailX, any rows x any columns",
    "hammingmesh": "HammingMesh, the same rule",
    "torus": "Torus, contiguous block",
}


@dataclass(frozen=True)
class LargestJobSettings(CanvasSettings):
    """Largest usable job against failed nodes."""

    figure: Literal["largest_job"] = "largest_job"
    height_inches: Height = 5

    lower_quantile: Annotated[float, Between(0, 0.5)] = 0.05
    """Lower end of the band over the random draws."""

    upper_quantile: Annotated[float, Between(0.5, 1)] = 0.95
    """Upper end of the band over the random draws."""


def draw(settings: LargestJobSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Means over the random draws with a band between two quantiles.

    Beside them is the formula for failures in distinct lines.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    frame = tables.read("faults")
    drawn = frame[frame["placement"] == "random"]
    if drawn.empty:
        raise UserError(
            "placement: no rows with randomly drawn failures; allowed: a table with placement"
            " random"
        )
    nodes = int(frame["nodes"].iloc[0])
    subtitle = (
        f"Exact optimum for one job on {nodes:,} nodes, failed nodes drawn uniformly: mean, band"
        f" from the {100 * settings.lower_quantile:g} % to the {100 * settings.upper_quantile:g} %"
        f" quantile of {_draws(drawn)} draws."
    )
    with canvas(subtitle, fidelity_line(drawn["fidelity"])) as page:
        axes = page.subplots()
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
            rows = drawn[drawn["system"] == system]
            if not rows.empty:
                _line(axes, rows, system, settings)
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
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        share_legend(page, entries(axes), 2)
    return Drawn(_caption(drawn, formula), _alternative(drawn), _data(frame, drawn, settings))


def _line(axes: Axes, rows: DataFrame, system: str, settings: LargestJobSettings) -> None:
    shares = rows.groupby("failed_nodes")["usable_share"]
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


def _draws(drawn: DataFrame) -> int:
    """Random draws of each number of failed nodes, at most."""
    return int(drawn.groupby(["system", "failed_nodes"]).size().max())


def _data(frame: DataFrame, drawn: DataFrame, settings: LargestJobSettings) -> DataFrame:
    shares = drawn.groupby(["system", "failed_nodes"], sort=False)["usable_share"]
    lines = shares.agg(
        mean="mean",
        low=lambda values: values.quantile(settings.lower_quantile),
        high=lambda values: values.quantile(settings.upper_quantile),
        draws="size",
    ).reset_index()
    formula = frame[(frame["placement"] == "distinct_lines") & (frame["system"] == "railx")]
    closed = formula[["system", "failed_nodes", "formula_share"]]
    return stack([lines.assign(shows="draws"), closed.assign(shows="closed form")])


def _ends(drawn: DataFrame) -> dict[str, float]:
    """The mean share of each system where most nodes have failed."""
    last = drawn[drawn["failed_nodes"] == drawn["failed_nodes"].max()]
    means = last.groupby("system")["usable_share"].mean()
    return {system: float(means[system]) for system in _NAMES if system in means.index}


def _caption(drawn: DataFrame, formula: DataFrame) -> str:
    failed, nodes = int(drawn["failed_nodes"].max()), int(drawn["nodes"].iloc[0])
    shares = ", ".join(
        f"{_NAMES[system]} {100 * share:.3g} %" for system, share in _ends(drawn).items()
    )
    text = (
        f"Nodes that one job can still take when {failed} of {nodes:,} have failed, mean of"
        f" {_draws(drawn)} draws: {shares}."
    )
    worst = formula[formula["failed_nodes"] == failed]
    if len(worst):
        text += (
            f" The closed form for failures of which no two share a row or a column gives"
            f" {100 * float(worst['formula_share'].iloc[0]):.3g} %, the worst case while there are"
            " at most as many as lines."
        )
    return (
        f"{text} RailX and HammingMesh let a job take any rows times any columns, a torus only a"
        " contiguous block. The optimum is exact for every draw."
    )


def _alternative(drawn: DataFrame) -> str:
    shares = ", ".join(
        f"{label(system)} {100 * share:.3g} %" for system, share in _ends(drawn).items()
    )
    return (
        "Lines of the share of nodes that the largest job can use, falling from 100 % with no"
        f" failed node; at {int(drawn['failed_nodes'].max())} failed nodes: {shares}. Bands show"
        " the spread of the draws."
    )


FIGURE = Figure(
    LargestJobSettings,
    "Largest job against failed nodes",
    "railx",
    (
        FigureInput(
            "faults",
            "tenancy.faults",
            "system placement failed_nodes usable_share healthy_share formula_share nodes fidelity",
        ),
    ),
    draw,
)
