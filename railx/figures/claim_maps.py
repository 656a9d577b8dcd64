"""Where the claims on cost and power hold: maps of prices with their boundaries.

RailX has two relative claims, over prices relative to a transceiver, and an absolute
one. Those on photonic rails depend on what the electrical rails are built of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, product
from typing import Annotated, Any

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, figure, reads
from railx.figures.marks import PUBLISHED, dot
from railx.figures.panels import patch, share_legend
from railx.figures.tables import records, refuse, stack, where
from railx.figures.theme import GREY, INK, PALETTE, label, lighter, text_colour
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import listed, phrase_list, phrases, quantity, span, spoken
from railx.settings import Fraction, NotEmpty

# RailX: half-planes of price ratios, and a strip of USD

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
_DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)))
#: Marks of the price lists in their order, and that of prices that are inferred.
_PRICE_MARKS, _INFERRED = "osv^P", "X"
#: The region in which a claim holds.
_HOLDS = (PALETTE[2], 0.78)
_RATIOS = ("ocs_port_over_transceiver", "switch_port_over_transceiver")

Lines = Mapping[str, tuple[float, ...]]
#: Further boundaries by claim: factors and levels of the claim map.
_MOVED: dict[str, Lines] = {
    "injection": {"m": (1, 2, 3), "tiers": (1,)},
    "all_to_all": {
        "all_to_all_share": (0.766,),
        "leaf_cable_over_transceiver": (0.9,),
        "tiers": (2, 1),
        "taper": (0.5,),
    },
}


@figure("Where the cost claims hold", "railx", height=6)
@reads(
    claim_map="economics.claim_map: view factor level claim prices transceiver_usd ocs_port_usd"
    " ocs_port_over_transceiver switch_port_over_transceiver limit tolerance holds boundary_slope"
    " boundary_intercept source fidelity"
)
def claim_map(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Where the cost claims hold over price ratios (RailX, arXiv 2507.18889)."""
    table = tables.read("claim_map")
    lists = where(table, view="price_set").drop_duplicates("prices")
    sources = zip(lists["prices"], lists["source"], cycle(_PRICE_MARKS), strict=False)
    marks = {
        name: _INFERRED if "not a price" in str(source) else mark for name, source, mark in sources
    }
    table["mark"] = table["prices"].map(marks)
    subtitle = """Shaded: the claim holds at the base case (ideal all-to-all, fat tree of three full
        tiers with optics throughout). Lines: its boundary, and where other assumptions move it.
        Marks: price lists, filled where the claim holds at the base case. Optics: a transceiver."""
    title = "For which prices the cost claims hold"
    with canvas(subtitle, table["fidelity"], title=title) as page:
        panels = page.subplots(1, 3)
        for axes, (claim, extra) in zip(panels, _MOVED.items(), strict=False):
            _relative(axes, where(table, claim=claim), claim, extra)
        _absolute(panels[2], _base(table, "absolute"))
        legend: dict[str, Any] = {
            label(name): dot(GREY if mark == _INFERRED else INK, 7, marker=mark)
            for name, mark in marks.items()
        }
        share_legend(page, legend | {"claim holds": patch(lighter(*_HOLDS))}, len(legend) + 1)
    # The price lists at the base case and at the levels that are drawn.
    moved = [(claim, *level) for claim, lines in _MOVED.items() for level in _levels(lines)]
    levels = table["level"].astype(float).round(9)
    cases = zip(table["claim"], table["factor"], levels, strict=True)
    drawn = [case[1] == "base" or case in moved for case in cases]
    data = where(table[drawn], view="price_set")[tables.columns("claim_map")]
    bases = {claim: _base(table, claim) for claim in (*_TITLES, "absolute")}
    titles = _TITLES | {"absolute": "Cost of the whole network"}
    parts = []
    for claim, points in bases.items():
        limit, tolerance = (float(points[name].iloc[0]) for name in ("limit", "tolerance"))
        priced = points[~points["source"].astype(str).str.contains("not a price")]
        passed, failed = (
            listed([spoken(name) for name in where(priced, holds=holds)["prices"]])
            for holds in (True, False)
        )
        bound = f"below {quantity(100 * limit)} % of a fat tree"
        if claim == "absolute":
            bound = f"about {quantity(limit / 1e9)} B USD, to {quantity(100 * tolerance)} %"
        holds = f"holds under {passed or 'none of the price lists'}"
        fails = f", not under {failed}" if passed and failed else ""
        parts.append(f"{titles[claim]}, {PUBLISHED} as {bound}: {holds}{fails}.")
    injection, exchange, total = (points.iloc[0] for points in bases.values())
    caption = f"""{" ".join(parts)} With an optical port x and an electrical port y transceivers
        dear, the first holds above {_boundary(injection)}, the second above
        {_boundary(exchange)}; the third where transceiver and optical port together cost
        {quantity(total["boundary_intercept"])} USD. The cross is inferred from the abstract and no
        price."""
    points = stack(bases.values())
    points["verb"] = np.where(points["holds"], "holds", "does not hold")
    points["claim"] = points["claim"].str.replace("_", " ")
    text = f"""{{prices:spoken}}: OCS port {{{_RATIOS[0]}:q}}, switch port {{{_RATIOS[1]}:q}}
        transceivers, {{verb}} for {{claim}}"""
    alternative = f"""Three maps of prices with the region where each cost claim holds.
        {phrases(points, text)}."""
    return Drawn(caption, alternative, data.reset_index(drop=True))


def _levels(lines: Lines) -> list[tuple[str, float]]:
    return [(factor, level) for factor, levels in lines.items() for level in levels]


def _base(table: DataFrame, claim: str) -> DataFrame:
    """The price lists at the base case."""
    return where(table, claim=claim, factor="base", view="price_set")


def _relative(axes: Axes, rows: DataFrame, claim: str, lines: Lines) -> None:
    base = where(rows, factor="base")
    right, top = (float(base[column].max()) for column in _RATIOS)
    x = np.linspace(0.0, right, 301)
    y = _line(base.iloc[0], x)
    _shade(axes, x, np.clip(y, 0, top), top)
    axes.plot(x, y, color=INK, linewidth=1.8, label=f"base case: {_boundary(base.iloc[0])}")
    for i, (factor, level) in enumerate(_levels(lines)):
        at = rows[(rows["factor"] == factor) & np.isclose(rows["level"].astype(float), level)]
        if at.empty:
            refuse(f"claim_map: {factor} has no level {level:g}", "a table with it")
        name = _FACTORS.get(factor, factor + " {0:g}").format(level)
        style: dict[str, Any] = {"linestyle": _DASHES[1 + i % 4], "linewidth": 1.4, "label": name}
        axes.plot(x, _line(at.iloc[0], x), color=PALETTE[(0, 5, 3, 7, 6)[i % 5]], **style)
    _marks(axes, where(base, view="price_set"), *_RATIOS)
    limit = quantity(100 * float(base["limit"].iloc[0]))
    axes.set_title(f"{_TITLES[claim]}\nbelow {limit} % of a fat tree")
    axes.set(xlabel="OCS port / transceiver", ylabel="Electrical switch port / transceiver")
    _finish(axes, right, top)


def _absolute(axes: Axes, rows: DataFrame) -> None:
    first, columns = rows.iloc[0], ("transceiver_usd", "ocs_port_usd")
    slope, intercept = float(first["boundary_slope"]), float(first["boundary_intercept"])
    right, top = (1.25 * max(float(rows[column].max()), intercept) for column in columns)
    x = np.array([0.0, right])
    low, high = (slope * x + (1 + sign * first["tolerance"]) * intercept for sign in (-1, 1))
    _shade(axes, x, low, high)
    text = f"both together {quantity(intercept)} USD"
    axes.plot(x, slope * x + intercept, color=INK, linewidth=1.8, label=text)
    _marks(axes, rows, *columns)
    axes.set_title(f"Whole network\nabout {quantity(float(first['limit']) / 1e9)} B USD")
    axes.set(xlabel="Transceiver (USD)", ylabel="OCS port (USD)")
    _finish(axes, right, top)
    axes.locator_params(axis="x", nbins=5, steps=None)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")


def _shade(axes: Axes, x: Any, low: Any, high: Any) -> None:
    """The region in which a claim holds."""
    axes.fill_between(x, low, high, color=lighter(*_HOLDS), linewidth=0, zorder=0)


def _marks(axes: Axes, rows: DataFrame, x: str, y: str) -> None:
    """Marks in ink, filled where the claim holds; grey for inferred prices."""
    for row in records(rows):
        colour = GREY if row["mark"] == _INFERRED else INK
        fill = colour if row["holds"] else "white"
        style = dot(colour, 7.5, marker=row["mark"], markerfacecolor=fill, zorder=4)
        axes.plot(row[x], row[y], **style)


def _finish(axes: Axes, right: float, top: float) -> None:
    axes.set(xlim=(0, right), ylim=(0, top))
    axes.legend(loc="upper left", bbox_to_anchor=(-0.04, -0.17), borderaxespad=0.1)


def _line(row: Series[Any], x: np.ndarray) -> Any:
    return float(row["boundary_slope"]) * x + float(row["boundary_intercept"])


def _boundary(row: Series[Any]) -> str:
    intercept = float(row["boundary_intercept"])
    sign = "-" if intercept < 0 else "+"
    return f"y = {float(row['boundary_slope']):.2f} x {sign} {abs(intercept):.2f}"


# Photonic rails: switch ports of a GPU over a transceiver

#: Claims: title, axis and unit of a transceiver.
_CLAIMS = {"cost": ("Cost", "Transceiver (USD)", "USD"), "power": ("Power", "Transceiver (W)", "W")}
_RAIL_MARKS = "osv^DP"
_MAP_PORTS = "switch_ports_per_gpu"

#: Boundaries by their words: platform and transceivers of a GPU on photonic rails. The
#: region of the first is shaded and has contours.
_BASE = "400G, one transceiver a GPU"
_BOUNDARIES = {
    _BASE: ("h200_400g", 1),
    "400G, two transceivers a GPU": ("h200_400g", 2),
    "800G, optics at GPUs alone": ("gb200_800g", 1),
    "800G, optics at switches too": ("gb200_800g_both_ends", 1),
}
#: Points that are marked, filled where the claim holds at the first boundary: words,
#: USD and W of a transceiver, switch ports of a GPU.
_POINTS = (
    ("5 ports, 879 USD: the script", {"cost": 879, "power": 10}, 5),
    ("5 ports, 219 USD: its older notebook", {"cost": 219, "power": 10}, 5),
    ("3 ports, 879 USD: leaf and spine, used ports", {"cost": 879, "power": 10}, 3),
    ("1 port, 879 USD: rails without a spine", {"cost": 879, "power": 10}, 1),
)
#: Ratios with a contour line.
_CONTOURS = {"cost": (1, 2, 3, 5), "power": (5, 10, 15, 20, 30)}


@figure("What the saving of photonic rails rests on", "opus", height=6.2)
@reads(
    map="economics.rail_map: platform transceivers_per_gpu claim transceiver switch_ports_per_gpu"
    " ratio limit holds ports_at_boundary fidelity"
)
def rail_claims(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Where the claims on cost and power of photonic rails hold.

    4 times lower cost and 23 times lower power: Opus (arXiv 2602.12521), abstract.
    """
    table = tables.read("map")
    points = _points(table)
    limits = {str(claim): float(rows["limit"].iloc[0]) for claim, rows in table.groupby("claim")}
    subtitle = f"""Electrical over photonic rails. Shaded: the claim holds
        ({_BASE}). Lines: where it just holds; grey contours: times lower
        with photonic rails. Marks: filled where the claim holds."""
    note = "Port prices and power are those of the artifact"
    with canvas(subtitle, table["fidelity"], note) as page:
        panels = page.subplots(1, 2)
        for axes, (claim, (title, unit, _)) in zip(panels, _CLAIMS.items(), strict=True):
            _panel(axes, where(table, claim=claim), claim, points)
            axes.set_title(f"{title}: {quantity(limits[claim])} times lower")
            axes.set(xlabel=unit, ylabel="Electrical switch ports per GPU")
        legend: dict[str, Any] = {"Claim holds": patch(lighter(*_HOLDS))}
        legend |= {words: _edge_style(i) for i, words in enumerate(_BOUNDARIES)}
        for mark, (words, *_) in zip(_RAIL_MARKS, _POINTS, strict=False):
            legend[words] = dot(INK, 7, marker=mark)
        share_legend(page, legend, 2)
    parts = []
    marked = where(points, kind="point")
    for claim, (title, _, unit) in _CLAIMS.items():
        rows = where(marked, claim=claim)
        level = float(rows["transceiver"].iloc[0])
        edge = where(points, claim=claim, kind="boundary", words=_BASE)
        edge = edge[np.isclose(edge["transceiver"], level)]
        parts.append(f"""{title}: {phrases(rows, "{ratio:q} times at {words}")}. With transceivers
            of {quantity(level)} {unit} the {quantity(limits[claim])} times of the abstract take
            {quantity(edge[_MAP_PORTS].iloc[0])} switch ports a GPU.""")
    marked = marked.assign(verb=np.where(marked["holds"], "holds", "does not hold"))
    marks = phrases(marked, "{words}: {ratio:q} times lower {claim}, {verb}")
    alternative = f"""Two maps of switch ports per GPU over the price and over the power of a
        transceiver, with the region where photonic rails save as much as claimed and
        {len(_BOUNDARIES)} boundaries. {marks}."""
    return Drawn(" ".join(parts), alternative, points)


def _edge_style(number: int) -> dict[str, Any]:
    colour = INK if number == 0 else PALETTE[(0, 5, 7)[number % 3]]
    return {"color": colour, "linestyle": _DASHES[number % 4], "linewidth": 1.8}


def _of(table: DataFrame, boundary: str) -> DataFrame:
    platform, transceivers = _BOUNDARIES[boundary]
    rows = where(table, platform=platform, transceivers_per_gpu=transceivers)
    if rows.empty:
        refuse(f"map: no {platform} with {transceivers}", "a table with it")
    return rows


def _points(table: DataFrame) -> DataFrame:
    """The marked points and the boundaries."""
    columns = ["claim", "transceiver", _MAP_PORTS, "ratio", "holds"]
    base, parts = _of(table, _BASE), []
    for (words, levels, ports), claim in product(_POINTS, _CLAIMS):
        rows = where(base, claim=claim)
        near = np.isclose(rows["transceiver"], levels[claim]) & np.isclose(rows[_MAP_PORTS], ports)
        if not near.any():
            refuse(f"map: no {claim} at {levels[claim]} and {ports} ports", "a table with it")
        at: dict[str, Any] = {"transceiver": float(levels[claim]), _MAP_PORTS: float(ports)}
        parts.append(rows[near].head(1).assign(kind="point", words=words, **at))
    for words in _BOUNDARIES:
        edge = _of(table, words).drop_duplicates(["claim", "transceiver"])
        at = {_MAP_PORTS: edge["ports_at_boundary"], "ratio": edge["limit"], "holds": True}
        parts.append(edge.assign(kind="boundary", words=words, **at))
    return stack(parts)[["kind", "words", *columns]]


def _panel(axes: Axes, table: DataFrame, claim: str, points: DataFrame) -> None:
    base = _of(table, _BASE)
    right, top = float(base["transceiver"].max()), float(base[_MAP_PORTS].max())
    lines = where(points, kind="boundary", claim=claim).set_index("transceiver")
    edges = [where(lines, words=words)[_MAP_PORTS].sort_index() for words in _BOUNDARIES]
    _shade(axes, edges[0].index, edges[0], max(top, float(edges[0].max())) + 1)
    box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": GREY, "bbox": box}
    for ratio in _CONTOURS[claim]:
        ports = _contour(base, ratio)
        axes.plot(ports.index, ports, color=GREY, linewidth=0.9)
        inside = ports[ports.between(0.3, 0.96 * top, inclusive="neither")]
        if len(inside):
            at = -1 if inside.index[-1] < 0.97 * right else -2
            axes.annotate(f"{ratio:g}x", (inside.index[at], inside.iloc[at]), **style)
    for number, edge in enumerate(edges):
        axes.plot(edge.index, edge, **_edge_style(number))
    marked = where(points, kind="point", claim=claim)
    marked = marked.assign(mark=list(_RAIL_MARKS[: len(marked)]))
    _marks(axes, marked, "transceiver", _MAP_PORTS)
    axes.set(xlim=(0, right), ylim=(0, top))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _contour(base: DataFrame, ratio: float) -> Series[Any]:
    """Ports at which a ratio is reached, by transceiver: it is linear in the ports."""
    ends = base.sort_values(_MAP_PORTS).groupby("transceiver")[["ratio", _MAP_PORTS]]
    low, high = ends.first(), ends.last()
    slope = (high["ratio"] - low["ratio"]) / (high[_MAP_PORTS] - low[_MAP_PORTS])
    return low[_MAP_PORTS] + (ratio - low["ratio"]) / slope


# RailX: a grid of price ratios


@dataclass(frozen=True)
class PriceSensitivitySettings(CanvasSettings):
    """Cost per bandwidth relative to a reference over a grid of price ratios."""

    reference: Annotated[str, NotEmpty()] = "fat_tree_full"
    """Topology that the cost is relative to."""
    all_to_all: Annotated[str, NotEmpty()] = "ideal"
    """All-to-all bandwidth of the rows: ``ideal`` or ``published_routing``."""
    published_per_injection: Annotated[float, Fraction()] = 0.1
    """Published limit of the cost per injection bandwidth, as a share of the
    reference's."""
    published_per_all_to_all: Annotated[float, Fraction()] = 0.5
    """Published limit of the cost per all-to-all bandwidth, as a share of the
    reference's."""


@figure("For which prices the cost claims hold", "railx", height=4.4)
@reads(
    sensitivity="economics.sensitivity: view reference all_to_all transceiver_usd ocs_port_usd"
    " electrical_switch_port_usd injection_cost_ratio all_to_all_cost_ratio fidelity"
)
def price_sensitivity(settings: PriceSensitivitySettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Two heat maps from the rows of view ``ratio``."""
    table = tables.read("sensitivity")
    rows = where(table, view="ratio", reference=settings.reference, all_to_all=settings.all_to_all)
    if rows.empty:
        pairs = sorted(set(phrase_list(table, "{reference} with {all_to_all}")))
        got = f"reference: no price ratios for {settings.reference} with {settings.all_to_all}"
        refuse(got, pairs)
    for ratio, column in zip(_RATIOS, ("ocs_port_usd", "electrical_switch_port_usd"), strict=True):
        rows[ratio] = (rows[column] / rows["transceiver_usd"]).round(6)
    limits = {name: getattr(settings, f"published_per_{name}") for name in _TITLES}
    basis = label(settings.all_to_all).lower()
    subtitle = f"""Share of {label(settings.reference).lower()} (%), all-to-all bandwidth: {basis}.
        Outlined: below the limit in the paper's abstract."""
    # Shares in percent: a row for each price of a switch port, the dearest on top.
    means = 100 * rows.groupby([*reversed(_RATIOS)]).mean(numeric_only=True)
    cells = {bandwidth: means[f"{bandwidth}_cost_ratio"].unstack()[::-1] for bandwidth in limits}
    with canvas(subtitle, rows["fidelity"]) as page:
        panels = page.subplots(1, 2, sharey=True)
        for axes, (bandwidth, limit) in zip(panels, limits.items(), strict=True):
            _grid(axes, cells[bandwidth], limit)
            axes.set_title(f"{_TITLES[bandwidth]}, limit {quantity(100 * limit)} %")
        panels[0].set_ylabel("Electrical switch port / transceiver")
    parts, grids = [], []
    for bandwidth, limit in limits.items():
        shares = 100 * rows[f"{bandwidth}_cost_ratio"]
        parts.append(f"""{_TITLES[bandwidth]} it goes from {span(shares)} % of
            {spoken(settings.reference)}; {int((shares < 100 * limit).sum())} of {len(rows)}
            price ratios stay below the {PUBLISHED} {quantity(100 * limit)} %.""")
        lines = cells[bandwidth].map(quantity).agg(" ".join, axis=1).items()
        texts = ", ".join(f"switch port {index:g}: {line}" for index, line in lines)
        grids.append(f"per {bandwidth.replace('_', '-')} {texts}")
    caption = f"""Cost of {spoken(rows["topology"].iloc[0])} for the same bandwidth,
        over the prices of an optical and of an electrical switch port relative to a transceiver
        (all-to-all bandwidth: {basis}). {" ".join(parts)}"""
    alternative = f"""Two grids of cost shares in percent, optical ports from cheap to dear.
        {"; ".join(grids)}."""
    return Drawn(caption, alternative, rows)


def _grid(axes: Axes, cells: DataFrame, limit: float) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    for y, (_, line) in enumerate(cells.iterrows()):
        for x, value in enumerate(line):
            # White at nothing, the full colour at twice the limit and beyond.
            fill = to_hex(lighter(PALETTE[1], 1 - min(1.0, value / max(200 * limit, 1))))
            look: dict[str, Any] = {"facecolor": fill, "edgecolor": "white", "linewidth": 1.5}
            axes.add_patch(Rectangle((x, y), 1, 1, **look))
            centred: dict[str, Any] = {"ha": "center", "va": "center", "color": text_colour(fill)}
            axes.text(x + 0.5, y + 0.5, quantity(value), **centred)
            if value < 100 * limit:
                outline: dict[str, Any] = {"fill": False, "edgecolor": INK, "linewidth": 1.8}
                axes.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, **outline))
    axes.set(xlim=(0, len(cells.columns)), ylim=(len(cells), 0), xlabel="OCS port / transceiver")
    axes.set_xticks(np.arange(len(cells.columns)) + 0.5, [f"{v:g}" for v in cells.columns])
    axes.set_yticks(np.arange(len(cells)) + 0.5, [f"{v:g}" for v in cells.index])
    axes.grid(visible=False)
