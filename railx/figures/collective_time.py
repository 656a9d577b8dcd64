"""Bandwidth of every collective over the payload, one panel per topology.

The closed form is a line, messages on the links are circles.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    GREY,
    PALETTE,
    canvas,
    label,
    panel_title,
    quantity,
    share_legend,
)
from railx.figures.words import listed, sentence, spoken
from railx.settings import Between, NotEmpty

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FIGURE", "CollectiveTimeSettings"]


_COLUMNS = (
    "topology",
    "collective",
    "scope",
    "participants",
    "payload_bytes",
    "algorithm_gb_s",
    "fidelity",
)
#: A collective has the same colour whatever else is drawn.
_ORDER = (
    "ring_all_reduce",
    "hierarchical_all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
)


@dataclass(frozen=True)
class CollectiveTimeSettings(CanvasSettings):
    """Bandwidth of every collective over the payload, one panel per topology."""

    figure: Literal["collective_time"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Topologies to show, in that order; empty: all that there are."""

    scope: Annotated[str, NotEmpty()]
    """Scope of the collectives to show (row, column, pillar, nodes, chips)."""

    columns: Annotated[int, Between(1, 64)]
    """Panels side by side."""


def draw(settings: CollectiveTimeSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One panel per topology.

    Raises ValueError when no row has ``settings.scope``.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, NullLocator

    frame = read_frames(inputs, "collectives", _COLUMNS, "topology", settings.only)
    rows = frame[frame["scope"] == settings.scope]
    if rows.empty:
        raise ValueError(
            f"scope: no collective in scope {settings.scope!r}; allowed:"
            f" {', '.join(sorted(set(frame['scope'])))}"
        )
    names = [name for name in _ORDER if name in set(rows["collective"])]
    names += sorted(set(rows["collective"]) - set(names))
    colour = {
        name: PALETTE[i % len(PALETTE)]
        for i, name in enumerate((*_ORDER, *sorted(set(names) - set(_ORDER))))
    }
    topologies = list(dict.fromkeys(rows["topology"]))
    across = min(settings.columns, len(topologies))
    down = -(-len(topologies) // across)
    subtitle = (
        "Payload of a participant over the time of the collective. Reduce-scatter and all-gather"
        " take the same time."
    )
    with canvas(
        settings, output, "Collectives by topology", subtitle, fidelity_line(rows["fidelity"])
    ) as figure:
        panels = np.atleast_1d(
            figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        ).ravel()
        for axes, topology in zip(panels, topologies, strict=False):
            mine = rows[rows["topology"] == topology]
            for (name, fidelity), own in mine.groupby(["collective", "fidelity"], sort=False):
                line = own.sort_values("payload_bytes")
                # Reduce-scatter and all-gather lie on one another: the second is
                # dashed.
                style = "--" if name == "all_gather" else "-"
                if fidelity == "analytic":
                    axes.plot(
                        line["payload_bytes"],
                        line["algorithm_gb_s"],
                        color=colour[str(name)],
                        linestyle=style,
                        linewidth=1.8,
                    )
                else:
                    axes.plot(
                        line["payload_bytes"],
                        line["algorithm_gb_s"],
                        color=colour[str(name)],
                        linestyle="none",
                        marker="o",
                        markersize=8 if name == "all_gather" else 5,
                        fillstyle="none",
                    )
            participants = int(mine["participants"].max())
            axes.set_title(
                panel_title(f"{label(topology)} ({participants:,} participants)", across, settings)
            )
            axes.set(xscale="log", yscale="log")
            axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
        for axes in panels[len(topologies) :]:
            axes.set_visible(False)
        for place, axes in enumerate(panels[: len(topologies)]):
            if place % across == 0:
                axes.set_ylabel("GB/s")
            if place + across >= len(topologies):
                axes.set_xlabel("Payload")
                axes.tick_params(labelbottom=True)
        handles = [
            Line2D(
                [],
                [],
                color=colour[name],
                linewidth=1.8,
                linestyle="--" if name == "all_gather" else "-",
            )
            for name in names
        ]
        texts = [label(name) for name in names]
        if "flow" in set(rows["fidelity"]):
            handles.append(
                Line2D(
                    [], [], color=GREY, linestyle="none", marker="o", markersize=5, fillstyle="none"
                )
            )
            texts.append("Messages on the links")
        share_legend(figure, handles, texts, 3)
    return Drawn(_caption(rows), _alternative(rows), rows[list(_COLUMNS)])


def _ends(rows: pd.DataFrame) -> pd.DataFrame:
    """What each collective reaches with its largest payload, in the closed form."""
    closed = rows[rows["fidelity"] == "analytic"] if "analytic" in set(rows["fidelity"]) else rows
    return (
        closed.sort_values("payload_bytes").groupby(["topology", "collective"], sort=False).tail(1)
    )


def _caption(rows: pd.DataFrame) -> str:
    parts = []
    for name, own in _ends(rows).groupby("collective", sort=False):
        falling = own.sort_values("algorithm_gb_s", ascending=False)
        best, worst = falling.iloc[0], falling.iloc[-1]
        reached = (
            f"{label(str(name))} {quantity(best['algorithm_gb_s'])} on"
            f" {spoken(label(best['topology']))}"
        )
        if len(falling) > 1:
            reached += (
                f" and {quantity(worst['algorithm_gb_s'])} on {spoken(label(worst['topology']))}"
            )
        parts.append(reached)
    return sentence(
        f"Payload over time of each collective on {listed(_names(rows))}.",
        f"With the largest payload, most and least in GB/s: {'; '.join(parts)}.",
        _against(rows),
    )


def _against(rows: pd.DataFrame) -> str:
    """How far messages on the links are from the closed form."""
    keys = ["topology", "collective", "payload_bytes"]
    both = rows.pivot_table(index=keys, columns="fidelity", values="algorithm_gb_s")
    if not {"analytic", "flow"} <= set(both.columns):
        return ""
    ratios = (both["flow"] / both["analytic"]).dropna()
    return (
        "Lines add up latency and serialisation in closed form; circles send the messages of"
        " every step over the links, which they share max-min fairly, and reach"
        f" {quantity(100 * float(ratios.min()))} to {quantity(100 * float(ratios.max()))} % of the"
        " lines."
    )


def _names(rows: pd.DataFrame) -> list[str]:
    return [spoken(label(str(name))) for name in dict.fromkeys(rows["topology"])]


def _alternative(rows: pd.DataFrame) -> str:
    parts = "; ".join(
        f"{spoken(label(row['topology']))}, {label(row['collective']).lower()}"
        f" {quantity(row['algorithm_gb_s'])}"
        for row in _ends(rows).to_dict("records")
    )
    return f"Rising lines of bandwidth over payload, a panel a topology. In the end, GB/s: {parts}."


FIGURE = Figure(
    settings=CollectiveTimeSettings,
    title="Collectives by topology",
    paper="railx",
    inputs=(FigureInput("collectives", "network.collectives", columns=_COLUMNS),),
    draw=draw,
)
