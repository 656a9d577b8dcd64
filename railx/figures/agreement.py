"""Throughput of the flow model against that of the packet simulator.

Below it their ratio over the offered load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from railx.figures.canvas import share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.tables import FigureInput, Tables
from railx.figures.theme import GREY, INK, colours, dot, label
from railx.figures.types import DataFrame
from railx.figures.words import counted, fidelity_line, quantity, sentence, spoken

__all__ = ["FIGURE", "AgreementFigureSettings"]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class AgreementFigureSettings(CanvasSettings):
    """Throughput of the flow model against the packet simulator's, and their ratio."""

    figure: Literal["agreement"] = "agreement"
    height_inches: Height = 5.4


def draw(settings: AgreementFigureSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One point per topology, traffic pattern, routing and load.

    Colour by topology, shape by traffic, hollow for balanced routing.
    """
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    rows = tables.read("comparison")
    colour = colours(rows["topology"])
    marker = dict(zip(dict.fromkeys(rows["traffic"]), _MARKERS * 3, strict=False))
    routings = list(dict.fromkeys(rows["routing"]))
    subtitle = (
        "Left: what arrives in both models. Right: packets over flows; below 1 on the load axis no"
        " link is overloaded."
    )
    fidelities = [*rows["flow_fidelity"], *rows["packet_fidelity"]]
    line = fidelity_line(fidelities, shows={"flow": "across", "packet": "up"})
    with canvas(subtitle, line) as page:
        both, ratio = page.subplots(1, 2)
        groups = list(rows.groupby(["topology", "traffic", "routing"], sort=False))
        for position, ((topology, traffic, routing), part) in enumerate(groups):
            filled = routing == routings[0]
            style: dict[str, Any] = {
                "color": colour[str(topology)],
                "marker": marker[traffic],
                "markersize": 6,
                "linestyle": "none",
                "fillstyle": "full" if filled else "none",
                "alpha": 0.85,
            }
            mine = part.sort_values("load_over_bound")
            both.plot(
                mine["flow_flits_per_chip_cycle"], mine["packet_flits_per_chip_cycle"], **style
            )
            # Points of equal load stand beside each other, in the order of the groups.
            aside = 1 + 0.16 * (position / max(len(groups) - 1, 1) - 0.5) * 2
            ratio.plot(mine["load_over_bound"] * aside, mine["ratio"], **style)
        values = rows[["flow_flits_per_chip_cycle", "packet_flits_per_chip_cycle"]]
        ends = (0.8 * float(values.min().min()), 1.25 * float(values.max().max()))
        both.plot(ends, ends, color=INK, linewidth=1, zorder=1)
        both.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title="Throughput")
        both.set(
            xlabel="Flow model (flits/chip/cycle)", ylabel="Packet simulator (flits/chip/cycle)"
        )
        both.tick_params(axis="x", pad=6)
        ratio.axhline(1, color=INK, linewidth=1, zorder=1)
        ratio.axvline(1, color=GREY, linewidth=1, linestyle=":", zorder=1)
        ratio.set(xscale="log", title="Packets over flows", ylabel="Packet simulator / flow model")
        ratio.set(
            xlabel="Offered load / load that fills the busiest link",
            ylim=(0, max(1.2, 1.05 * float(rows["ratio"].max()))),
        )
        ratio.set_xticks(sorted(set(rows["load_over_bound"])))
        for axis in (both.xaxis, both.yaxis, ratio.xaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        legend: dict[str, Any] = {
            label(name): {"color": colour[name], "linewidth": 4} for name in colour
        }
        legend |= {label(name): dot(GREY, marker=mark) for name, mark in marker.items()}
        for name in routings if len(routings) > 1 else ():
            style = {} if name == routings[0] else {"fillstyle": "none"}
            legend[f"Routing {name}"] = dot(GREY, **style)
        share_legend(page, legend, 5)
    return Drawn(_caption(rows), _alternative(rows), rows)


def _caption(rows: DataFrame) -> str:
    under, over = rows[rows["load_over_bound"] < 1], rows[rows["load_over_bound"] >= 1]
    seeds = rows["seed"].nunique() if "seed" in rows.columns else 1
    parts = []
    for part, where in (
        (under, "Where no link is overloaded"),
        (over, "Beyond the load that fills the busiest link"),
    ):
        if len(part):
            worst = part.iloc[int((part["ratio"] - 1).abs().to_numpy().argmax())]
            parts.append(
                f"{where} packets bring {quantity(100 * float(part['ratio'].min()))} to"
                f" {quantity(100 * float(part['ratio'].max()))} % of what flows do, median"
                f" {quantity(100 * float(part['ratio'].median()))} %; farthest apart are"
                f" {spoken(label(worst['topology']))} under {label(worst['traffic']).lower()}"
                f" traffic,"
                f" {worst['routing']} routing, at {worst['load_over_bound']:g} times that load."
            )
    topologies = counted(rows["topology"].nunique(), "topology", "topologies")
    return sentence(
        "The same traffic, routing and offered load in the flow model and in the packet simulator:"
        f" {counted(len(rows), 'point')} on {topologies}, {counted(seeds, 'seed')}.",
        *parts,
        "Packets that wait behind others in finite buffers cost throughput, which the flow model"
        " does not see.",
    )


def _alternative(rows: DataFrame) -> str:
    parts = "; ".join(
        f"{spoken(label(str(topology)))}, {label(str(traffic)).lower()}"
        f" {quantity(float(part['ratio'].min()))} to {quantity(float(part['ratio'].max()))}"
        for (topology, traffic), part in rows.groupby(["topology", "traffic"], sort=False)
    )
    return f"Throughput of packets over that of flows, around the diagonal. Ratios: {parts}."


FIGURE = Figure(
    AgreementFigureSettings,
    "Flow model against packet simulator",
    "railx",
    (
        FigureInput(
            "comparison",
            "agreement.comparison",
            "topology traffic routing load_over_bound flow_flits_per_chip_cycle "
            "packet_flits_per_chip_cycle ratio flow_fidelity packet_fidelity",
        ),
    ),
    draw,
)
