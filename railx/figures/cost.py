"""Cost by topology: bill of materials per chip, cost per bandwidth, and both over size.

The abstract of RailX (arXiv 2507.18889) puts its cost per injection bandwidth below
10 % and per all-to-all bandwidth below 50 % of a fat tree. Component prices are a
catalogue's, not the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Annotated, Any

from railx.figures.figure import Canvas, Choice, Drawn, Tables, figure, reads
from railx.figures.marks import PUBLISHED, PUBLISHED_LINE, PUBLISHED_MARK, dot
from railx.figures.panels import beside, name_rows, share_legend, stacked, ticks
from railx.figures.tables import records, refuse, refuse_unknown, stack, to_frame, where
from railx.figures.theme import PALETTE, colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, listed, phrase_list, phrases, quantity, span, spoken
from railx.settings import Fraction, NotEmpty, SettingsError, mapping

# Bill of materials, and cost relative to a reference

#: Published tables that the settings name.
_PUBLISHED = ("railx", "opus_cost_power")
#: What may be compared: its name on the axis and its column of the summary.
_COMPARED = {
    "injection": ("Cost per injection bandwidth", "usd_per_injection_gb_s"),
    "all_to_all": ("Cost per all-to-all bandwidth", "usd_per_all_to_all_gb_s"),
    "power": ("Power per chip", "power_per_chip_watts"),
}
#: Ratios under price lists: colour and place beside the middle of the row.
_LISTS = {"injection": (PALETTE[0], -0.13), "all_to_all": (PALETTE[5], 0.13)}


@dataclass(frozen=True)
class CostSettings(Choice):
    """Bill of materials and cost relative to a reference."""

    only: tuple[str, ...] = ("railx_hyperx_full", "fat_tree_full")
    """Topologies of the economics tables to show, in that order; empty: all."""
    reference: Annotated[str, NotEmpty()] = "fat_tree_full"
    """Topology that the others are compared with."""
    compare: Annotated[dict[str, Annotated[float, Fraction()] | None], NotEmpty()] = mapping(
        injection=0.10, all_to_all=0.50
    )
    """What is compared: ``injection`` and ``all_to_all`` are costs per bandwidth,
    ``power`` is power per chip. Each has the share of the reference that the paper
    stays below; null where it states none."""
    published_usd: dict[str, str] = mapping(railx_hyperx_full="railx absolute_cost value")
    """Published cost of networks by topology: table (railx, opus_cost_power), id of its
    row and column."""

    def __post_init__(self) -> None:
        for key in self.compare:
            if key not in _COMPARED:
                allowed = ", ".join(_COMPARED)
                raise SettingsError(f"compare.{key}", f"unknown key; allowed: {allowed}")


@figure("Cost by topology", "railx", height=6.8)
@reads(
    bill="economics.bill: topology chips component total_usd fidelity",
    summary="economics.summary: topology chips cost_usd usd_per_injection_gb_s"
    " usd_per_all_to_all_gb_s power_watts fidelity",
    sensitivity="economics.sensitivity (optional): view prices topology reference all_to_all"
    " injection_cost_ratio all_to_all_cost_ratio fidelity",
    railx="railx.csv: id paper",
    opus_cost_power="opus_cost_power.csv: id paper",
)
def cost(settings: CostSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """The bill, costs over the reference's, and price lists where a table has them."""
    bill, summary = tables.read("bill"), _summary(settings, tables)
    bill = bill[bill["topology"].isin(summary.index)]
    prices = _price_lists(settings, tables, summary)
    totals, paper = _published_totals(settings, tables)
    ratios = _ratios(summary, settings)
    reference = spoken(settings.reference)
    others = listed([spoken(name) for name in summary.index if name != settings.reference])
    subtitle = f"""Relative: for the same bandwidth, {reference} is 100 %. Prices are a catalogue's,
        each with its source."""
    title = f"Cost of {others} against {reference}"
    with canvas(subtitle, [*bill["fidelity"], *summary["fidelity"]], title=title) as page:
        layout: list[Any] = [["bill"], ["relative"]]
        heights = [0.8 + 0.45 * len(summary), 0.8 + 0.5 * len(ratios)]
        if prices is not None:
            layout = [["bill", "bill"], ["relative", "prices"]]
            heights[1] = max(heights[1], 2.4)
        widths = [1.7, 1][: len(layout[0])]
        panels = page.subplot_mosaic(layout, height_ratios=heights, width_ratios=widths)
        _bill_of_materials(panels["bill"], bill, summary, totals)
        _relative(panels["relative"], ratios)
        legend: dict[str, Any] = {PUBLISHED: PUBLISHED_MARK} if totals else {}
        if ratios["published_below"].notna().any():
            legend[f"limit, {PUBLISHED}"] = PUBLISHED_LINE
        if prices is not None:
            _under_price_lists(panels["prices"], prices, settings)
            colour = _LISTS["all_to_all"][0]
            legend["per injection"] = dot(_LISTS["injection"][0], 7)
            legend["per all-to-all"] = dot(colour, 7)
            legend["per all-to-all, published routing"] = dot(colour, 7, markerfacecolor="white")
        share_legend(page, legend, 4, panels["bill"])
    caption = f"{_bill_caption(summary, totals)} {_relative_caption(settings, ratios, prices)}"
    data = _data(bill, ratios, totals, prices)
    return Drawn(caption, _bill_alternative(bill, ratios, totals), data, title, paper)


def _published_totals(settings: CostSettings, tables: Tables) -> tuple[dict[str, float], str]:
    """Published cost of networks by topology, and the paper that states them."""
    totals, papers = {}, []
    for topology, cell in settings.published_usd.items():
        table, row, column = (*cell.split(), "", "")[:3]
        if table not in _PUBLISHED:
            refuse(f"published_usd.{topology}: got table {table}", _PUBLISHED)
        rows = tables.read(table).set_index("id")
        if row not in rows.index or column not in rows.columns:
            got = f"published_usd.{topology}: {table} has no {row} {column}"
            refuse(got, "a table, the id of a row and a column")
        totals[topology] = float(str(rows.loc[row, column]))
        papers.append(str(rows.loc[row, "paper"]).split(",")[0].lower())
    return totals, papers[0] if papers else ""


def _summary(settings: CostSettings, tables: Tables) -> DataFrame:
    summary = tables.read("summary").set_index("topology", drop=False)
    summary["power_per_chip_watts"] = summary["power_watts"].astype(float) / summary["chips"]
    shown = list(settings.only) or list(summary.index)
    refuse_unknown("only", shown, summary.index)
    refuse_unknown("reference", [settings.reference], shown)
    for what in settings.compare:
        column = _COMPARED[what][1]
        empty = [name for name in shown if not summary[column].notna()[name]]
        if empty:
            got = f"compare.{what}: {', '.join(empty)} has no {column}"
            refuse(got, "what all topologies of the figure have")
    return summary.loc[shown]


def _ratios(summary: DataFrame, settings: CostSettings) -> DataFrame:
    """A row for each thing compared and network other than the reference."""
    parts = []
    for what, limit in settings.compare.items():
        values = summary[_COMPARED[what][1]].astype(float)
        shares = (values / values[settings.reference]).drop(settings.reference)
        rows = to_frame({"what": what, "topology": shares.index, "share_of_reference": shares})
        parts.append(rows.assign(published_below=limit))
    return stack(parts)


def _price_lists(settings: CostSettings, tables: Tables, summary: DataFrame) -> DataFrame | None:
    if "sensitivity" not in tables or not set(_LISTS) <= set(settings.compare):
        return None
    rows = tables.read("sensitivity").query("view == 'price_set'")
    rows = rows[(rows["reference"] == settings.reference) & rows["topology"].isin(summary.index)]
    return None if rows.empty else rows


def _bill_of_materials(
    axes: Axes, bill: DataFrame, summary: DataFrame, published: dict[str, float]
) -> None:
    """Stacked bars of networks; shares of a bar too short to read stand beside it."""
    table = bill.pivot_table(
        index="topology", columns="component", values="total_usd", aggfunc="sum", fill_value=0.0
    )
    table = table.loc[list(summary.index), table.sum().sort_values(ascending=False).index]
    totals = table.sum(axis=1)
    divisor, unit = (1e9, "B USD") if totals.max() >= 1e9 else (1e6, "M USD")
    stacked(axes, table / divisor, dict(zip(table.columns, cycle(PALETTE), strict=False)), 0.6)
    for position, (name, total) in enumerate(totals.items()):
        stated = published.get(str(name))
        words = f"{quantity(total / divisor)} {unit}"
        if stated is not None:
            axes.plot([stated / divisor], [position], zorder=5, **PUBLISHED_MARK)
            words += f" ({PUBLISHED}: {quantity(stated / divisor)})"
        if total < 0.3 * totals.max():
            words += f": {_shares(table.loc[str(name)].squeeze() / total)}"
        beside(axes, words, max(total, stated or 0.0) / divisor, position)
    prices = summary.assign(price=summary["cost_usd"] / summary["chips"])
    text = "{topology:label}\n{chips:,.0f} chips, ${price:q} a chip"
    name_rows(axes, phrase_list(prices, text))
    axes.set(title="Bill of materials", xlabel=f"Cost of the network ({unit})")
    axes.set_xlim(0, totals.max() / divisor * 1.36)
    axes.xaxis.set_major_formatter("{x:,g}")


def _shares(parts: Any) -> str:
    texts = []
    for component, share in parts.items():
        name = label(component)
        name = name if name.isupper() or component == "ocs_port" else name.lower()
        texts += [f"{name} {100 * share:.0f} %"] if share > 0 else []
    return ", ".join(texts)


def _relative(axes: Axes, ratios: DataFrame) -> None:
    """A bar for each thing compared and network, in percent of the reference."""
    several = ratios["topology"].nunique() > 1
    colour = colours(ratios["topology"])
    names, right = [], 100.0
    for position, row in enumerate(records(ratios)):
        share, limit = 100 * row["share_of_reference"], row["published_below"]
        axes.barh(position, share, 0.6, color=colour[str(row["topology"])])
        words = f"{quantity(share)} %"
        if limit == limit and limit is not None:
            ends = (position - 0.42, position + 0.42)
            axes.plot([100 * limit] * 2, ends, zorder=4, **PUBLISHED_LINE)
            words += f" ({PUBLISHED}: below {quantity(100 * limit)} %)"
            share = max(share, 100 * limit)
        beside(axes, words, share, position, 6, zorder=4)
        right = max(right, share)
        name = _COMPARED[str(row["what"])][0].replace(" per ", "\nper ")
        names.append(f"{label(row['topology'])}\n{name}" if several else name)
    name_rows(axes, names, above=0.6, below=0.6)
    axes.set(title="Relative", xlabel="Share of the reference (%)", xlim=(0, right * 1.2))


def _under_price_lists(axes: Axes, rows: DataFrame, settings: CostSettings) -> None:
    """Dots of both ratios under each price list.

    Filled for the ideal all-to-all bandwidth, hollow for another.
    """
    from matplotlib.ticker import LogLocator

    lists = list(dict.fromkeys(rows["prices"]))
    for what, (colour, aside) in _LISTS.items():
        # The injection bandwidth is the same under every routing: one dot.
        first = rows["all_to_all"] == rows["all_to_all"].iloc[0]
        for row in records(rows if what == "all_to_all" else rows[first]):
            ideal = what == "injection" or row["all_to_all"] == "ideal"
            style = dot(colour, 7, markerfacecolor=colour if ideal else "white")
            axes.plot(100 * row[f"{what}_cost_ratio"], lists.index(row["prices"]) + aside, **style)
        limit = settings.compare[what]
        if limit is not None:
            axes.axvline(100 * limit, zorder=4, **PUBLISHED_LINE | {"color": colour})
    name_rows(axes, [label(name) for name in lists], above=0.6, below=0.6)
    axes.set(title="Under other price lists", xscale="log", xlabel="Share (%)")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ticks(axes.xaxis, text="{x:g}")


def _data(
    bill: DataFrame, ratios: DataFrame, totals: dict[str, float], prices: DataFrame | None
) -> DataFrame:
    published = to_frame(totals.items(), ["topology", "total_usd"]).assign(component=PUBLISHED)
    parts = {"bill": stack([bill[["topology", "component", "total_usd"]], published])}
    parts["relative"] = ratios
    if prices is not None:
        columns = "topology prices all_to_all injection_cost_ratio all_to_all_cost_ratio"
        parts["prices"] = prices[columns.split()]
    data = stack(rows.assign(panel=panel) for panel, rows in parts.items())
    return data[["panel", *data.columns.drop("panel")]]


def _bill_caption(summary: DataFrame, totals: dict[str, float]) -> str:
    """Totals, and those that the paper states."""
    rows = summary.assign(usd=summary["cost_usd"].map(_usd))
    networks = phrase_list(rows, "{topology:spoken} {usd} for {chips:,.0f} chips")
    stated = [
        f"{spoken(name)} at {_usd(usd)}, ours {_usd(float(summary['cost_usd'][name]))}"
        for name, usd in totals.items()
        if name in rows.index
    ]
    paper = f" The paper puts {listed(stated)}." if stated else ""
    return f"Cost of whole networks: {listed(networks)}.{paper}"


def _relative_caption(settings: CostSettings, ratios: DataFrame, prices: DataFrame | None) -> str:
    """Shares of the reference against the limits, and under other price lists."""
    limits = ratios["published_below"].astype(float)
    ratios = ratios.assign(
        words=[_COMPARED[what][0].lower() for what in ratios["what"]],
        limit=[f", {PUBLISHED} as below {quantity(100 * x)} %" if x == x else "" for x in limits],
    )
    compared = phrases(ratios, "{words}: {share_of_reference:q%}{limit}")
    text = f"Of {spoken(settings.reference)}, {compared}." if compared else ""
    if prices is not None:
        text += f""" Under {counted(prices["prices"].nunique(), "price list")} the share per
            injection bandwidth goes from {span(100 * prices["injection_cost_ratio"])} % and per
            all-to-all bandwidth from {span(100 * prices["all_to_all_cost_ratio"])} %; hollow dots
            take the bandwidth under the published routing instead of the ideal."""
    return f"{text} Component prices come from a catalogue with a source for each."


def _bill_alternative(bill: DataFrame, ratios: DataFrame, totals: dict[str, float]) -> str:
    parts = bill.groupby(["topology", "component"], sort=False)["total_usd"].sum().reset_index()
    parts["usd"] = parts["total_usd"].map(_usd)
    bars = "; ".join(
        f"{spoken(name)}: {phrases(rows, '{component:label} {usd}', ', ')}"
        for name, rows in parts.groupby("topology", sort=False)
    )
    ratios = ratios.assign(words=[_COMPARED[what][0] for what in ratios["what"]])
    published = f" Diamonds: {', '.join(map(_usd, totals.values()))}." if totals else ""
    return f"""Stacked bars of cost. {bars}.{published} Bars relative to the reference.
        {phrases(ratios, "{words} {share_of_reference:q%}")}."""


def _usd(value: float) -> str:
    for divisor, unit in ((1e9, "B USD"), (1e6, "M USD")):
        if value >= divisor:
            return f"{quantity(value / divisor)} {unit}"
    return f"{quantity(value)} USD"


# Cost and power over the number of chips

_PANELS = (
    ("usd_per_injection_gb_s", "Cost per injection bandwidth", "USD per GB/s"),
    ("usd_per_all_to_all_gb_s", "Cost per all-to-all bandwidth", "USD per GB/s"),
    ("watts_per_chip", "Power", "W per chip"),
)
_MARKERS = "osD^vP"
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


@dataclass(frozen=True)
class CostScaleSettings(Choice):
    """Cost per bandwidth and power over the number of chips, one line per topology."""

    only: tuple[str, ...] = (
        *("railx_hyperx_full", "railx_hyperx_m4", "railx_torus_full", "hammingmesh_full"),
        *("hammingmesh_m4_full", "torus_2d_full", "torus_3d_full", "tpu_v4"),
        *("opus_rails_equal", "rail_only_full", "dragonfly_full", "hyperx_full"),
        *("fat_tree_full", "fat_tree_full_half_taper"),
    )
    """Topologies of the scale table to show, in that order; empty: all."""
    price_set: Annotated[str, NotEmpty()] = "opus_400g"
    """Price set of the rows to show."""


@figure("Cost and power over the number of chips", "railx", height=6.2)
@reads(
    scale="economics.scale: topology price_set chips injection_gb_s_per_chip"
    " usd_per_injection_gb_s usd_per_all_to_all_gb_s watts_per_chip fidelity"
)
def cost_scale(settings: CostScaleSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Three panels; a topology is left out of a panel where it has no value."""
    table = tables.read("scale")
    refuse_unknown("price_set", [settings.price_set], table["price_set"])
    rows = where(table, price_set=settings.price_set)
    refuse_unknown("only", settings.only, rows["topology"])
    rows = rows[rows["topology"].isin(settings.only)] if settings.only else rows
    names = list(settings.only) or list(dict.fromkeys(rows["topology"]))
    injection = "{:,.0f}".format(rows["injection_gb_s_per_chip"].iloc[0])
    subtitle = f"""All at {injection} GB/s of injection per chip and the prices of
        {label(settings.price_set)}; electrical and optical switches by the port; links inside a
        node in no bill. m4: nodes of 4 x 4 chips instead of 7 x 7."""
    with canvas(subtitle, rows["fidelity"]) as page:
        panels = page.subplots(1, 3)
        for axes, (column, title, unit) in zip(panels, _PANELS, strict=True):
            _panel(axes, rows, names, column)
            axes.set(title=title, xlabel="Chips", ylabel=unit)
        share_legend(page, {}, 5, panels[0])
    facts, parts = [], []
    for column, title, unit in _PANELS:
        ends = _largest(rows, column)
        facts.append(
            f"{title} at the largest size: {phrases(ends, '{name} {value:q}', ', ')} {unit}"
        )
        if len(ends):
            low = phrases(ends.head(1), "{name} with {value:q} " + unit + " at {chips:,} chips")
            high = phrases(ends.tail(1), "{name} with {value:q} at {chips:,}")
            parts.append(f"{title}: at their largest, lowest on {low}, highest on {high}.")
    caption = f"""{rows["topology"].nunique()} topologies from {rows["chips"].min():,} to
        {rows["chips"].max():,} chips, all at {injection} GB/s of injection a chip and the
        prices of {label(settings.price_set)}. Each point is the smallest size of the family with at
        least the wanted number of chips; a line ends where its family does, and steps of trees are
        tiers of switches. {" ".join(parts)}"""
    alternative = f"""Lines over the number of chips, one a topology, all axes logarithmic.
        {". ".join(facts)}."""
    return Drawn(caption, alternative, rows[tables.columns("scale")])


def _panel(axes: Axes, rows: DataFrame, names: list[str], column: str) -> None:
    from matplotlib.ticker import LogLocator

    # A dash style is a round through the palette, so that no two lines look alike.
    rounds = [names[i : i + len(PALETTE)] for i in range(0, len(names), len(PALETTE))]
    colour = {name: chosen for part in rounds for name, chosen in colours(part).items()}
    for i, name in enumerate(names):
        line = where(rows, topology=name).drop_duplicates("chips").sort_values("chips")
        style: dict[str, Any] = {"color": colour[name], "linewidth": 1.6, "markersize": 4.5}
        style["linestyle"] = _DASHES[i // len(PALETTE) % len(_DASHES)]
        style |= {"marker": _MARKERS[i % len(_MARKERS)], "label": _scale_name(name)}
        axes.plot(line["chips"], line[column].astype(float), **style)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(LogLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    ticks(axes.xaxis, text=lambda value: f"{value / 1000:g}K")
    ticks(axes.yaxis, text="{x:,g}")


def _largest(rows: DataFrame, column: str) -> DataFrame:
    """The largest size of each topology, the lowest value first."""
    sized = rows[rows[column].notna()].sort_values("chips")
    ends = sized.groupby("topology").tail(1).sort_values(column, kind="stable")
    return ends.assign(name=ends["topology"].map(_scale_name), value=ends[column])


def _scale_name(topology: str) -> str:
    return label(topology.removesuffix("_full").replace("_full_", "_"))
