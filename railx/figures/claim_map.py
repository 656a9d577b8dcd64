"""Where RailX's three cost claims hold: half-planes of price ratios.

Their boundaries are drawn, and where sourced price lists lie. For the two relative
claims both axes are prices over the price of a transceiver; the absolute claim is a
strip of USD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import GREY, INK, PALETTE, canvas, label, lighter, quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "ClaimMapFigureSettings"]

_CAPTION = """\
For which prices the three cost claims of the abstract hold. Left and middle: cost per
bandwidth against a fat tree over the prices of an optical and of an electrical switch
port, both relative to a transceiver; each claim is a half-plane above its boundary.
Right: total cost over the prices of transceiver and optical switch port. Dots are price
lists; the one inferred from the abstract is no price.
"""
_ALTERNATIVE = (
    "Three maps, one per claim: the prices of an optical and of an electrical switch port "
    "relative to a transceiver (for the absolute claim the prices of transceiver and "
    "optical switch port) with the region where the claim holds, its boundary, further "
    "boundaries under other assumptions, and the sourced price lists as dots."
)

_COLUMNS = (
    "view",
    "factor",
    "level",
    "claim",
    "prices",
    "transceiver_usd",
    "ocs_port_usd",
    "ocs_port_over_transceiver",
    "switch_port_over_transceiver",
    "limit",
    "tolerance",
    "holds",
    "boundary_slope",
    "boundary_intercept",
    "source",
    "fidelity",
)
_TITLES = {"injection": "Per injection bandwidth", "all_to_all": "Per all-to-all bandwidth"}
_FACTORS = {
    "m": "nodes of {0:g} x {0:g} chips",
    "n": "{0:g} ports per side",
    "chips": "{0:,.0f} chips",
    "all_to_all_share": "routed as published ({0:.0%} of the ideal)",
    "in_node_lane_over_transceiver": "in-node lane at {0:g} transceivers",
    "tiers": "fat tree with {0:g} tier(s)",
    "leaf_cable_over_transceiver": "leaf cable at {0:g} transceivers",
    "taper": "fat tree with a taper of {0:g}",
}
#: Colour and share of white where the claim holds.
_HOLDS = (PALETTE[2], 0.78)
_DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)))
#: Where the names of the price lists go: right and up in points, and which end is
#: there.
_RATIO_PLACES = ((-6, 11, "left"), (0, -18, "center"))
_USD_PLACES = ((-6, -18, "left"), (0, 11, "center"), (10, 4, "left"), (10, -4, "left"))


@dataclass(frozen=True)
class ClaimMapFigureSettings(CanvasSettings):
    """Where the cost claims hold over price ratios."""

    figure: Literal["claim_map"]
    """Which figure it is."""

    injection_lines: dict[str, tuple[float, ...]]
    """Further boundaries of the claim per injection bandwidth: factors and levels of
    the claim map."""

    all_to_all_lines: dict[str, tuple[float, ...]]
    """Further boundaries of the claim per all-to-all bandwidth, in the same way."""


def draw(settings: ClaimMapFigureSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One panel per claim. Raises ValueError for lines that the table does not have."""
    table = read_frames(inputs, "claim_map", _COLUMNS)
    subtitle = (
        "Shaded: the claim holds at the base case (ideal all-to-all, fat tree of three full tiers"
        " with optics throughout). Lines: its boundary, and where other assumptions move it. Dots:"
        " price lists, filled where the claim holds at the base case."
    )
    with canvas(
        settings,
        output,
        "For which prices the cost claims hold",
        subtitle,
        fidelity_line(table["fidelity"]),
    ) as figure:
        panels = figure.subplots(1, 3)
        _relative(panels[0], table, "injection", settings.injection_lines)
        _relative(panels[1], table, "all_to_all", settings.all_to_all_lines)
        _absolute(panels[2], table)
    return Drawn(_CAPTION, _ALTERNATIVE, table)


def _relative(
    axes: Axes, table: pd.DataFrame, claim: str, lines: Mapping[str, tuple[float, ...]]
) -> None:
    rows = table[table["claim"] == claim]
    base = rows[rows["factor"] == "base"]
    right, top = (
        float(base[column].max())
        for column in ("ocs_port_over_transceiver", "switch_port_over_transceiver")
    )
    x = np.linspace(0.0, right, 301)
    slope, intercept = (
        float(base[column].iloc[0]) for column in ("boundary_slope", "boundary_intercept")
    )
    axes.fill_between(
        x,
        np.clip(slope * x + intercept, 0, top),
        top,
        color=lighter(*_HOLDS),
        linewidth=0,
        zorder=0,
    )
    axes.plot(
        x,
        slope * x + intercept,
        color=INK,
        linewidth=1.8,
        label=f"base case: y = {slope:.2f} x {_signed(intercept)}",
    )
    for i, (factor, level) in enumerate(
        (factor, level) for factor, levels in lines.items() for level in levels
    ):
        row = _line(rows, factor, level)
        name = _FACTORS.get(factor, factor + " {0:g}").format(level)
        y = float(row["boundary_slope"]) * x + float(row["boundary_intercept"])
        axes.plot(
            x,
            y,
            color=PALETTE[(0, 5, 3, 7, 6)[i % 5]],
            linestyle=_DASHES[i % 4],
            linewidth=1.4,
            label=name,
        )
    points = base[base["view"] == "price_set"]
    _dots(axes, points, "ocs_port_over_transceiver", "switch_port_over_transceiver", _RATIO_PLACES)
    axes.set(
        title=(
            f"{_TITLES[claim]}\nbelow {quantity(100 * float(base['limit'].iloc[0]))} % of a fat"
            " tree"
        ),
        xlabel="OCS port / transceiver",
        ylabel="Electrical switch port / transceiver",
        xlim=(0, right),
        ylim=(0, top),
    )
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), borderaxespad=0.1)


def _line(rows: pd.DataFrame, factor: str, level: float) -> pd.Series[Any]:
    found = rows[(rows["factor"] == factor) & np.isclose(rows["level"].astype(float), level)]
    if found.empty:
        known = rows[rows["factor"] != "base"].drop_duplicates(["factor", "level"])
        pairs = ", ".join(
            f"{name} {value:g}" for name, value in zip(known["factor"], known["level"], strict=True)
        )
        raise ValueError(f"lines.{factor}: the table has no level {level:g}; allowed: {pairs}")
    return found.iloc[0]


def _absolute(axes: Axes, table: pd.DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    rows = table[
        (table["claim"] == "absolute")
        & (table["factor"] == "base")
        & (table["view"] == "price_set")
    ]
    slope, intercept, tolerance, limit = (
        float(rows[column].iloc[0])
        for column in ("boundary_slope", "boundary_intercept", "tolerance", "limit")
    )
    right, top = (
        1.25 * max(float(rows[column].max()), intercept)
        for column in ("transceiver_usd", "ocs_port_usd")
    )
    x = np.array([0.0, right])
    axes.fill_between(
        x,
        slope * x + (1 - tolerance) * intercept,
        slope * x + (1 + tolerance) * intercept,
        color=lighter(*_HOLDS),
        linewidth=0,
        zorder=0,
    )
    text = (
        f"transceiver + OCS port = USD {quantity(intercept)}, shaded to"
        f" {quantity(100 * tolerance)} %"
    )
    axes.plot(x, slope * x + intercept, color=INK, linewidth=1.8, label=text)
    _dots(axes, rows, "transceiver_usd", "ocs_port_usd", _USD_PLACES)
    axes.set(
        title=f"Whole network\nabout {quantity(limit / 1e9)} B USD",
        xlabel="Transceiver (USD)",
        ylabel="OCS port (USD)",
        xlim=(0, right),
        ylim=(0, top),
    )
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), borderaxespad=0.1)


def _dots(
    axes: Axes,
    rows: pd.DataFrame,
    horizontal: str,
    vertical: str,
    places: Sequence[tuple[int, int, str]],
) -> None:
    """Price lists from left to right.

    Each name is at the next of ``places`` around its dot, so that neighbours do not
    overlap.
    """
    for i, row in enumerate(rows.sort_values(horizontal).to_dict("records")):
        inferred = "not a price" in str(row["source"])
        colour = GREY if inferred else INK
        point, (right, up, align) = (row[horizontal], row[vertical]), places[i % len(places)]
        face = colour if row["holds"] else "white"
        axes.plot(
            *point,
            "D" if inferred else "o",
            markersize=7,
            color=colour,
            markerfacecolor=face,
            zorder=4,
        )
        axes.annotate(
            label(str(row["prices"])),
            point,
            (right, up),
            textcoords="offset points",
            ha=align,
            color=colour,
            zorder=3,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0},
        )


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'} {abs(value):.2f}"


FIGURE = Figure(
    settings=ClaimMapFigureSettings,
    title="Where the cost claims hold",
    paper="railx",
    inputs=(FigureInput("claim_map", "economics.claim_map"),),
    draw=draw,
)
