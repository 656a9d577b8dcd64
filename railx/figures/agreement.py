"""Throughput of the flow model against that of the packet simulator.

Below it their ratio over the offered load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from railx.figures.figure import Canvas, CanvasSettings, DataFrame, Drawn, Height, Tables, declare
from railx.figures.panels import diagonal, plain_ticks, share_legend
from railx.figures.theme import GREY, INK, colours, dot, label
from railx.figures.words import counted, fidelity_line, quantity, sentence, span, spoken

__all__ = ["FIGURE", "AgreementFigureSettings"]

_MARKERS = "os^DvPX"
_MODELS = ["flow_flits_per_chip_cycle", "packet_flits_per_chip_cycle"]


@dataclass(frozen=True)
class AgreementFigureSettings(CanvasSettings):
    """Throughput of the flow model against the packet simulator's, and their ratio."""

    figure: Literal["agreement"] = "agreement"
    height_inches: Height = 5.4


def draw(settings: AgreementFigureSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One point per topology, traffic pattern, routing and load.

    Colour by topology, shape by traffic, hollow for balanced routing.
    """
    rows = tables.read("comparison")
    colour = colours(rows["topology"])
    marker = dict(zip(rows["traffic"].unique(), _MARKERS * 3, strict=False))
    routings = list(rows["routing"].unique())
    subtitle = """Left: what arrives in both models. Right: packets over flows; below 1 on the load
        axis no link is overloaded."""
    fidelities = [*rows["flow_fidelity"], *rows["packet_fidelity"]]
    footnote = fidelity_line(fidelities, shows={"flow": "across", "packet": "up"})
    with canvas(subtitle, footnote) as page:
        both, ratio = page.subplots(1, 2)
        groups = list(rows.groupby(["topology", "traffic", "routing"], sort=False))
        for position, (key, part) in enumerate(groups):
            topology, traffic, routing = map(str, key)
            fill = "full" if routing == routings[0] else "none"
            style = dot(colour[topology], 6, marker=marker[traffic], fillstyle=fill, alpha=0.85)
            line = part.sort_values("load_over_bound")
            both.plot(line[_MODELS[0]], line[_MODELS[1]], **style)
            # Points of equal load are drawn side by side, in the order of the groups.
            aside = 1 + 0.16 * (position / max(len(groups) - 1, 1) - 0.5) * 2
            ratio.plot(line["load_over_bound"] * aside, line["ratio"], **style)
        diagonal(both, rows[_MODELS])
        both.set(title="Throughput", xlabel="Flow model (flits/chip/cycle)")
        both.set_ylabel("Packet simulator (flits/chip/cycle)")
        both.tick_params(axis="x", pad=6)
        ratio.axhline(1, color=INK, linewidth=1, zorder=1)
        ratio.axvline(1, color=GREY, linewidth=1, linestyle=":", zorder=1)
        ratio.set(xscale="log", title="Packets over flows", ylabel="Packet simulator / flow model")
        ratio.set_xlabel("Offered load / load that fills the busiest link")
        ratio.set_ylim(0, max(1.2, 1.05 * float(rows["ratio"].max())))
        ratio.set_xticks(sorted(set(rows["load_over_bound"])))
        plain_ticks(ratio.xaxis)
        legend = {label(name): {"color": colour[name], "linewidth": 4} for name in colour}
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
            parts.append(f"""{where} packets bring {span(100 * part["ratio"])} % of what flows do,
                median {quantity(100 * float(part["ratio"].median()))} %; farthest apart are
                {spoken(label(worst["topology"]))} under {label(worst["traffic"]).lower()} traffic,
                {worst["routing"]} routing, at {worst["load_over_bound"]:g} times that load.""")
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
        f"{spoken(label(str(name)))}, {label(str(pattern)).lower()} {span(part['ratio'])}"
        for (name, pattern), part in rows.groupby(["topology", "traffic"], sort=False)
    )
    return f"Throughput of packets over that of flows, around the diagonal. Ratios: {parts}."


FIGURE = declare(
    AgreementFigureSettings,
    "Flow model against packet simulator",
    "railx",
    draw,
    comparison="agreement.comparison: topology traffic routing load_over_bound"
    " flow_flits_per_chip_cycle packet_flits_per_chip_cycle ratio flow_fidelity packet_fidelity",
)
