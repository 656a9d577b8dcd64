"""Where the claims on the cost and the power of photonic rails hold.

The map is over what the electrical rails are built of: switch ports of a GPU, and the
price or the power of a transceiver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import numpy as np

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import patch, share_legend
from railx.figures.tables import Tables, records, stack, where
from railx.figures.theme import GREY, INK, PALETTE, dot, lighter
from railx.figures.words import fidelity_line, phrases, quantity

__all__ = ["FIGURE", "RailBoundary", "RailClaimsSettings", "RailPoint"]

_HOLDS = (PALETTE[2], 0.78)
#: Claims: title, axis and unit of a transceiver.
_CLAIMS = {"cost": ("Cost", "Transceiver (USD)", "USD"), "power": ("Power", "Transceiver (W)", "W")}
_DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_MARKS = "osv^DP"
_PORTS = "switch_ports_per_gpu"


@dataclass(frozen=True)
class RailBoundary:
    """A platform whose boundary is drawn."""

    words: str
    """Words for it."""

    platform: str
    """Platform of the map."""

    transceivers_per_gpu: int
    """Transceivers of a GPU on photonic rails."""


@dataclass(frozen=True)
class RailPoint:
    """A point of the map at the first boundary's platform."""

    words: str
    """Words for it."""

    usd: float
    """USD of a transceiver."""

    watts: float
    """W of a transceiver."""

    ports: float
    """Switch ports of a GPU."""


@dataclass(frozen=True)
class RailClaimsSettings(CanvasSettings):
    """Where the claims on cost and power of photonic rails hold.

    4 times lower cost and 23 times lower power: Opus (arXiv 2602.12521), abstract.
    """

    figure: Literal["rail_claims"] = "rail_claims"
    height_inches: Height = 6.2

    boundaries: tuple[RailBoundary, ...] = (
        RailBoundary("400G, one transceiver a GPU", "h200_400g", 1),
        RailBoundary("400G, two transceivers a GPU", "h200_400g", 2),
        RailBoundary("800G, optics at GPUs alone", "gb200_800g", 1),
        RailBoundary("800G, optics at switches too", "gb200_800g_both_ends", 1),
    )
    """Boundaries; the region of the first is shaded and has contours."""

    points: tuple[RailPoint, ...] = (
        RailPoint("5 ports, 879 USD: the script", 879, 10, 5),
        RailPoint("5 ports, 219 USD: its older notebook", 219, 10, 5),
        RailPoint("3 ports, 879 USD: leaf and spine, used ports", 879, 10, 3),
        RailPoint("1 port, 879 USD: rails without a spine", 879, 10, 1),
    )
    """Points that are marked, filled where the claim holds at the first boundary."""

    contours: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {"cost": (1, 2, 3, 5), "power": (5, 10, 15, 20, 30)}
    )
    """Ratios with a contour line, by claim (cost, power)."""


def draw(settings: RailClaimsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for cost and one for power.

    Raises ValueError for a boundary that the table does not have.
    """
    table = tables.read("map")
    points = _points(settings, table)
    limits = {str(claim): float(rows["limit"].iloc[0]) for claim, rows in table.groupby("claim")}
    subtitle = f"""Electrical over photonic rails. Shaded: the claim holds
        ({settings.boundaries[0].words}). Lines: where it just holds; grey contours: times lower
        with photonic rails. Marks: filled where the claim holds."""
    line = fidelity_line(table["fidelity"], "Port prices and power: the artifact's")
    with canvas(subtitle, line) as page:
        panels = page.subplots(1, 2)
        for axes, (claim, (title, unit, _)) in zip(panels, _CLAIMS.items(), strict=True):
            _panel(axes, settings, where(table, claim=claim), claim, points)
            axes.set(
                title=f"{title}: {quantity(limits[claim])} times lower",
                xlabel=unit,
                ylabel="Electrical switch ports per GPU",
            )
        legend: dict[str, Any] = {"Claim holds": patch(lighter(*_HOLDS))}
        legend |= {line.words: _line(position) for position, line in enumerate(settings.boundaries)}
        for mark, point in zip(_MARKS, settings.points, strict=False):
            legend[point.words] = dot(INK, 7, marker=mark)
        share_legend(page, legend, 2)
    return Drawn(*_texts(settings, points, limits), points)


def _line(number: int) -> dict[str, Any]:
    colour = INK if number == 0 else PALETTE[(0, 5, 7)[number % 3]]
    return {"color": colour, "linestyle": _DASHES[number % 4], "linewidth": 1.8}


def _of(table: DataFrame, boundary: RailBoundary) -> DataFrame:
    keys = {"platform": boundary.platform, "transceivers_per_gpu": boundary.transceivers_per_gpu}
    rows = where(table, **keys)
    if rows.empty:
        pairs = table[[*keys]].drop_duplicates().itertuples(index=False)
        raise UserError(
            f"boundaries: got {boundary.platform} with {boundary.transceivers_per_gpu}; allowed: "
            + ", ".join(f"{name} with {count}" for name, count in pairs)
        )
    return rows


def _points(settings: RailClaimsSettings, table: DataFrame) -> DataFrame:
    """The marked points and the boundaries."""
    columns = ["claim", "transceiver", _PORTS, "ratio", "holds"]
    base = _of(table, settings.boundaries[0])
    parts = []
    for point, claim in product(settings.points, _CLAIMS):
        level = {"cost": point.usd, "power": point.watts}[claim]
        rows = where(base, claim=claim)
        near = np.isclose(rows["transceiver"], level) & np.isclose(rows[_PORTS], point.ports)
        if not near.any():
            raise UserError(
                f"points: no {claim} at {level:g} and {point.ports:g} ports; allowed: points of"
                " the map"
            )
        at: dict[str, Any] = {"transceiver": float(level), _PORTS: float(point.ports)}
        parts.append(rows[near].head(1).assign(kind="point", words=point.words, **at))
    for boundary in settings.boundaries:
        edge = _of(table, boundary).drop_duplicates(["claim", "transceiver"])
        at = {_PORTS: edge["ports_at_boundary"], "ratio": edge["limit"], "holds": True}
        parts.append(edge.assign(kind="boundary", words=boundary.words, **at))
    return stack(parts)[["kind", "words", *columns]]


def _panel(
    axes: Axes, settings: RailClaimsSettings, table: DataFrame, claim: str, points: DataFrame
) -> None:
    base = _of(table, settings.boundaries[0])
    right, top = float(base["transceiver"].max()), float(base[_PORTS].max())
    edges = [
        _of(table, boundary).drop_duplicates("transceiver").sort_values("transceiver")
        for boundary in settings.boundaries
    ]
    ceiling = max(top, float(edges[0]["ports_at_boundary"].max())) + 1
    shade: dict[str, Any] = {"color": lighter(*_HOLDS), "linewidth": 0, "zorder": 0}
    axes.fill_between(edges[0]["transceiver"], edges[0]["ports_at_boundary"], ceiling, **shade)
    box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    for ratio in settings.contours[claim]:
        x, y = _contour(base, ratio)
        axes.plot(x, y, color=GREY, linewidth=0.9)
        inside = [position for position in range(len(x)) if 0.3 < y[position] < 0.96 * top]
        if inside:
            at = inside[-1] if x[inside[-1]] < 0.97 * right else inside[-2]
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": GREY, "bbox": box}
            axes.annotate(f"{ratio:g}x", (x[at], y[at]), **style)
    for number, edge in enumerate(edges):
        axes.plot(edge["transceiver"], edge["ports_at_boundary"], **_line(number))
    for mark, row in zip(_MARKS, records(where(points, kind="point", claim=claim)), strict=False):
        fill = INK if row["holds"] else "white"
        style = dot(INK, 7.5, marker=mark, markerfacecolor=fill, zorder=5)
        axes.plot(row["transceiver"], row[_PORTS], **style)
    axes.set(xlim=(0, right), ylim=(0, top))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _contour(base: DataFrame, ratio: float) -> tuple[list[float], list[float]]:
    """Ports at which a ratio is reached, by transceiver: it is linear in the ports."""
    ends = base.sort_values(_PORTS).groupby("transceiver")[["ratio", _PORTS]]
    low, high = ends.first(), ends.last()
    slope = (high["ratio"] - low["ratio"]) / (high[_PORTS] - low[_PORTS])
    ports = low[_PORTS] + (ratio - low["ratio"]) / slope
    return list(ports.index), list(ports)


def _texts(
    settings: RailClaimsSettings, points: DataFrame, limits: dict[str, float]
) -> tuple[str, str]:
    """Caption and alternative text."""
    parts = []
    marked = where(points, kind="point")
    for claim, (title, _, unit) in _CLAIMS.items():
        rows = where(marked, claim=claim)
        level = float(rows["transceiver"].iloc[0])
        words = settings.boundaries[0].words
        edge = where(points, claim=claim, kind="boundary", words=words)
        edge = edge[np.isclose(edge["transceiver"], level)]
        parts.append(f"""{title}: {phrases(rows, "{ratio:q} times at {words}")}. With transceivers
            of {quantity(level)} {unit} the {quantity(limits[claim])} times of the abstract take
            {quantity(float(edge[_PORTS].iloc[0]))} switch ports a GPU.""")
    marked = marked.assign(verb=np.where(marked["holds"], "holds", "does not hold"))
    marks = phrases(marked, "{words}: {ratio:q} times lower {claim}, {verb}")
    alternative = f"""Two maps of switch ports per GPU over the price and over the power of a
        transceiver, with the region where photonic rails save as much as claimed and
        {len(settings.boundaries)} boundaries. {marks}."""
    return " ".join(parts), alternative


FIGURE = declare(
    RailClaimsSettings,
    "What the saving of photonic rails rests on",
    "opus",
    draw,
    map="economics.rail_map: platform transceivers_per_gpu claim transceiver switch_ports_per_gpu"
    " ratio limit holds ports_at_boundary fidelity",
)
