"""Cost by topology: bill of materials per chip, and cost per bandwidth.

The latter is relative to a reference, also under several price lists. The abstract of
RailX puts its cost per injection bandwidth below 10 % and per all-to-all bandwidth
below 50 % of a fat tree. Component prices are a catalogue's, not the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    PALETTE,
    PUBLISHED,
    canvas,
    colours,
    label,
    published_handle,
    published_line,
    published_marks,
    quantity,
    share_legend,
)
from railx.figures.words import counted, listed, sentence, spoken
from railx.settings import Fraction, NotEmpty, SettingsError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["FIGURE", "CostSettings"]

_BILL = ("topology", "chips", "component", "total_usd", "fidelity")
_SUMMARY = (
    "topology",
    "chips",
    "cost_usd",
    "usd_per_injection_gb_s",
    "usd_per_all_to_all_gb_s",
    "power_watts",
    "fidelity",
)
#: Published tables by the word that the settings have for them.
_PUBLISHED = {"railx": "railx.csv", "opus_cost_power": "opus_cost_power.csv"}
_SENSITIVITY = (
    "view",
    "prices",
    "topology",
    "reference",
    "all_to_all",
    "injection_cost_ratio",
    "all_to_all_cost_ratio",
    "fidelity",
)
#: What may be compared: its name on the axis and how it follows from a row of the
#: summary.
_COMPARED = {
    "injection": ("Cost per injection bandwidth", "usd_per_injection_gb_s"),
    "all_to_all": ("Cost per all-to-all bandwidth", "usd_per_all_to_all_gb_s"),
    "power": ("Power per chip", "power_per_chip_watts"),
}


@dataclass(frozen=True)
class CostSettings(CanvasSettings):
    """Bill of materials and cost relative to a reference."""

    figure: Literal["cost"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Topologies of the economics tables to show, in that order; empty: all."""

    reference: Annotated[str, NotEmpty()]
    """Topology that the others are held against."""

    compare: Annotated[dict[str, Annotated[float, Fraction()] | None], NotEmpty()]
    """What is compared: ``injection`` and ``all_to_all`` are costs per bandwidth,
    ``power`` is power per chip. Each has the share of the reference that the paper
    stays below; null where it states none."""

    published_usd: dict[str, str]
    """Published cost of whole networks by topology: table (railx, opus_cost_power), id
    of its row and column."""

    def __post_init__(self) -> None:
        for key in self.compare:
            if key not in _COMPARED:
                raise SettingsError(
                    f"compare.{key}", f"unknown key; allowed: {', '.join(_COMPARED)}"
                )


def draw(settings: CostSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Draw ``settings.only`` (empty: all topologies of the economics tables).

    Price lists are drawn where a sensitivity table has the reference. Raises ValueError
    when ``settings.reference`` or one of ``settings.only`` is not in the summary, or
    has no value to compare.
    """
    bill, summary = read_frames(inputs, "bill", _BILL), _summary(settings, inputs)
    bill = bill[bill["topology"].isin(summary.index)]
    prices = _price_lists(settings, inputs, summary)
    totals, paper = _published_totals(settings, inputs)
    ratios = _ratios(summary, settings)
    reference = spoken(label(settings.reference))
    others = [spoken(label(name)) for name in summary.index if name != settings.reference]
    title = f"Cost of {listed(others)} against {reference}"
    subtitle = (
        f"Relative: for the same bandwidth, {reference} is 100 %. Prices are a catalogue's, each"
        " with its source."
    )
    footnote = fidelity_line([*bill["fidelity"], *summary["fidelity"]])
    with canvas(settings, output, title, subtitle, footnote) as figure:
        layout: list[Any] = (
            [["bill", "bill"], ["relative", "prices"]]
            if prices is not None
            else [["bill"], ["relative"]]
        )
        heights = [0.8 + 0.45 * len(summary), 0.8 + 0.5 * len(ratios)]
        if prices is not None:
            heights[1] = max(heights[1], 2.4)
        panels = figure.subplot_mosaic(
            layout, height_ratios=heights, width_ratios=[1.7, 1] if prices is not None else [1]
        )
        _bill_of_materials(panels["bill"], bill, summary, totals)
        _relative(panels["relative"], ratios)
        if prices is not None:
            _under_price_lists(panels["prices"], prices, settings)
        _legend(figure, panels["bill"], bool(totals), prices is not None)
    data = _data(bill, ratios, totals, prices)
    words = _words(bill, summary, ratios, totals, prices, settings)
    return Drawn(words, _alternative(bill, summary, ratios, totals), data, title, paper)


def _published_totals(settings: CostSettings, inputs: FigureFiles) -> tuple[dict[str, float], str]:
    """Published cost of whole networks by topology, and whose they are.

    Raises ValueError for a place that the published tables do not have.
    """
    totals, papers = {}, []
    for topology, place in settings.published_usd.items():
        table, row, column = (*place.split(), "", "")[:3]
        if table not in _PUBLISHED:
            raise UserError(
                f"published_usd.{topology}: got table {table}; allowed: {', '.join(_PUBLISHED)}"
            )
        frame = published_frame(inputs, table, ("id", "paper")).set_index("id")
        if row not in frame.index or column not in frame.columns:
            raise UserError(
                f"published_usd.{topology}: {table} has no {row} {column}; allowed: a table, the id"
                " of a row and a column"
            )
        totals[topology] = float(str(frame.loc[row, column]))
        papers.append(str(frame.loc[row, "paper"]).split(",")[0].lower())
    return totals, papers[0] if papers else ""


def _ratios(summary: Any, settings: CostSettings) -> pd.DataFrame:
    """A row for each thing compared and network other than the reference."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "what": what,
                "topology": name,
                "share_of_reference": float(summary.loc[name, _COMPARED[what][1]])
                / float(summary.loc[settings.reference, _COMPARED[what][1]]),
                "published_below": limit,
            }
            for what, limit in settings.compare.items()
            for name in summary.index
            if name != settings.reference
        ],
        columns=["what", "topology", "share_of_reference", "published_below"],
    )


def _summary(settings: CostSettings, inputs: FigureFiles) -> pd.DataFrame:
    summary = read_frames(inputs, "summary", _SUMMARY).set_index("topology", drop=False)
    summary = summary.assign(
        power_per_chip_watts=summary["power_watts"].astype(float) / summary["chips"]
    )
    wanted = list(settings.only) or list(summary.index)
    for key, names in (("only", wanted), ("reference", [settings.reference])):
        unknown = [name for name in names if name not in wanted or name not in summary.index]
        if unknown:
            raise UserError(
                f"{key}: got {', '.join(unknown)}; allowed:"
                f" {', '.join(summary.index if key == 'only' else wanted)}"
            )
    for what in settings.compare:
        column = _COMPARED[what][1]
        given = summary[column].notna()
        empty = [name for name in wanted if not given[name]]
        if empty:
            raise UserError(
                f"compare.{what}: {', '.join(empty)} has no {column}; allowed: what all topologies"
                " of the figure have"
            )
    return summary.loc[wanted]


def _price_lists(
    settings: CostSettings, inputs: FigureFiles, summary: pd.DataFrame
) -> pd.DataFrame | None:
    if not inputs.get("sensitivity") or not {"injection", "all_to_all"} <= set(settings.compare):
        return None
    table = read_frames(inputs, "sensitivity", _SENSITIVITY)
    rows = table[
        (table["view"] == "price_set")
        & (table["reference"] == settings.reference)
        & table["topology"].isin(summary.index)
    ]
    return None if rows.empty else rows


def _bill_of_materials(
    axes: Axes, bill: pd.DataFrame, summary: pd.DataFrame, published: dict[str, float]
) -> None:
    """Stacked bars of whole networks.

    The shares of a bar too short to read stand beside it.
    """
    import pandas as pd

    table = bill.pivot_table(
        index="topology", columns="component", values="total_usd", aggfunc="sum", fill_value=0.0
    )
    table = table.loc[list(summary.index), table.sum().sort_values(ascending=False).index]
    totals = table.sum(axis=1)
    divisor, unit = (1e9, "B USD") if totals.max() >= 1e9 else (1e6, "M USD")
    left = pd.Series(0.0, index=table.index)
    for i, component in enumerate(table.columns):
        values = table[component] / divisor
        axes.barh(
            range(len(table)),
            values,
            left=left,
            height=0.6,
            color=PALETTE[i % len(PALETTE)],
            label=label(str(component)),
        )
        left = left + values
    for place, (name, total) in enumerate(totals.items()):
        stated = published.get(str(name))
        if stated is not None:
            published_marks(axes, [stated / divisor], [place])
        end = max(total, stated or 0.0) / divisor
        axes.annotate(
            _bar_words(table.loc[str(name)].squeeze(), total, divisor, unit, stated, totals.max()),
            (end, place),
            (7, 0),
            textcoords="offset points",
            va="center",
        )
    names = [
        f"{label(name)}\n{int(chips):,} chips, ${quantity(float(cost) / chips)} a chip"
        for name, chips, cost in zip(
            summary.index, summary["chips"], summary["cost_usd"], strict=True
        )
    ]
    axes.set_yticks(range(len(table)), names)
    axes.set(
        title="Bill of materials",
        xlabel=f"Cost of the network ({unit})",
        xlim=(0, totals.max() / divisor * 1.36),
        ylim=(len(table) - 0.5, -0.5),
    )
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid(axis="y", visible=False)


def _bar_words(
    parts: Any,
    total: float,
    divisor: float,
    unit: str,
    stated: float | None,
    largest: float,
) -> str:
    words = f"{quantity(total / divisor)} {unit}"
    if stated is not None:
        words += f" ({PUBLISHED}: {quantity(stated / divisor)})"
    if total < 0.3 * largest:
        shares = [
            f"{label(str(component)).lower()} {100 * usd / total:.0f} %"
            if not label(str(component)).isupper() and component != "ocs_port"
            else f"{label(str(component))} {100 * usd / total:.0f} %"
            for component, usd in parts.items()
            if usd > 0
        ]
        words += f": {', '.join(shares)}"
    return words


def _relative(axes: Axes, ratios: pd.DataFrame) -> None:
    """A bar for each thing compared and network, in percent of the reference."""
    several = ratios["topology"].nunique() > 1
    colour = colours(ratios["topology"])
    names, right = [], 100.0
    for place, row in enumerate(ratios.to_dict("records")):
        share, limit = 100 * row["share_of_reference"], row["published_below"]
        axes.barh(place, share, 0.6, color=colour[str(row["topology"])])
        words = f"{quantity(share)} %"
        if limit == limit and limit is not None:
            published_line(axes, 100 * limit, "x", (place - 0.42, place + 0.42))
            words += f" ({PUBLISHED}: below {quantity(100 * limit)} %)"
            share = max(share, 100 * limit)
        axes.annotate(
            words, (share, place), (6, 0), textcoords="offset points", va="center", zorder=4
        )
        right = max(right, share)
        name = _COMPARED[str(row["what"])][0].replace(" per ", "\nper ")
        names.append(f"{label(str(row['topology']))}\n{name}" if several else name)
    axes.set_yticks(range(len(names)), names)
    axes.set(
        title="Relative",
        xlabel="Share of the reference (%)",
        xlim=(0, right * 1.2),
        ylim=(len(names) - 0.4, -0.6),
    )
    axes.grid(axis="y", visible=False)


def _under_price_lists(axes: Axes, rows: pd.DataFrame, settings: CostSettings) -> None:
    """Dots of both ratios under each price list.

    Filled for the ideal all-to-all bandwidth, hollow for another.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    lists = list(dict.fromkeys(rows["prices"]))
    for column, what, colour, offset in (
        ("injection_cost_ratio", "injection", PALETTE[0], -0.13),
        ("all_to_all_cost_ratio", "all_to_all", PALETTE[5], 0.13),
    ):
        # The injection bandwidth is the same under every routing: one dot.
        kept = (
            rows if what == "all_to_all" else rows[rows["all_to_all"] == rows["all_to_all"].iloc[0]]
        )
        for row in kept.to_dict("records"):
            ideal = what == "injection" or row["all_to_all"] == "ideal"
            face = colour if ideal else "white"
            axes.plot(
                100 * row[column],
                lists.index(row["prices"]) + offset,
                "o",
                markersize=7,
                color=colour,
                markerfacecolor=face,
            )
        limit = settings.compare[what]
        if limit is not None:
            published_line(axes, 100 * limit, "x", color=colour)
    axes.set_yticks(range(len(lists)), [label(name) for name in lists])
    axes.set(
        title="Under other price lists",
        xscale="log",
        xlabel="Share (%)",
        ylim=(len(lists) - 0.4, -0.6),
    )
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", visible=False)


def _legend(figure: Canvas, bill: Axes, published: bool, lists: bool) -> None:
    from matplotlib.lines import Line2D

    handles, names = bill.get_legend_handles_labels()
    if published:
        handles.append(published_handle())
        names.append(PUBLISHED)
    handles.append(published_handle(line=True))
    names.append(f"limit, {PUBLISHED}")
    if lists:
        dot: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 7}
        handles += [
            Line2D([], [], color=PALETTE[0], **dot),
            Line2D([], [], color=PALETTE[5], **dot),
            Line2D([], [], color=PALETTE[5], markerfacecolor="white", **dot),
        ]
        names += ["per injection", "per all-to-all", "per all-to-all, published routing"]
    share_legend(figure, handles, names, 4)


def _data(
    bill: pd.DataFrame,
    ratios: pd.DataFrame,
    totals: dict[str, float],
    prices: pd.DataFrame | None,
) -> pd.DataFrame:
    import pandas as pd

    parts = [
        bill[["topology", "component", "total_usd"]].assign(panel="bill"),
        pd.DataFrame(
            [
                {"topology": name, "component": PUBLISHED, "total_usd": usd, "panel": "bill"}
                for name, usd in totals.items()
            ]
        ),
        ratios.assign(panel="relative"),
    ]
    if prices is not None:
        parts.append(
            prices[
                [
                    "topology",
                    "prices",
                    "all_to_all",
                    "injection_cost_ratio",
                    "all_to_all_cost_ratio",
                ]
            ].assign(panel="prices")
        )
    data = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return data[["panel", *(column for column in data.columns if column != "panel")]]


def _words(
    bill: pd.DataFrame,
    summary: Any,
    ratios: pd.DataFrame,
    totals: dict[str, float],
    prices: pd.DataFrame | None,
    settings: CostSettings,
) -> str:
    """The caption: totals, shares of the reference against the limits, other lists."""
    stated = [
        f"{spoken(label(name))} at {_usd(usd)}, ours {_usd(float(summary.loc[name, 'cost_usd']))}"
        for name, usd in totals.items()
        if name in summary.index
    ]
    compared = [
        f"{_COMPARED[str(row['what'])][0].lower()}: {quantity(100 * row['share_of_reference'])} %"
        + (
            f", {PUBLISHED} as below {quantity(100 * row['published_below'])} %"
            if row["published_below"] == row["published_below"]
            else ""
        )
        for row in ratios.to_dict("records")
    ]
    lists = ""
    if prices is not None:
        ends = [100 * float(f(prices["all_to_all_cost_ratio"])) for f in (min, max)]
        sides = [100 * float(f(prices["injection_cost_ratio"])) for f in (min, max)]
        lists = (
            f"Under {counted(prices['prices'].nunique(), 'price list')} the share per injection"
            f" bandwidth goes from {quantity(sides[0])} to {quantity(sides[1])} % and per"
            f" all-to-all bandwidth from {quantity(ends[0])} to {quantity(ends[1])} %;"
            " hollow dots take the bandwidth under the published routing instead of the ideal."
        )
    networks = [
        f"{spoken(label(name))} {_usd(float(summary.loc[name, 'cost_usd']))} for"
        f" {int(summary.loc[name, 'chips']):,} chips"
        for name in summary.index
    ]
    return sentence(
        f"Cost of whole networks: {listed(networks)}.",
        f"The paper puts {listed(stated)}." if stated else "",
        f"Of {spoken(label(settings.reference))}, {'; '.join(compared)}." if compared else "",
        lists,
        "Component prices come from a catalogue with a source for each.",
    )


def _alternative(
    bill: pd.DataFrame, summary: pd.DataFrame, ratios: pd.DataFrame, totals: dict[str, float]
) -> str:
    bars = "; ".join(
        f"{spoken(label(str(name)))}: "
        + ", ".join(
            f"{label(str(part))} {_usd(usd)}"
            for part, usd in own.groupby("component", sort=False)["total_usd"].sum().items()
        )
        for name, own in bill.groupby("topology", sort=False)
    )
    shares = "; ".join(
        f"{_COMPARED[str(row['what'])][0]} {quantity(100 * row['share_of_reference'])} %"
        for row in ratios.to_dict("records")
    )
    published = f" Diamonds: {', '.join(_usd(usd) for usd in totals.values())}." if totals else ""
    return f"Stacked bars of cost. {bars}.{published} Bars relative to the reference. {shares}."


def _usd(value: float) -> str:
    for divisor, unit in ((1e9, "B USD"), (1e6, "M USD")):
        if value >= divisor:
            return f"{quantity(value / divisor)} {unit}"
    return f"{quantity(value)} USD"


FIGURE = Figure(
    settings=CostSettings,
    title="Cost by topology",
    paper="railx",
    inputs=(
        FigureInput("bill", "economics.bill", columns=_BILL),
        FigureInput("summary", "economics.summary", columns=_SUMMARY),
        FigureInput("sensitivity", "economics.sensitivity", columns=_SENSITIVITY, required=False),
        *(
            FigureInput(key, published=file, columns=("id", "paper"))
            for key, file in _PUBLISHED.items()
        ),
    ),
    draw=draw,
)
