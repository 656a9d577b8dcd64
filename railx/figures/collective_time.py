"""Bandwidth of every collective over the payload, one panel per topology.

The closed form is a line, messages on the links are circles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, DataFrame, Drawn, Height, TopologyChoice, declare
from railx.figures.panels import panel_title, share_legend, ticks, tiles
from railx.figures.tables import Tables, records
from railx.figures.theme import GREY, PALETTE, dot, label
from railx.figures.words import fidelity_line, listed, quantity, sentence, span, spoken
from railx.settings import Between, NotEmpty

__all__ = ["FIGURE", "CollectiveTimeSettings"]

#: A collective has the same colour whatever else is drawn.
_ORDER = (
    "ring_all_reduce",
    "hierarchical_all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
)


@dataclass(frozen=True)
class CollectiveTimeSettings(TopologyChoice):
    """Bandwidth of every collective over the payload, one panel per topology."""

    figure: Literal["collective_time"] = "collective_time"
    height_inches: Height = 6.6

    scope: Annotated[str, NotEmpty()] = "chips"
    """Scope of the collectives to show (row, column, pillar, nodes, chips)."""

    columns: Annotated[int, Between(1, 64)] = 2
    """Panels side by side."""


def draw(settings: CollectiveTimeSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One panel per topology.

    Raises ValueError when no row has ``settings.scope``.
    """
    from matplotlib.ticker import EngFormatter

    frame = tables.read("collectives", "topology", settings.only)
    rows = frame[frame["scope"] == settings.scope]
    if rows.empty:
        raise UserError(
            f"scope: no collective in scope {settings.scope!r}; allowed:"
            f" {', '.join(sorted(set(frame['scope'])))}"
        )
    names = [name for name in _ORDER if name in set(rows["collective"])]
    others = sorted(set(rows["collective"]) - set(names))
    colour = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate((*_ORDER, *others))}
    topologies = list(dict.fromkeys(rows["topology"]))
    across = min(settings.columns, len(topologies))
    subtitle = """Payload of a participant over the time of the collective. Reduce-scatter and
        all-gather take the same time."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        panels = tiles(page, len(topologies), across, sharex=True, sharey=True)
        for axes, topology in zip(panels, topologies, strict=True):
            collectives = rows[rows["topology"] == topology]
            _panel(axes, collectives, colour)
            participants = int(collectives["participants"].max())
            title = f"{label(topology)} ({participants:,} participants)"
            axes.set(title=panel_title(title, across, settings), xscale="log", yscale="log")
            ticks(axes.xaxis, text=EngFormatter(unit="B"))
            ticks(axes.yaxis, text="{x:g}")
        for axes in panels[::across]:
            axes.set_ylabel("GB/s")
        for axes in panels[-across:]:
            axes.set_xlabel("Payload")
            axes.tick_params(labelbottom=True)
        legend: dict[str, Any] = {label(name): _line(name, colour) for name in (*names, *others)}
        if "flow" in set(rows["fidelity"]):
            legend["Messages on the links"] = dot(GREY, 5, fillstyle="none")
        share_legend(page, legend, 3)
    return Drawn(_caption(rows), _alternative(rows), rows[tables.columns("collectives")])


def _line(name: str, colour: dict[str, str]) -> dict[str, Any]:
    # Reduce-scatter and all-gather lie on one another: the second is dashed.
    style = "--" if name == "all_gather" else "-"
    return {"color": colour[name], "linestyle": style, "linewidth": 1.8}


def _panel(axes: Axes, rows: DataFrame, colour: dict[str, str]) -> None:
    for (name, fidelity), points in rows.groupby(["collective", "fidelity"], sort=False):
        line = points.sort_values("payload_bytes")
        style = _line(str(name), colour)
        if fidelity != "analytic":
            size = 8 if name == "all_gather" else 5
            style = dot(colour[str(name)], size, fillstyle="none")
        axes.plot(line["payload_bytes"], line["algorithm_gb_s"], **style)


def _ends(rows: DataFrame) -> DataFrame:
    """The largest payload of each collective, in the closed form where there is one."""
    closed = rows[rows["fidelity"] == "analytic"] if "analytic" in set(rows["fidelity"]) else rows
    falling = closed.sort_values("payload_bytes")
    return falling.groupby(["topology", "collective"], sort=False).tail(1)


def _caption(rows: DataFrame) -> str:
    parts = []
    for name, ends in _ends(rows).groupby("collective", sort=False):
        falling = ends.sort_values("algorithm_gb_s", ascending=False)
        reached = [
            f"{quantity(row['algorithm_gb_s'])} on {spoken(label(row['topology']))}"
            for row in records(falling.iloc[sorted({0, len(falling) - 1})])
        ]
        parts.append(f"{label(str(name))} {' and '.join(reached)}")
    topologies = [spoken(label(str(name))) for name in dict.fromkeys(rows["topology"])]
    return sentence(
        f"Payload over time of each collective on {listed(topologies)}.",
        f"With the largest payload, most and least in GB/s: {'; '.join(parts)}.",
        _against(rows),
    )


def _against(rows: DataFrame) -> str:
    """How far messages on the links are from the closed form."""
    keys = ["topology", "collective", "payload_bytes"]
    both = rows.pivot_table(index=keys, columns="fidelity", values="algorithm_gb_s")
    if not {"analytic", "flow"} <= set(both.columns):
        return ""
    ratios = (both["flow"] / both["analytic"]).dropna()
    return f"""Lines add up latency and serialisation in closed form; circles send the messages of
        every step over the links, which they share max-min fairly, and reach {span(100 * ratios)} %
        of the lines."""


def _alternative(rows: DataFrame) -> str:
    parts = "; ".join(
        f"{spoken(label(row['topology']))}, {label(row['collective']).lower()}"
        f" {quantity(row['algorithm_gb_s'])}"
        for row in records(_ends(rows))
    )
    return f"Rising lines of bandwidth over payload, a panel a topology. In the end, GB/s: {parts}."


FIGURE = declare(
    CollectiveTimeSettings,
    "Collectives by topology",
    "railx",
    draw,
    collectives="network.collectives: topology collective scope participants payload_bytes"
    " algorithm_gb_s fidelity",
)
