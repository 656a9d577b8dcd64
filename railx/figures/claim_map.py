"""Where RailX's three cost claims hold: half-planes of price ratios.

Their boundaries are drawn, and the sourced price lists. For the two relative claims
both axes are prices over the price of a transceiver; the absolute claim is a strip of
USD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from railx.errors import UserError
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Height, declare
from railx.figures.panels import patch, share_legend
from railx.figures.tables import Tables, records
from railx.figures.theme import GREY, INK, PALETTE, PUBLISHED, dot, label, lighter
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import fidelity_line, listed, quantity, sentence, spoken

__all__ = ["FIGURE", "ClaimMapFigureSettings"]

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
#: The region in which a claim holds.
_HOLDS = (PALETTE[2], 0.78)
_DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)))
#: Marks of the price lists in their order, and that of prices that are inferred.
_MARKS, _INFERRED = "osv^P", "X"
_RATIOS = ("ocs_port_over_transceiver", "switch_port_over_transceiver")

Lines = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class ClaimMapFigureSettings(CanvasSettings):
    """Where the cost claims hold over price ratios (RailX, arXiv 2507.18889)."""

    figure: Literal["claim_map"] = "claim_map"
    height_inches: Height = 6

    injection_lines: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {"m": (1, 2, 3), "tiers": (1,)}
    )
    """Further boundaries of the claim per injection bandwidth: factors and levels of
    the claim map."""

    all_to_all_lines: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {
            "all_to_all_share": (0.766,),
            "leaf_cable_over_transceiver": (0.9,),
            "tiers": (2, 1),
            "taper": (0.5,),
        }
    )
    """Further boundaries of the claim per all-to-all bandwidth, in the same way."""


def draw(settings: ClaimMapFigureSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One panel per claim. Raises ValueError for lines that the table does not have."""
    table = tables.read("claim_map")
    lists = table[table["view"] == "price_set"].drop_duplicates("prices")
    marks = {
        name: _INFERRED if "not a price" in str(source) else _MARKS[i % len(_MARKS)]
        for i, (name, source) in enumerate(zip(lists["prices"], lists["source"], strict=True))
    }
    lines: dict[str, Lines] = {
        "injection": settings.injection_lines,
        "all_to_all": settings.all_to_all_lines,
    }
    subtitle = """Shaded: the claim holds at the base case (ideal all-to-all, fat tree of three full
        tiers with optics throughout). Lines: its boundary, and where other assumptions move it.
        Marks: price lists, filled where the claim holds at the base case. Optics: a transceiver."""
    title = "For which prices the cost claims hold"
    with canvas(subtitle, fidelity_line(table["fidelity"]), title=title) as page:
        panels = page.subplots(1, 3)
        for axes, (claim, extra) in zip(panels, lines.items(), strict=False):
            _relative(axes, table[table["claim"] == claim], claim, extra, marks)
        _absolute(panels[2], _base(table, "absolute"), marks)
        legend: dict[str, Any] = {
            label(name): dot(GREY if mark == _INFERRED else INK, 7, marker=mark)
            for name, mark in marks.items()
        }
        legend["claim holds"] = patch(lighter(*_HOLDS))
        share_legend(page, legend, len(legend))
    return Drawn(_caption(table), _alternative(table), _data(tables, table, lines))


def _base(table: DataFrame, claim: str) -> DataFrame:
    """The price lists at the base case."""
    return table[
        (table["claim"] == claim) & (table["factor"] == "base") & (table["view"] == "price_set")
    ]


def _data(tables: Tables, table: DataFrame, lines: Mapping[str, Lines]) -> DataFrame:
    """The boundaries and the price lists."""
    chosen = {
        (claim, factor, float(level))
        for claim, factors in lines.items()
        for factor, levels in factors.items()
        for level in levels
    }
    drawn = [
        factor == "base" or (claim, factor, round(float(level), 9)) in chosen
        for claim, factor, level in table[["claim", "factor", "level"]].itertuples(index=False)
    ]
    rows = table[np.array(drawn) & (table["view"] == "price_set")]
    return rows[tables.columns("claim_map")].reset_index(drop=True)


def _caption(table: DataFrame) -> str:
    parts = []
    for claim, title in (*_TITLES.items(), ("absolute", "Cost of the whole network")):
        points = _base(table, claim)
        limit, tolerance = (float(points[name].iloc[0]) for name in ("limit", "tolerance"))
        priced = points[~points["source"].astype(str).str.contains("not a price")]
        passed, failed = (
            listed([spoken(label(name)) for name in priced.loc[chosen, "prices"]])
            for chosen in (priced["holds"], ~priced["holds"])
        )
        bound = f"below {quantity(100 * limit)} % of a fat tree"
        if claim == "absolute":
            bound = f"about {quantity(limit / 1e9)} B USD, to {quantity(100 * tolerance)} %"
        holds = f"holds under {passed or 'none of the price lists'}"
        fails = f", not under {failed}" if passed and failed else ""
        parts.append(f"{title}, {PUBLISHED} as {bound}: {holds}{fails}.")
    injection, exchange, total = (_base(table, claim).iloc[0] for claim in (*_TITLES, "absolute"))
    return sentence(
        *parts,
        "With an optical port x and an electrical port y transceivers dear, the first holds above"
        f" {_boundary(injection)}, the second above {_boundary(exchange)}; the third where"
        f" transceiver and optical port together cost {quantity(total['boundary_intercept'])} USD.",
        "The cross is inferred from the abstract and no price.",
    )


def _alternative(table: DataFrame) -> str:
    points = "; ".join(
        f"{spoken(label(row['prices']))}: OCS port {quantity(row[_RATIOS[0]])}, switch port"
        f" {quantity(row[_RATIOS[1]])} transceivers,"
        f" {'holds' if row['holds'] else 'does not hold'} for {row['claim'].replace('_', ' ')}"
        for claim in (*_TITLES, "absolute")
        for row in records(_base(table, claim))
    )
    return f"Three maps of prices with the region where each cost claim holds. {points}."


def _relative(
    axes: Axes, rows: DataFrame, claim: str, lines: Lines, marks: Mapping[str, str]
) -> None:
    base = rows[rows["factor"] == "base"]
    right, top = (float(base[column].max()) for column in _RATIOS)
    x = np.linspace(0.0, right, 301)
    y = _line(base.iloc[0], x)
    axes.fill_between(x, np.clip(y, 0, top), top, **_shade())
    text = f"base case: {_boundary(base.iloc[0])}"
    axes.plot(x, y, color=INK, linewidth=1.8, label=text)
    levels = [(factor, level) for factor, levels in lines.items() for level in levels]
    for i, (factor, level) in enumerate(levels):
        at = rows[(rows["factor"] == factor) & np.isclose(rows["level"].astype(float), level)]
        if at.empty:
            others = rows[rows["factor"] != "base"].drop_duplicates(["factor", "level"])
            pairs = others[["factor", "level"]].itertuples(index=False)
            raise UserError(
                f"lines.{factor}: the table has no level {level:g}; allowed:"
                f" {', '.join(f'{name} {value:g}' for name, value in pairs)}"
            )
        style: dict[str, Any] = {"linestyle": _DASHES[i % 4], "linewidth": 1.4}
        name = _FACTORS.get(factor, factor + " {0:g}").format(level)
        colour = PALETTE[(0, 5, 3, 7, 6)[i % 5]]
        axes.plot(x, _line(at.iloc[0], x), color=colour, label=name, **style)
    _dots(axes, base[base["view"] == "price_set"], *_RATIOS, marks)
    limit = quantity(100 * float(base["limit"].iloc[0]))
    axes.set(
        title=f"{_TITLES[claim]}\nbelow {limit} % of a fat tree",
        xlabel="OCS port / transceiver",
        ylabel="Electrical switch port / transceiver",
    )
    _finish(axes, right, top)


def _absolute(axes: Axes, rows: DataFrame, marks: Mapping[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    first = rows.iloc[0]
    slope, intercept = float(first["boundary_slope"]), float(first["boundary_intercept"])
    right, top = (
        1.25 * max(float(rows[column].max()), intercept)
        for column in ("transceiver_usd", "ocs_port_usd")
    )
    x = np.array([0.0, right])
    low, high = (slope * x + (1 + sign * first["tolerance"]) * intercept for sign in (-1, 1))
    axes.fill_between(x, low, high, **_shade())
    text = f"both together {quantity(intercept)} USD"
    axes.plot(x, slope * x + intercept, color=INK, linewidth=1.8, label=text)
    _dots(axes, rows, "transceiver_usd", "ocs_port_usd", marks)
    limit = quantity(float(first["limit"]) / 1e9)
    axes.set(title=f"Whole network\nabout {limit} B USD")
    axes.set(xlabel="Transceiver (USD)", ylabel="OCS port (USD)")
    _finish(axes, right, top)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _shade() -> dict[str, Any]:
    return {"color": lighter(*_HOLDS), "linewidth": 0, "zorder": 0}


def _finish(axes: Axes, right: float, top: float) -> None:
    axes.set(xlim=(0, right), ylim=(0, top))
    axes.legend(loc="upper left", bbox_to_anchor=(-0.04, -0.17), borderaxespad=0.1)


def _dots(
    axes: Axes, rows: DataFrame, horizontal: str, vertical: str, marks: Mapping[str, str]
) -> None:
    """The price lists, each with its mark, filled where the claim holds."""
    for row in records(rows):
        mark = marks[row["prices"]]
        colour = GREY if mark == _INFERRED else INK
        face = colour if row["holds"] else "white"
        style = dot(colour, 7.5, marker=mark, markerfacecolor=face, zorder=4)
        axes.plot(row[horizontal], row[vertical], **style)


def _line(row: Series[Any], x: np.ndarray) -> np.ndarray:
    y: np.ndarray = float(row["boundary_slope"]) * x + float(row["boundary_intercept"])
    return y


def _boundary(row: Series[Any]) -> str:
    intercept = float(row["boundary_intercept"])
    sign = "-" if intercept < 0 else "+"
    return f"y = {float(row['boundary_slope']):.2f} x {sign} {abs(intercept):.2f}"


FIGURE = declare(
    ClaimMapFigureSettings,
    "Where the cost claims hold",
    "railx",
    draw,
    claim_map="economics.claim_map: view factor level claim prices transceiver_usd ocs_port_usd"
    " ocs_port_over_transceiver switch_port_over_transceiver limit tolerance holds boundary_slope"
    " boundary_intercept source fidelity",
)
