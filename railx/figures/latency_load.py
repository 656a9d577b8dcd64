"""Latency against offered load and what the network accepts of it, one line a sweep of the packet simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from railx.figures.fidelity import fidelity_line
from railx.figures.settings import LatencyLoadSettings
from railx.figures.tables import Inputs, read_frames
from railx.figures.theme import GREY, PALETTE, canvas, label, quantity, share_legend

__all__ = ["draw"]

_COLUMNS = (
    "topology",
    "chips",
    "traffic",
    "routing",
    "offered_flits_per_chip_cycle",
    "accepted_flits_per_chip_cycle",
    "latency_mean_cycles",
    "latency_ci95_cycles",
    "saturated",
    "fidelity",
)


def draw(settings: LatencyLoadSettings, inputs: Inputs, output: Path) -> None:
    """One line per sweep; hollow points are saturated loads, bars the 95 % intervals of the mean latency."""
    frame = read_frames(inputs, "packets", _COLUMNS, settings.only)
    subtitle = (
        "Left: creation to arrival of the tail, queueing at the source included; bars: 95 % confidence. "
        "Right: the grey line is all that is offered. Hollow: saturated."
    )
    with canvas(settings, output, "Latency against offered load", subtitle, fidelity_line(frame["fidelity"])) as figure:
        latency, accepted = figure.subplots(1, 2)
        same = {name: frame[name].nunique() == 1 for name in ("topology", "traffic", "routing")}
        for place, (_, own) in enumerate(frame.groupby("item", sort=False)):
            line = own.sort_values("offered_flits_per_chip_cycle")
            style: dict[str, Any] = {"color": PALETTE[place % len(PALETTE)], "linestyle": "-" if place < len(PALETTE) else "--"}
            latency.errorbar(
                line["offered_flits_per_chip_cycle"],
                line["latency_mean_cycles"],
                yerr=line["latency_ci95_cycles"],
                label=_name(line, same),
                linewidth=1.6,
                elinewidth=1,
                capsize=2,
                **style,
            )
            accepted.plot(line["offered_flits_per_chip_cycle"], line["accepted_flits_per_chip_cycle"], linewidth=1.6, **style)
            for axes, column in ((latency, "latency_mean_cycles"), (accepted, "accepted_flits_per_chip_cycle")):
                for full in (True, False):
                    points = line[line["saturated"] != full]
                    face = style["color"] if full else "white"
                    at = (points["offered_flits_per_chip_cycle"], points[column])
                    axes.plot(*at, "o", color=style["color"], markerfacecolor=face, markersize=4.5)
        most = float(frame["offered_flits_per_chip_cycle"].max())
        top = 1.1 * float(frame["accepted_flits_per_chip_cycle"].max())
        accepted.plot([0, most], [0, most], color=GREY, linewidth=1, zorder=1)
        latency.set(yscale="log", title="Latency", ylabel="Mean latency (cycles)")
        if settings.max_latency_cycles is not None:
            latency.set_ylim(0.8 * float(frame["latency_mean_cycles"].min()), settings.max_latency_cycles)
        latency.yaxis.set_major_formatter(lambda value, _: quantity(value))
        accepted.set(title="Throughput", ylabel="Accepted (flits/chip/cycle)", ylim=(0, top))
        for axes in (latency, accepted):
            axes.set(xlabel="Offered load (flits/chip/cycle)", xlim=(0, 1.03 * most))
        handles, names = latency.get_legend_handles_labels()
        share_legend(figure, handles, names, 2)


def _name(line: pd.DataFrame, same: dict[str, bool]) -> str:
    """Topology and size, and what tells this sweep from the others."""
    first = line.iloc[0]
    extra = [label(first["traffic"]).lower()] if not same["traffic"] else []
    extra += [f"routing {first['routing']}"] if not same["routing"] else []
    return ", ".join([f"{label(first['topology'])} ({first['chips']:,} chips)", *extra])
