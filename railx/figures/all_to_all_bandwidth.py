"""All-to-all bandwidth per chip by topology: the ideal and the routing's bound.

Both stand beside the injection bandwidth too. The ideal spreads the load evenly over
the external channels. The bound divides the capacity by the largest static channel load
under the routing (RailX, all-to-all formulas).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from railx.errors import UserError
from railx.figures.canvas import share_legend
from railx.figures.figure import (
    AxisScale,
    Canvas,
    CanvasSettings,
    Drawn,
    Figure,
    FigureInput,
    Height,
)
from railx.figures.panels import published_marks
from railx.figures.tables import Tables, records
from railx.figures.theme import DERIVED, GREY, PUBLISHED_MARK, colours, label, lighter
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import counted, fidelity_line, listed, quantity, sentence, spoken
from railx.settings import NotEmpty

__all__ = ["FIGURE", "AllToAllBandwidthSettings"]

_COLUMNS = (
    "topology",
    "family",
    "chips",
    "traffic",
    "routing",
    "injection_gb_s_per_chip",
    "ideal_gb_s_per_chip",
    "bound_gb_s_per_chip",
    "fidelity",
)


@dataclass(frozen=True)
class AllToAllBandwidthSettings(CanvasSettings):
    """All-to-all bandwidth by topology for one traffic pattern."""

    figure: Literal["all_to_all_bandwidth"] = "all_to_all_bandwidth"
    height_inches: Height = 6.6

    only: tuple[str, ...] = ()
    """Topologies to show, in that order; empty: all that there are."""

    traffic: Annotated[str, NotEmpty()] = "uniform"
    """Traffic pattern of the rows to show."""

    scale: AxisScale = "linear"
    """Scale of the bandwidth axes."""

    derived: dict[str, str] = field(
        default_factory=lambda: {
            "railx_hyperx": "m2_n2",
            "railx_hyperx_m4n2": "m4_n2",
            "railx_hyperx_full": "m7_n9",
        }
    )
    """Topologies for which a bound under uniform traffic follows from the paper, and
    the published row that holds it; it counts where both have as many chips."""


def draw(settings: AllToAllBandwidthSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A group of bars per topology: the ideal, then the bound under each routing.

    The rows are those of ``settings.traffic``. Raises ValueError when no row has that
    traffic.
    """
    frame = tables.read("bounds", "topology", settings.only)
    rows = frame[frame["traffic"] == settings.traffic].reset_index(drop=True)
    if rows.empty:
        raise UserError(
            f"traffic: got {settings.traffic!r}; allowed:"
            f" {', '.join(sorted(set(frame['traffic'])))}"
        )
    share = rows.assign(
        ideal=100 * rows["ideal_gb_s_per_chip"] / rows["injection_gb_s_per_chip"],
        bound=100 * rows["bound_gb_s_per_chip"] / rows["injection_gb_s_per_chip"],
    )
    bandwidth = rows.assign(ideal=rows["ideal_gb_s_per_chip"], bound=rows["bound_gb_s_per_chip"])
    derived = _derived(settings, rows, tables)
    speeds = sorted(set(rows["injection_gb_s_per_chip"]))
    subtitle = (
        f"{label(settings.traffic)} traffic, one direction. Ideal: even load on all external"
        " channels. Bound: set by the most loaded channel."
    )
    if len(speeds) > 1:
        subtitle += (
            f" Injection differs, {listed([f'{speed:,.0f}' for speed in speeds])} GB/s a chip:"
            " shares compare, bandwidths do not."
        )
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        left, right = page.subplots(1, 2, sharey=True, width_ratios=[1.1, 1])
        _groups(left, bandwidth, "", {})
        _groups(right, share, " %", derived)
        left.set(title="Bandwidth", xlabel="All-to-all bandwidth per chip (GB/s)")
        right.set(title="Share of injection", xlabel="Share of injection bandwidth (%)")
        for panel in (left, right):
            panel.set_xscale(settings.scale)
            panel.margins(x=0.0)
            low, high = panel.get_xlim()
            panel.set_xlim(low, high * (1.62 if settings.scale == "linear" else 6.0))
        if derived:
            share_legend(page, {DERIVED: PUBLISHED_MARK | {"markeredgecolor": GREY}}, 1)
    return Drawn(_caption(rows, derived), _alternative(rows), _data(rows, derived))


def _derived(
    settings: AllToAllBandwidthSettings, rows: DataFrame, tables: Tables
) -> dict[tuple[str, str], float]:
    """Shares of the injection in percent that follow from the paper.

    By topology and ideal or routing, for uniform traffic.
    """
    stated = tables.read("derived")
    shares = {}
    for row in records(rows):
        part = stated["id"] == settings.derived.get(str(row["topology"]))
        same = stated[part & (stated["chips"] == row["chips"])]
        if row["traffic"] != "uniform" or same.empty:
            continue
        entry = same.iloc[0]
        # Four sides of n ports take 4 n flits a cycle out of a chip.
        injection = 4 * float(entry["n"]) / 100
        shares[row["topology"], "ideal"] = float(entry["ideal_flits_per_chip_cycle"]) / injection
        if row["routing"] == "min":
            shares[row["topology"], "min"] = (
                float(entry["min_bound_flits_per_chip_cycle"]) / injection
            )
    return shares


def _data(rows: DataFrame, derived: dict[tuple[str, str], float]) -> DataFrame:
    data = rows[list(_COLUMNS)].copy()
    for what in ("ideal", "bound"):
        data[f"{what}_over_injection"] = (
            data[f"{what}_gb_s_per_chip"] / data["injection_gb_s_per_chip"]
        )
        data[f"{what}_over_injection_derived_from_paper"] = [
            derived.get((topology, "ideal" if what == "ideal" else routing), math.nan) / 100
            for topology, routing in zip(data["topology"], data["routing"], strict=True)
        ]
    return data


def _caption(rows: DataFrame, derived: dict[tuple[str, str], float]) -> str:
    shares = (rows["bound_gb_s_per_chip"] / rows["injection_gb_s_per_chip"]).groupby(
        rows["topology"]
    )
    best, over = shares.max(), rows["ideal_gb_s_per_chip"] / rows["bound_gb_s_per_chip"]
    worst = rows.iloc[int(over.to_numpy().argmax())]
    top, low = best.sort_values().iloc[[-1]], best.sort_values().iloc[[0]]
    apart = [
        abs(ours / theirs - 1)
        for (topology, what), theirs in derived.items()
        for ours in _ours(rows, topology, what)
    ]
    return sentence(
        f"{label(str(rows['traffic'].iloc[0]))} traffic on {len(best)} networks. The *ideal*"
        " spreads the load evenly over the external channels, the *bound* divides the capacity by"
        " the load of the busiest channel under the given routing.",
        f"The best bound of a network goes from {quantity(100 * float(low.iloc[0]))} % of its"
        f" injection bandwidth ({label(str(low.index[0]))}) to"
        f" {quantity(100 * float(top.iloc[0]))} % ({label(str(top.index[0]))}).",
        f"Routing costs most on {spoken(label(worst['topology']))} under {worst['routing']}: a"
        f" bound of"
        f" {quantity(worst['bound_gb_s_per_chip'])} GB/s of an ideal"
        f" {quantity(worst['ideal_gb_s_per_chip'])}."
        if over.max() > 1 + 1e-9
        else "On all of them routing reaches the ideal.",
        f"Diamonds are the {counted(len(derived), 'value')} that follow from the paper and its"
        f" authors' simulator; ours are within {quantity(100 * max(apart))} %."
        if apart
        else "",
    )


def _ours(rows: DataFrame, topology: str, what: str) -> list[float]:
    part = rows[rows["topology"] == topology]
    if what != "ideal":
        part = part[part["routing"] == what]
    column = "ideal_gb_s_per_chip" if what == "ideal" else "bound_gb_s_per_chip"
    return [100 * float(value) for value in (part[column] / part["injection_gb_s_per_chip"])[:1]]


def _alternative(rows: DataFrame) -> str:
    parts = "; ".join(
        f"{spoken(label(row['topology']))} under {row['routing']}: ideal"
        f" {quantity(row['ideal_gb_s_per_chip'])}, bound {quantity(row['bound_gb_s_per_chip'])} of"
        f" {row['injection_gb_s_per_chip']:,.0f}"
        for row in records(rows)
    )
    return f"Bars of all-to-all bandwidth per chip in GB/s. {parts}."


def _groups(axes: Axes, rows: DataFrame, unit: str, derived: dict[tuple[str, str], float]) -> None:
    """Horizontal bars in groups, with what follows from the paper as diamonds.

    Where all routings have the same bound, one bar stands for them.
    """
    colour = colours(rows["family"])
    position, ticks, names = 0.0, [], []
    for _, group in rows.groupby("topology", sort=False):
        first = group.iloc[0]
        shade = colour[str(first["family"])]
        bars = [("ideal", float(first["ideal"]), lighter(shade, 0.65))]
        bounds = {
            str(routing): float(bound)
            for routing, bound in zip(group["routing"], group["bound"], strict=True)
        }
        if max(bounds.values()) <= min(bounds.values()) * (1 + 1e-9):
            bars.append(("bound", next(iter(bounds.values())), lighter(shade, 0)))
        else:
            fills = [lighter(shade, 0.3 * i / len(bounds)) for i in range(len(bounds))]
            bars += [
                (f"bound, {routing} routing", bounds[routing], fill)
                for routing, fill in zip(bounds, fills, strict=True)
            ]
        start = position
        for name, value, fill in bars:
            bar = axes.barh(position, value, height=0.9, color=fill)
            what = name if name == "ideal" else str(first["routing"])
            if name.endswith(" routing"):
                what = name.removeprefix("bound, ").removesuffix(" routing")
            stated = derived.get((str(first["topology"]), what))
            if stated is not None:
                published_marks(axes, [stated], [position], markeredgecolor=GREY)
            axes.bar_label(
                bar, [f"{quantity(value)}{unit} {name}"], padding=3 if stated is None else 8
            )
            position += 1
        ticks.append((start + position - 1) / 2)
        names.append(_name(first))
        position += 0.8
    axes.set_yticks(ticks, names)
    axes.set_ylim(position - 1.1, -0.8)
    axes.grid(axis="y", visible=False)


def _name(row: Series) -> str:
    return (
        f"{label(row['topology'])}\n{row['chips']:,} chips,"
        f" {quantity(row['injection_gb_s_per_chip'])} GB/s injection"
    )


FIGURE = Figure(
    AllToAllBandwidthSettings,
    "All-to-all bandwidth by topology",
    "railx",
    (
        FigureInput(
            "bounds",
            "network.bounds",
            "topology family chips traffic routing injection_gb_s_per_chip "
            "ideal_gb_s_per_chip bound_gb_s_per_chip fidelity",
        ),
        FigureInput(
            "derived",
            columns="id m n chips ideal_flits_per_chip_cycle min_bound_flits_per_chip_cycle",
            published="railx_uniform_bounds.csv",
        ),
    ),
    draw,
)
