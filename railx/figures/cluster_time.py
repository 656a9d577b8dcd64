"""Wall time and cluster time of training runs.

Each run has a panel. Wall time is measured, on ranks that share the machine. Cluster
time is replayed: each rank's own computation, communication at a topology's bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from railx.figures.figure import Axes, Canvas, DataFrame, Drawn, Height, RunChoice, Tables, declare
from railx.figures.panels import panel_title
from railx.figures.tables import records, stack, where
from railx.figures.theme import PALETTE, label
from railx.figures.words import fidelity_line, phrase, quantity, sentence

__all__ = ["FIGURE", "ClusterTimeSettings"]

_RECORDED = "recorded"
#: How the wall time of a run on a device was measured.
_MEASURED = {"cpu": "measured_cpu", "cuda": "measured_gpu"}


@dataclass(frozen=True)
class ClusterTimeSettings(RunChoice):
    """Wall time and cluster time of training runs."""

    figure: Literal["cluster_time"] = "cluster_time"
    height_inches: Height = 3.6


def draw(settings: ClusterTimeSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A bar of wall time, and one of cluster time for each topology, per run."""
    rows = _bars(tables.read("settings", "run", settings.only))
    profiled = "profile" in set(rows["compute"])
    computed = (
        "computation by a profile of a layer" if profiled else "each rank's own processor time"
    )
    subtitle = f"""Median iteration with electrical switching, slowest rank. Wall: as measured,
        ranks share the machine. Others: {computed}, communication at that topology's bandwidth."""
    shows = {
        str(fidelity): "wall time" if set(part) == {"wall"} else "cluster time"
        for fidelity, part in rows.groupby("fidelity")["topology"]
    }
    runs = {str(run): part for run, part in rows.groupby("run", sort=False)}
    with canvas(subtitle, fidelity_line(rows["fidelity"], shows=shows)) as page:
        panels = page.subplots(1, len(runs), sharey=True, squeeze=False)[0]
        for axes, part in zip(panels, runs.values(), strict=True):
            _panel(axes, part)
            plan, parallelism = map(str, part[["plan", "parallelism"]].iloc[0])
            title = f"{label(plan)}\n{label(parallelism)}"
            axes.set_title(panel_title(title, len(runs), settings))
    words = {label(run): "; ".join(map(_words, records(part))) for run, part in runs.items()}
    caption = sentence(
        "Wall time and cluster time of an iteration.",
        *(f"{run}: {text}." for run, text in words.items()),
        "Wall time is that of ranks on one machine, which slow one another; cluster time replays"
        f" the same recording with {computed} and with communication at the bandwidth of a"
        " topology, flight times included, software overhead not.",
    )
    alternative = f"""Bars of the iteration time on the wall and on each topology, a panel per run:
        {". ".join(f"{run}, {text}" for run, text in words.items())}."""
    return Drawn(caption, alternative, rows)


def _bars(frame: DataFrame) -> DataFrame:
    """A row for each bar: the wall time of a run, then its cluster times.

    Wall time under electrical switching is that of the machine, thus measured.
    """
    electrical = where(frame, mode="electrical")
    recorded = where(electrical, topology=_RECORDED)
    wall = recorded.assign(
        topology="wall",
        ms=recorded["wall_ms"],
        hidden_share=float("nan"),
        fidelity=recorded["device"].map(_MEASURED),
    )
    cluster = electrical[electrical["topology"] != _RECORDED]
    bars = stack([wall, cluster.assign(ms=cluster["cluster_ms"])])
    return bars[
        ["run", "plan", "parallelism", "topology", "compute", "ms", "hidden_share", "fidelity"]
    ]


def _panel(axes: Axes, rows: DataFrame) -> None:
    names, times = list(rows["topology"]), rows["ms"].astype(float)
    shades = ["#c3c8cf" if name == "wall" else PALETTE[0] for name in names]
    bars = axes.barh(range(len(names)), times, color=shades, height=0.7)
    axes.bar_label(bars, [*map(quantity, times)], padding=3)
    axes.set(xlim=(0, 1.35 * max(times)), xlabel="Iteration (ms)")
    words = ["Wall" if name == "wall" else label(name) for name in names]
    axes.set_yticks(range(len(names)), words)
    if not axes.yaxis_inverted():  # shared by all panels
        axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _words(row: dict[str, Any]) -> str:
    if row["topology"] == "wall":
        return phrase("{ms:q} ms on the wall", row)
    hidden = row["hidden_share"] == row["hidden_share"]
    share = ", {hidden_share:q%} of communication hidden" if hidden else ""
    return phrase("{ms:q} ms on {topology:label}" + share, row)


FIGURE = declare(
    ClusterTimeSettings,
    "Wall time and cluster time of training runs",
    "opus",
    draw,
    settings="replay.settings: run plan parallelism device topology compute mode wall_ms"
    " cluster_ms hidden_share fidelity",
)
