"""Where RailX's three cost claims hold: half-planes of price ratios.

Their boundaries are drawn, and where sourced price lists lie. For the two relative
claims both axes are prices over the price of a transceiver; the absolute claim is a
strip of USD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    GREY,
    INK,
    PALETTE,
    PUBLISHED,
    canvas,
    label,
    lighter,
    quantity,
    share_legend,
)
from railx.figures.words import listed, sentence, spoken

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "ClaimMapFigureSettings"]

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
    "all_to_all_share": "as routed ({0:.0%} of the ideal)",
    "in_node_lane_over_transceiver": "in-node lane at {0:g} optics",
    "tiers": "tiers of the fat tree: {0:g}",
    "leaf_cable_over_transceiver": "leaf cable at {0:g} optics",
    "taper": "fat tree, taper of {0:g}",
}
#: Colour and share of white where the claim holds.
_HOLDS = (PALETTE[2], 0.78)
_DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)))
#: Marks of the price lists in their order; the one that is no price has its own.
_MARKS, _INFERRED = "osv^P", "X"


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
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    table = read_frames(inputs, "claim_map", _COLUMNS)
    lists = list(dict.fromkeys(table.loc[table["view"] == "price_set", "prices"]))
    sources = table[table["view"] == "price_set"].groupby("prices")["source"].first()
    marks = {
        name: _INFERRED if "not a price" in str(sources[name]) else _MARKS[i % len(_MARKS)]
        for i, name in enumerate(lists)
    }
    subtitle = (
        "Shaded: the claim holds at the base case (ideal all-to-all, fat tree of three full tiers"
        " with optics throughout). Lines: its boundary, and where other assumptions move it. Marks:"
        " price lists, filled where the claim holds at the base case. Optics: a transceiver."
    )
    with canvas(
        settings,
        output,
        "For which prices the cost claims hold",
        subtitle,
        fidelity_line(table["fidelity"]),
    ) as figure:
        panels = figure.subplots(1, 3)
        _relative(panels[0], table, "injection", settings.injection_lines, marks)
        _relative(panels[1], table, "all_to_all", settings.all_to_all_lines, marks)
        _absolute(panels[2], table, marks)
        handles = [
            Line2D(
                [],
                [],
                linestyle="none",
                marker=mark,
                markersize=7,
                color=GREY if mark == _INFERRED else INK,
            )
            for mark in marks.values()
        ]
        names = [label(name) for name in marks]
        share_legend(
            figure,
            [*handles, Patch(facecolor=lighter(*_HOLDS))],
            [*names, "claim holds"],
            len(handles) + 1,
        )
    return Drawn(_caption(table), _alternative(table), _data(table, settings))


def _base_points(table: pd.DataFrame, claim: str) -> pd.DataFrame:
    return table[
        (table["claim"] == claim) & (table["factor"] == "base") & (table["view"] == "price_set")
    ]


def _data(table: pd.DataFrame, settings: ClaimMapFigureSettings) -> pd.DataFrame:
    """The boundaries and the price lists."""
    chosen = {
        (claim, factor, float(level))
        for claim, lines in (
            ("injection", settings.injection_lines),
            ("all_to_all", settings.all_to_all_lines),
        )
        for factor, levels in lines.items()
        for level in levels
    }
    drawn = [
        factor == "base" or (claim, factor, round(float(level), 9)) in chosen
        for claim, factor, level in zip(
            table["claim"], table["factor"], table["level"], strict=True
        )
    ]
    rows = table[np.array(drawn) & (table["view"] == "price_set")]
    return rows[list(_COLUMNS)].reset_index(drop=True)


def _caption(table: pd.DataFrame) -> str:
    parts = []
    for claim, title in (*_TITLES.items(), ("absolute", "Cost of the whole network")):
        points = _base_points(table, claim)
        limit, real = (
            float(points["limit"].iloc[0]),
            points[~points["source"].astype(str).str.contains("not a price")],
        )
        held = [spoken(label(name)) for name in real.loc[real["holds"], "prices"]]
        missed = [spoken(label(name)) for name in real.loc[~real["holds"], "prices"]]
        bound = (
            f"about {quantity(limit / 1e9)} B USD, to"
            f" {quantity(100 * float(points['tolerance'].iloc[0]))} %"
            if claim == "absolute"
            else f"below {quantity(100 * limit)} % of a fat tree"
        )
        holds = f"holds under {listed(held)}" if held else "holds under none of the price lists"
        fails = f", not under {listed(missed)}" if held and missed else ""
        parts.append(f"{title}, {PUBLISHED} as {bound}: {holds}{fails}.")
    injection, exchange, whole = (
        _base_points(table, claim).iloc[0] for claim in (*_TITLES, "absolute")
    )
    return sentence(
        *parts,
        "With an optical port x and an electrical port y transceivers dear, the first holds above"
        f" y = {injection['boundary_slope']:.2f} x {_signed(injection['boundary_intercept'])}, the"
        f" second above y = {exchange['boundary_slope']:.2f} x"
        f" {_signed(exchange['boundary_intercept'])}; the third where transceiver and optical port"
        f" together cost {quantity(whole['boundary_intercept'])} USD.",
        "The cross is inferred from the abstract and no price.",
    )


def _alternative(table: pd.DataFrame) -> str:
    points = "; ".join(
        f"{spoken(label(row['prices']))}: OCS port {quantity(row['ocs_port_over_transceiver'])},"
        f" switch"
        f" port {quantity(row['switch_port_over_transceiver'])} transceivers,"
        f" {'holds' if row['holds'] else 'does not hold'} for {row['claim'].replace('_', ' ')}"
        for claim in (*_TITLES, "absolute")
        for row in _base_points(table, claim).to_dict("records")
    )
    return f"Three maps of prices with the region where each cost claim holds. {points}."


def _relative(
    axes: Axes,
    table: pd.DataFrame,
    claim: str,
    lines: Mapping[str, tuple[float, ...]],
    marks: Mapping[str, str],
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
    _dots(axes, points, "ocs_port_over_transceiver", "switch_port_over_transceiver", marks)
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
    axes.legend(loc="upper left", bbox_to_anchor=(-0.04, -0.17), borderaxespad=0.1)


def _line(rows: pd.DataFrame, factor: str, level: float) -> pd.Series[Any]:
    found = rows[(rows["factor"] == factor) & np.isclose(rows["level"].astype(float), level)]
    if found.empty:
        known = rows[rows["factor"] != "base"].drop_duplicates(["factor", "level"])
        pairs = ", ".join(
            f"{name} {value:g}" for name, value in zip(known["factor"], known["level"], strict=True)
        )
        raise UserError(f"lines.{factor}: the table has no level {level:g}; allowed: {pairs}")
    return found.iloc[0]


def _absolute(axes: Axes, table: pd.DataFrame, marks: Mapping[str, str]) -> None:
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
    text = f"both together {quantity(intercept)} USD"
    axes.plot(x, slope * x + intercept, color=INK, linewidth=1.8, label=text)
    _dots(axes, rows, "transceiver_usd", "ocs_port_usd", marks)
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
    axes.legend(loc="upper left", bbox_to_anchor=(-0.04, -0.17), borderaxespad=0.1)


def _dots(
    axes: Axes, rows: pd.DataFrame, horizontal: str, vertical: str, marks: Mapping[str, str]
) -> None:
    """The price lists, each with its mark, filled where the claim holds."""
    for row in rows.to_dict("records"):
        mark = marks[row["prices"]]
        colour = GREY if mark == _INFERRED else INK
        axes.plot(
            row[horizontal],
            row[vertical],
            mark,
            markersize=7.5,
            color=colour,
            markerfacecolor=colour if row["holds"] else "white",
            zorder=4,
        )


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'} {abs(value):.2f}"


FIGURE = Figure(
    settings=ClaimMapFigureSettings,
    title="Where the cost claims hold",
    paper="railx",
    inputs=(FigureInput("claim_map", "economics.claim_map", columns=_COLUMNS),),
    draw=draw,
)
