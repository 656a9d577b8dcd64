"""Hops between the nodes of the topologies, and what crosses their middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from railx.figures.figure import Canvas, Drawn, Height, Tables, TopologyChoice, declare
from railx.figures.panels import name_rows, published_line, share_legend
from railx.figures.tables import records
from railx.figures.theme import PUBLISHED, PUBLISHED_LINE, colours, dot, label
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import counted, fidelity_line, listed, quantity, sentence, spoken

__all__ = ["FIGURE", "TopologyMetricsSettings"]

_TICKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: The rows of the published table with the diameters of RailX, least and most.
_DIAMETERS = ("diameter_least", "diameter_most")


@dataclass(frozen=True)
class TopologyMetricsSettings(TopologyChoice):
    """Hops between nodes and bisection, one row per topology."""

    figure: Literal["topology_metrics"] = "topology_metrics"
    height_inches: Height = 7


def draw(settings: TopologyMetricsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One row per topology: from the mean hops to the diameter, and the bisection as a
    share of the injection.
    """
    frame = tables.read("topologies", "topology", settings.only)
    share = frame["bisection_gb_s_per_chip"] / frame["injection_gb_s_per_chip"]
    data = frame[tables.columns("topologies")].assign(bisection_over_injection=share)
    published = tables.values("published")
    limits = [float(published[name]) for name in _DIAMETERS]
    subtitle = """A hop is a link that leaves a node (board, server or single chip). Bisection: one
        direction of the family's natural cut."""
    title = "Hops between nodes and bisection by topology"
    with canvas(subtitle, fidelity_line(frame["fidelity"]), title=title) as page:
        hops, bisection = page.subplots(1, 2, sharey=True, width_ratios=[1.15, 1])
        colour = colours(frame["family"])
        _hops(hops, data, colour, limits)
        _bisection(bisection, data, colour)
        sizes = zip(data["topology"], data["chips"], strict=True)
        name_rows(hops, [f"{label(name)} ({chips:,})" for name, chips in sizes])
        bisection.grid(axis="y", visible=False)
        shade = next(iter(colour.values()))
        legend = {
            "mean over all pairs": dot(shade, 6),
            "diameter": dot(shade, 11, marker="|", mew=2.4),
            f"{PUBLISHED}: diameters of RailX": PUBLISHED_LINE,
        }
        share_legend(page, legend, 3)
    return Drawn(_caption(data, limits), _alternative(data), data)


def _hops(axes: Axes, data: DataFrame, colour: dict[str, str], limits: list[float]) -> None:
    largest = float(data["diameter_node_hops"].max())
    for limit in limits:
        published_line(axes, limit, "x", zorder=1)
    for position, row in enumerate(records(data)):
        shade = colour[str(row["family"])]
        mean, diameter = row["mean_node_hops"], row["diameter_node_hops"]
        axes.plot([mean, diameter], [position] * 2, color=shade, linewidth=1.3)
        axes.plot([diameter], [position], **dot(shade, 11, marker="|", markeredgewidth=2.4))
        axes.plot([mean], [position], **dot(shade, 6))
        words = f"{quantity(mean)} to {diameter:.0f}"
        axes.text(4.6 * largest, position, words, ha="right", va="center")
    axes.set(title="Hops: mean to diameter", xlabel="Hops between nodes", xscale="log")
    axes.set_xlim(0.85 * min(1.0, float(data["mean_node_hops"].min())), 5 * largest)
    shown = [tick for tick in _TICKS if tick <= 1.5 * largest]
    axes.set_xticks(shown, [str(tick) for tick in shown])
    axes.minorticks_off()


def _bisection(axes: Axes, data: DataFrame, colour: dict[str, str]) -> None:
    share = 100 * data["bisection_over_injection"]
    shades = list(data["family"].map(colour))
    bars = axes.barh(range(len(data)), share, height=0.6, color=shades)
    axes.bar_label(bars, [f"{quantity(value)} %" for value in share], padding=4)
    axes.set_title("Bisection over injection")
    axes.set_xlabel("Bisection per chip (% of injection bandwidth)")
    axes.set_xlim(0, float(share.max()) * 1.2)


def _ends(data: DataFrame, column: str) -> tuple[Series[Any], Series[Any]]:
    """The rows with the least and the most."""
    values = data[column].to_numpy()
    return data.iloc[int(values.argmin())], data.iloc[int(values.argmax())]


def _caption(data: DataFrame, limits: list[float]) -> str:
    near, far = _ends(data, "diameter_node_hops")
    narrow, wide = _ends(data, "bisection_over_injection")
    rows = data[data["family"].astype(str).str.startswith("railx")]
    within = rows[rows["diameter_node_hops"].between(limits[0], limits[1])]
    beyond = [
        f"{spoken(label(row['topology']))} with {row['diameter_node_hops']:.0f}"
        for row in records(rows[~rows.index.isin(within.index)])
    ]
    return sentence(
        f"{counted(len(data), 'topology', 'topologies')}. A hop is a link that leaves a node;"
        " the dot is the mean over all pairs of chips in different places, the line ends at"
        " the diameter.",
        f"""Diameters go from {near["diameter_node_hops"]:.0f} hops ({label(near["topology"])}) to
            {far["diameter_node_hops"]:.0f} ({label(far["topology"])}).""",
        f"RailX states {limits[0]:.0f} to {limits[1]:.0f} hops for its reconfigurable settings"
        f" (dashed): {len(within)} of the {len(rows)} RailX networks here lie within"
        + (f"; beyond are {listed(beyond)}." if beyond else ".")
        if len(rows)
        else "",
        f"""The bisection, counted on the family's natural cut, goes from
            {quantity(100 * narrow["bisection_over_injection"])} % of the injection bandwidth
            ({label(narrow["topology"])}) to {quantity(100 * wide["bisection_over_injection"])} %
            ({label(wide["topology"])}).""",
    )


def _alternative(data: DataFrame) -> str:
    rows = "; ".join(
        f"{spoken(label(row['topology']))}: diameter {row['diameter_node_hops']:.0f}, mean"
        f" {quantity(row['mean_node_hops'])}, bisection"
        f" {quantity(100 * row['bisection_over_injection'])} %"
        for row in records(data)
    )
    return f"Hops between nodes and bisection over injection, a row per topology. {rows}."


FIGURE = declare(
    TopologyMetricsSettings,
    "Hops and bisection by topology",
    "railx",
    draw,
    topologies="metrics.topologies: topology family chips diameter_node_hops mean_node_hops"
    " bisection_gb_s_per_chip injection_gb_s_per_chip fidelity",
    published="railx.csv: id value",
)
