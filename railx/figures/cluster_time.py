"""Wall time and cluster time of training runs.

Each run has a panel. Wall time is measured, on ranks that share the machine. Cluster
time is replayed: each rank's own computation, communication at a topology's bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from railx.figures.canvas import panel_title
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.tables import FigureInput, Tables, records, stack
from railx.figures.theme import PALETTE, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, quantity

__all__ = ["FIGURE", "ClusterTimeSettings"]

_RECORDED = "recorded"
#: How the wall time of a run on a device was had.
_MEASURED = {"cpu": "measured_cpu", "cuda": "measured_gpu"}


@dataclass(frozen=True)
class ClusterTimeSettings(CanvasSettings):
    """Wall time and cluster time of training runs."""

    figure: Literal["cluster_time"] = "cluster_time"
    height_inches: Height = 3.6

    only: tuple[str, ...] = ()
    """Training runs to show, in that order; empty: all that there are."""


def draw(settings: ClusterTimeSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A bar of wall time, and one of cluster time for each topology, per run."""
    frame = tables.read("settings", "run", settings.only)
    rows = _bars(frame)
    runs = list(dict.fromkeys(rows["run"]))
    computed = _computed(rows)
    subtitle = (
        "Median iteration with electrical switching, slowest rank. Wall: as measured, ranks share"
        f" the machine. Others: {computed}, communication at that topology's bandwidth."
    )
    footnote = fidelity_line(rows["fidelity"], shows=_shows(rows))
    with canvas(subtitle, footnote) as page:
        panels = page.subplots(1, len(runs), sharey=True, squeeze=False)[0]
        for axes, run in zip(panels, runs, strict=True):
            part = rows[rows["run"] == run]
            _panel(axes, part)
            title = f"{label(str(part['plan'].iloc[0]))}\n{label(str(part['parallelism'].iloc[0]))}"
            axes.set_title(panel_title(title, len(runs), settings))
    return Drawn(_caption(rows, runs, computed), _alternative(rows, runs), rows)


def _bars(frame: DataFrame) -> DataFrame:
    """A row for each bar: the wall time of a run, then its cluster times.

    Wall time under electrical switching is the machine's own, and so measured.
    """
    electrical = frame[frame["mode"] == "electrical"]
    recorded = electrical[electrical["topology"] == _RECORDED]
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


def _computed(rows: DataFrame) -> str:
    """Where the computation of cluster time comes from."""
    if "profile" in set(rows["compute"]):
        return "computation by a profile of a layer"
    return "each rank's own processor time"


def _shows(rows: DataFrame) -> dict[str, str]:
    """What has which fidelity."""
    bars = rows.groupby("fidelity")["topology"]
    return {
        str(fidelity): "wall time" if set(part) == {"wall"} else "cluster time"
        for fidelity, part in bars
    }


def _panel(axes: Axes, rows: DataFrame) -> None:
    names = [str(name) for name in rows["topology"]]
    times = [float(value) for value in rows["ms"]]
    shades = ["#c3c8cf" if name == "wall" else PALETTE[0] for name in names]
    axes.barh(range(len(names)), times, color=shades, height=0.7)
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    for position, value in enumerate(times):
        axes.annotate(quantity(value), (value, position), (3, 0), **style)
    axes.set_xlim(0, 1.35 * max(times))
    axes.set_xlabel("Iteration (ms)")
    words = ["Wall" if name == "wall" else label(name) for name in names]
    axes.set_yticks(range(len(names)), words)
    if not axes.yaxis_inverted():  # shared by all panels
        axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _words(rows: DataFrame, run: str) -> str:
    part = rows[rows["run"] == run]
    parts = []
    for row in records(part):
        if row["topology"] == "wall":
            parts.append(f"{quantity(row['ms'])} ms on the wall")
            continue
        hidden = row["hidden_share"]
        share = "" if hidden != hidden else f", {quantity(100 * hidden)} % of communication hidden"
        parts.append(f"{quantity(row['ms'])} ms on {label(str(row['topology']))}{share}")
    return "; ".join(parts)


def _caption(rows: DataFrame, runs: list[str], computed: str) -> str:
    sentences = " ".join(f"{label(run)}: {_words(rows, run)}." for run in runs)
    return (
        f"Wall time and cluster time of an iteration. {sentences} Wall time is that of ranks on one"
        f" machine, which slow one another; cluster time replays the same recording with {computed}"
        " and with communication at the bandwidth of a topology, flight times included, software"
        " overhead not."
    )


def _alternative(rows: DataFrame, runs: list[str]) -> str:
    return (
        "Bars of the iteration time on the wall and on each topology, a panel per run:"
        f" {'. '.join(f'{label(run)}, {_words(rows, run)}' for run in runs)}."
    )


FIGURE = Figure(
    ClusterTimeSettings,
    "Wall time and cluster time of training runs",
    "opus",
    (
        FigureInput(
            "settings",
            "replay.settings",
            "run plan parallelism device topology compute mode wall_ms cluster_ms "
            "hidden_share fidelity",
        ),
    ),
    draw,
)
