"""All-to-all bandwidth per chip by topology: the ideal and the routing's bound.

Both are drawn beside the injection bandwidth. The ideal spreads the load evenly over
the external channels. The bound divides the capacity by the largest static channel load
under the routing (RailX, all-to-all formulas).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import AxisScale, Canvas, Drawn, Height, Tables, TopologyChoice, declare
from railx.figures.panels import published_marks, share_legend
from railx.figures.tables import records
from railx.figures.theme import DERIVED, GREY, PUBLISHED_MARK, colours, label, lighter
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, fidelity_line, listed, quantity, sentence, spoken
from railx.settings import NotEmpty

__all__ = ["FIGURE", "AllToAllBandwidthSettings"]

#: Shares of the injection in percent, by topology and ideal or routing.
Derived = dict[tuple[str, str], float]


@dataclass(frozen=True)
class AllToAllBandwidthSettings(TopologyChoice):
    """All-to-all bandwidth by topology for one traffic pattern."""

    figure: Literal["all_to_all_bandwidth"] = "all_to_all_bandwidth"
    height_inches: Height = 6.6

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
    injection = rows["injection_gb_s_per_chip"]
    bandwidth, share = (
        rows.assign(
            **{name: factor * rows[f"{name}_gb_s_per_chip"] / over for name in ("ideal", "bound")}
        )
        for factor, over in ((1, 1), (100, injection))
    )
    derived = _derived(settings, rows, tables.read("derived"))
    speeds = [f"{speed:,.0f}" for speed in sorted(set(injection))]
    subtitle = f"""{label(settings.traffic)} traffic, one direction. Ideal: even load on all
        external channels. Bound: set by the most loaded channel."""
    if len(speeds) > 1:
        subtitle += (
            f" Injection differs, {listed(speeds)} GB/s a chip: shares compare, bandwidths do not."
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
    data = rows[tables.columns("bounds")].copy()
    for name in ("ideal", "bound"):
        data[f"{name}_over_injection"] = data[f"{name}_gb_s_per_chip"] / injection
        data[f"{name}_over_injection_derived_from_paper"] = [
            derived.get((topology, "ideal" if name == "ideal" else routing), math.nan) / 100
            for topology, routing in zip(data["topology"], data["routing"], strict=True)
        ]
    return Drawn(_caption(share, derived), _alternative(rows), data)


def _derived(settings: AllToAllBandwidthSettings, rows: DataFrame, published: DataFrame) -> Derived:
    """What follows from the paper, for uniform traffic."""
    stated = {row["id"]: row for row in records(published)}
    shares: Derived = {}
    for row in records(rows[rows["traffic"] == "uniform"]):
        bounds = stated.get(settings.derived.get(str(row["topology"]), ""))
        if bounds is None or bounds["chips"] != row["chips"]:
            continue
        # Four sides of n ports take 4 n flits a cycle out of a chip.
        injection = 4 * float(bounds["n"]) / 100
        ideal, bound = "ideal_flits_per_chip_cycle", "min_bound_flits_per_chip_cycle"
        shares[row["topology"], "ideal"] = float(bounds[ideal]) / injection
        if row["routing"] == "min":
            shares[row["topology"], "min"] = float(bounds[bound]) / injection
    return shares


def _caption(rows: DataFrame, derived: Derived) -> str:
    best = rows.groupby("topology")["bound"].max().sort_values()
    over = rows["ideal_gb_s_per_chip"] / rows["bound_gb_s_per_chip"]
    worst = rows.iloc[int(over.to_numpy().argmax())]
    ours = {(row["topology"], "ideal"): row["ideal"] for row in records(rows)}
    ours |= {(row["topology"], row["routing"]): row["bound"] for row in records(rows)}
    apart = [abs(ours[key] / theirs - 1) for key, theirs in derived.items() if key in ours]
    return sentence(
        f"{label(str(rows['traffic'].iloc[0]))} traffic on {len(best)} networks. The *ideal*"
        " spreads the load evenly over the external channels, the *bound* divides the capacity by"
        " the load of the busiest channel under the given routing.",
        f"The best bound of a network goes from {quantity(best.iloc[0])} % of its injection"
        f" bandwidth ({label(str(best.index[0]))}) to {quantity(best.iloc[-1])} %"
        f" ({label(str(best.index[-1]))}).",
        f"Routing costs most on {spoken(label(worst['topology']))} under {worst['routing']}: a"
        f" bound of {quantity(worst['bound_gb_s_per_chip'])} GB/s of an ideal"
        f" {quantity(worst['ideal_gb_s_per_chip'])}."
        if over.max() > 1 + 1e-9
        else "On all of them routing reaches the ideal.",
        f"Diamonds are the {counted(len(derived), 'value')} that follow from the paper and its"
        f" authors' simulator; ours are within {quantity(100 * max(apart))} %."
        if apart
        else "",
    )


def _alternative(rows: DataFrame) -> str:
    parts = "; ".join(
        f"{spoken(label(row['topology']))} under {row['routing']}: ideal"
        f" {quantity(row['ideal_gb_s_per_chip'])}, bound {quantity(row['bound_gb_s_per_chip'])} of"
        f" {row['injection_gb_s_per_chip']:,.0f}"
        for row in records(rows)
    )
    return f"Bars of all-to-all bandwidth per chip in GB/s. {parts}."


def _groups(axes: Axes, rows: DataFrame, unit: str, derived: Derived) -> None:
    """Horizontal bars in groups, with what follows from the paper as diamonds.

    Routings with the same bound share one bar.
    """
    colour = colours(rows["family"])
    y, ticks, names = 0.0, [], []
    for _, group in rows.groupby("topology", sort=False):
        first = group.iloc[0]
        shade, routing = colour[str(first["family"])], str(first["routing"])
        #: Text, ideal or routing, value and fill of each bar.
        bars: list[tuple[str, str, float, Any]] = [
            ("ideal", "ideal", float(first["ideal"]), lighter(shade, 0.65))
        ]
        if group["bound"].max() <= group["bound"].min() * (1 + 1e-9):
            bars.append(("bound", routing, float(first["bound"]), lighter(shade, 0)))
        else:
            bars += [
                (f"bound, {name} routing", name, bound, lighter(shade, 0.3 * i / len(group)))
                for i, (name, bound) in enumerate(
                    zip(group["routing"], group["bound"], strict=True)
                )
            ]
        start = y
        for text, name, value, fill in bars:
            bar = axes.barh(y, value, height=0.9, color=fill)
            stated = derived.get((str(first["topology"]), name))
            if stated is not None:
                published_marks(axes, [stated], [y], markeredgecolor=GREY)
            padding = 3 if stated is None else 8
            axes.bar_label(bar, [f"{quantity(value)}{unit} {text}"], padding=padding)
            y += 1
        ticks.append((start + y - 1) / 2)
        names.append(
            f"{label(first['topology'])}\n{first['chips']:,} chips,"
            f" {quantity(first['injection_gb_s_per_chip'])} GB/s injection"
        )
        y += 0.8
    axes.set_yticks(ticks, names)
    axes.set_ylim(y - 1.1, -0.8)
    axes.grid(axis="y", visible=False)


FIGURE = declare(
    AllToAllBandwidthSettings,
    "All-to-all bandwidth by topology",
    "railx",
    draw,
    bounds="network.bounds: topology family chips traffic routing injection_gb_s_per_chip"
    " ideal_gb_s_per_chip bound_gb_s_per_chip fidelity",
    derived="railx_uniform_bounds.csv: id m n chips ideal_flits_per_chip_cycle"
    " min_bound_flits_per_chip_cycle",
)
