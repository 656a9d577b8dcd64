"""Largest job that fits a grid with failed nodes, by system.

Systems differ in the shapes of a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import entries, share_legend
from railx.figures.tables import Tables, stack, where
from railx.figures.theme import GREY, INK, PALETTE, label
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
    drawn = where(frame, placement="random")
    if drawn.empty:
        raise UserError(
            "placement: no rows with randomly drawn failures; allowed: a table with placement"
            " random"
        )
    ends = (settings.lower_quantile, settings.upper_quantile)
    lines = (
        drawn.groupby(["system", "failed_nodes"], sort=False)["usable_share"]
        .agg(
            mean="mean",
            low=lambda values: values.quantile(ends[0]),
            high=lambda values: values.quantile(ends[1]),
            draws="size",
        )
        .reset_index()
    )
    formula = where(frame, placement="distinct_lines", system="railx")
    draws, failed = int(lines["draws"].max()), int(drawn["failed_nodes"].max())
    nodes = int(frame["nodes"].iloc[0])
    subtitle = f"""Exact optimum for one job on {nodes:,} nodes, failed nodes drawn uniformly: mean,
        band from the {100 * ends[0]:g} % to the {100 * ends[1]:g} % quantile of {draws} draws."""
    with canvas(subtitle, fidelity_line(drawn["fidelity"])) as page:
        axes = page.subplots()
        healthy = drawn.groupby("failed_nodes")["healthy_share"].first()
        dotted: dict[str, Any] = {"color": GREY, "linewidth": 1, "linestyle": ":"}
        axes.plot(healthy.index, healthy, label="All healthy nodes", **dotted)
        for system in _NAMES:
            rows = where(lines, system=system)
            if len(rows):
                _line(axes, rows.sort_values("failed_nodes"), system)
        dashed: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": "--"}
        dashed["label"] = "No two failures in one line, (1 - f / R)²"
        closed = formula.sort_values("failed_nodes")
        axes.plot(closed["failed_nodes"], closed["formula_share"], **dashed)
        axes.set(xlabel="Failed nodes", ylabel="Nodes of the largest job / all nodes")
        axes.set(xlim=(0, max(failed, 1)), ylim=(0, 1.03))
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        share_legend(page, entries(axes), 2)
    means = where(lines, failed_nodes=failed).set_index("system")["mean"]
    shares = {name: f"{100 * float(means[name]):.3g} %" for name in _NAMES if name in means}
    caption = f"""Nodes that one job can still take when {failed} of {nodes:,} have failed, mean of
        {draws} draws: {", ".join(f"{_NAMES[name]} {text}" for name, text in shares.items())}."""
    worst = where(formula, failed_nodes=failed)["formula_share"]
    if len(worst):
        caption += f""" The closed form for failures of which no two share a row or a column gives
            {100 * float(worst.iloc[0]):.3g} %, the worst case while there are at most as many as
            lines."""
    alternative = f"""Lines of the share of nodes that the largest job can use, falling from 100 %
        with no failed node; at {failed} failed nodes:
        {", ".join(f"{label(name)} {text}" for name, text in shares.items())}. Bands show the spread
        of the draws."""
    caption += """ RailX and HammingMesh let a job take any rows times any columns, a torus only a
        contiguous block. The optimum is exact for every draw."""
    closed = formula[["system", "failed_nodes", "formula_share"]]
    data = stack([lines.assign(shows="draws"), closed.assign(shows="closed form")])
    return Drawn(caption, alternative, data)


def _line(axes: Axes, rows: DataFrame, system: str) -> None:
    x, colour = rows["failed_nodes"], _COLOURS[system]
    # HammingMesh lies on RailX; a dashed line on top leaves both visible.
    same = system == "hammingmesh"
    style: dict[str, Any] = {"linestyle": (0, (4, 4))} if same else {"linewidth": 2.4}
    axes.plot(x, rows["mean"], color=colour, label=_NAMES[system], **style)
    if not same:
        axes.fill_between(x, rows["low"], rows["high"], color=colour, alpha=0.18, linewidth=0)


FIGURE = declare(
    LargestJobSettings,
    "Largest job against failed nodes",
    "railx",
    draw,
    faults="tenancy.faults: system placement failed_nodes usable_share healthy_share formula_share"
    " nodes fidelity",
)
