"""Cost by topology: bill of materials per chip, and cost per bandwidth.

The latter is relative to a reference, also under several price lists. The abstract of
RailX puts its cost per injection bandwidth below 10 % and per all-to-all bandwidth
below 50 % of a fat tree. Component prices are a catalogue's, not the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import GREY, INK, PALETTE, canvas, colours, label, quantity
from railx.settings import Fraction, NotEmpty, SettingsError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "CostSettings"]

_CAPTION = """\
What the networks cost. Above, the bill of materials per chip by component. Below, cost
relative to the reference network for the same bandwidth; dashed lines are the limits
that the paper's abstract states. Where price lists are compared, filled dots hold for
the ideal all-to-all bandwidth and hollow ones for that under the published routing.
Component prices come from a catalogue with a source for each: the paper's own prices
are not available.
"""
_ALTERNATIVE = (
    "Stacked bars of the cost per chip by component, bars of the cost per bandwidth "
    "relative to the reference topology, and dots of the same ratios under several price "
    "lists."
)

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
    "injection": ("Cost per\ninjection bandwidth", "usd_per_injection_gb_s"),
    "all_to_all": ("Cost per\nall-to-all bandwidth", "usd_per_all_to_all_gb_s"),
    "power": ("Power\nper chip", "power_per_chip_watts"),
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
    share = (
        "Relative cost is for the same bandwidth; the reference is"
        f" {label(settings.reference).lower()}."
    )
    subtitle = (
        f"{share} Prices are a catalogue's, each with its source; they are not the paper's own."
    )
    footnote = fidelity_line([*bill["fidelity"], *summary["fidelity"]])
    with canvas(settings, output, "Cost by topology", subtitle, footnote) as figure:
        layout: list[Any] = (
            [["bill", "bill"], ["relative", "prices"]]
            if prices is not None
            else [["bill"], ["relative"]]
        )
        heights = [0.55 + 0.32 * len(summary), 2.6]
        panels = figure.subplot_mosaic(layout, height_ratios=heights)
        _bill_of_materials(panels["bill"], bill, summary)
        _relative(panels["relative"], summary, settings)
        if prices is not None:
            _under_price_lists(panels["prices"], prices, settings)
    return Drawn(_CAPTION, _ALTERNATIVE, bill)


def _summary(settings: CostSettings, inputs: FigureFiles) -> pd.DataFrame:
    summary = read_frames(inputs, "summary", _SUMMARY).set_index("topology", drop=False)
    summary = summary.assign(
        power_per_chip_watts=summary["power_watts"].astype(float) / summary["chips"]
    )
    wanted = list(settings.only) or list(summary.index)
    for key, names in (("only", wanted), ("reference", [settings.reference])):
        unknown = [name for name in names if name not in wanted or name not in summary.index]
        if unknown:
            raise ValueError(
                f"{key}: got {', '.join(unknown)}; allowed:"
                f" {', '.join(summary.index if key == 'only' else wanted)}"
            )
    for what in settings.compare:
        column = _COMPARED[what][1]
        given = summary[column].notna()
        empty = [name for name in wanted if not given[name]]
        if empty:
            raise ValueError(
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


def _bill_of_materials(axes: Axes, bill: pd.DataFrame, summary: pd.DataFrame) -> None:
    """Stacked bars.

    The shares of a bar too short to read are written beside it.
    """
    import pandas as pd

    table = bill.assign(per_chip=bill["total_usd"] / bill["chips"]).pivot_table(
        index="topology", columns="component", values="per_chip", aggfunc="sum", fill_value=0.0
    )
    table = table.loc[list(summary.index), table.sum().sort_values(ascending=False).index]
    totals = table.sum(axis=1)
    left = pd.Series(0.0, index=table.index)
    for i, component in enumerate(table.columns):
        values = table[component]
        axes.barh(
            range(len(table)),
            values,
            left=left,
            height=0.66,
            color=PALETTE[i % len(PALETTE)],
            label=label(component),
        )
        left = left + values
    for place, (name, total) in enumerate(totals.items()):
        parts = [
            f"{label(str(component))} {100 * usd / total:.0f} %"
            for component, usd in table.loc[str(name)].items()
            if usd > 0
        ]
        text = f"${quantity(total)}" + (
            f": {', '.join(parts)}" if total < 0.45 * totals.max() else ""
        )
        axes.annotate(text, (total, place), (4, 0), textcoords="offset points", va="center")
    names = [
        f"{label(name)}\n{int(chips):,} chips"
        for name, chips in zip(summary.index, summary["chips"], strict=True)
    ]
    axes.set_yticks(range(len(table)), names)
    axes.set(
        title="Bill of materials",
        xlabel="Cost per chip (USD)",
        xlim=(0, totals.max() * 1.12),
        ylim=(len(table) - 0.5, -0.5),
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", visible=False)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(table.columns),
        borderaxespad=0.1,
        columnspacing=1.2,
    )


def _relative(axes: Axes, summary: pd.DataFrame, settings: CostSettings) -> None:
    """A group of bars for each thing compared, in percent of the reference.

    The paper's limits are dashed lines.
    """
    names = [name for name in summary.index if name != settings.reference]
    colour = colours(names)
    width = 0.8 / max(len(names), 1)
    highest = 100.0
    for group, (what, limit) in enumerate(settings.compare.items()):
        values = summary[_COMPARED[what][1]].astype(float)
        for i, name in enumerate(names):
            share = 100 * float(values[name] / values[settings.reference])
            place = group + (i - (len(names) - 1) / 2) * width
            axes.bar(
                place,
                share,
                width * 0.88,
                color=colour[name],
                label=label(name) if group == 0 else None,
            )
            # A label that would lie on the paper's limit goes above it.
            above = 100 * limit if limit is not None and 0 <= 100 * limit - share < 9 else share
            axes.annotate(
                f"{quantity(share)} %",
                (place, above),
                (0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontweight="bold",
                zorder=4,
            )
            highest = max(highest, share)
        if limit is not None:
            _limit(axes, group, 100 * limit)
    axes.axhline(100, color=GREY, linewidth=1.2)
    axes.text(-0.5, 101, f"{label(settings.reference)} = 100 %", va="bottom", color=GREY)
    axes.set_xticks(range(len(settings.compare)), [_COMPARED[what][0] for what in settings.compare])
    axes.set(
        title="Relative",
        ylabel="Share of the reference (%)",
        xlim=(-0.52, len(settings.compare) - 0.48),
        ylim=(0, highest * 1.13),
    )
    axes.grid(axis="x", visible=False)
    if len(names) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(0, 0.88))


def _limit(axes: Axes, group: int, percent: float) -> None:
    axes.plot(
        [group - 0.47, group + 0.47],
        [percent] * 2,
        linestyle=(0, (4, 2)),
        color=INK,
        linewidth=1.2,
        zorder=3,
    )
    text = f"paper: below\n{quantity(percent)} %"
    axes.annotate(
        text,
        (group + 0.47, percent),
        (0, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
    )


def _under_price_lists(axes: Axes, rows: pd.DataFrame, settings: CostSettings) -> None:
    """Dots of both ratios under each price list.

    Filled for the ideal all-to-all bandwidth, hollow for another.
    """
    from matplotlib.lines import Line2D
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
            axes.axvline(100 * limit, color=colour, linestyle=(0, (4, 2)), linewidth=1.2)
    axes.set_yticks(range(len(lists)), [label(name) for name in lists])
    axes.set(
        title="Under other price lists",
        xscale="log",
        xlabel="Share of the reference (%), logarithmic",
        ylim=(len(lists) - 0.4, -0.6),
    )
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", visible=False)
    dot: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 7}
    handles = [
        Line2D([], [], color=PALETTE[0], **dot),
        Line2D([], [], color=PALETTE[5], **dot),
        Line2D([], [], color=GREY, markerfacecolor="white", **dot),
        Line2D([], [], color=GREY, linestyle=(0, (4, 2))),
    ]
    names = [
        "Per injection",
        "Per all-to-all",
        "All-to-all under the published routing",
        "Limit in the paper",
    ]
    axes.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.2),
        ncols=2,
        columnspacing=1.2,
    )


FIGURE = Figure(
    settings=CostSettings,
    title="Cost by topology",
    paper="railx",
    inputs=(
        FigureInput("bill", "economics.bill"),
        FigureInput("summary", "economics.summary"),
        FigureInput("sensitivity", "economics.sensitivity", required=False),
    ),
    draw=draw,
)
