"""Ring all-reduce over the payload: its time and bandwidth by topology.

Every rail of a RailX line is a ring in the torus and in the all-to-all setting, so the
rings of all rails share the payload (RailX, section on collectives).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from railx.figures.fidelity import fidelity_line, ordered
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import canvas, colours, label, share_legend

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FIGURE", "RingAllReduceSettings"]

_CAPTION = """\
Time and bandwidth of a ring all-reduce over its payload. On RailX the payload is split
over the rings of all rails, in the torus as in the all-to-all setting. HammingMesh and
tori run the rings of all their lines in the same way, on all their ports; other
networks one ring over the chips in order, on all ports of a chip.
"""
_ALTERNATIVE = (
    "Lines of the all-reduce time and of the bandwidth it reaches over the payload, one "
    "line a topology."
)

_COLUMNS = (
    "topology",
    "family",
    "collective",
    "scope",
    "participants",
    "rings",
    "payload_bytes",
    "time_ms",
    "algorithm_gb_s",
    "fidelity",
)


@dataclass(frozen=True)
class RingAllReduceSettings(CanvasSettings):
    """Ring all-reduce over the payload, one line per topology."""

    figure: Literal["ring_all_reduce"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Topologies to show, in that order; empty: all that there are."""

    scope: str | None
    """Scope of the collectives to show (row, column, pillar, nodes, chips); null:
    all."""


def draw(settings: RingAllReduceSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One line per topology and scope.

    Raises ValueError when no row has ``settings.scope``.
    """
    from matplotlib.ticker import EngFormatter, NullLocator

    frame = read_frames(inputs, "collectives", _COLUMNS, "topology", settings.only)
    rows = frame[frame["collective"] == "ring_all_reduce"]
    if settings.scope is not None:
        rows = rows[rows["scope"] == settings.scope]
    if not rows.empty:
        # Where a table holds several fidelities, the closed form is shown.
        rows = rows[rows["fidelity"] == ordered(rows["fidelity"])[0]]
    if rows.empty:
        raise ValueError(
            f"scope: no ring all-reduce in scope {settings.scope!r}; allowed:"
            f" {', '.join(sorted(set(frame['scope'])))}"
        )
    subtitle = "Left: time of one all-reduce. Right: payload divided by that time."
    with canvas(
        settings, output, "Ring all-reduce by topology", subtitle, fidelity_line(rows["fidelity"])
    ) as figure:
        time, bandwidth = figure.subplots(1, 2)
        colour = colours(rows["topology"])
        several = rows["scope"].nunique() > 1
        styles = dict(zip(dict.fromkeys(rows["scope"]), ("-", "--", ":", "-."), strict=False))
        groups = list(rows.groupby(["topology", "scope"], sort=False))
        for i, ((topology, scope), mine) in enumerate(groups):
            line = mine.sort_values("payload_bytes")
            name = _name(line, several)
            # Lines that lie on one another stay visible: each is thinner than the one
            # before.
            wide = 1.2 + 2.0 * (len(groups) - 1 - i) / max(len(groups) - 1, 1)
            style: dict[str, Any] = {
                "color": colour[str(topology)],
                "linestyle": styles.get(str(scope), "-"),
                "linewidth": wide,
            }
            style |= {"marker": "o", "markersize": 3 + wide}
            time.plot(line["payload_bytes"], line["time_ms"], label=name, **style)
            bandwidth.plot(line["payload_bytes"], line["algorithm_gb_s"], **style)
        time.set(xscale="log", yscale="log", title="Time", xlabel="Payload", ylabel="Time (ms)")
        bandwidth.set(
            xscale="log", title="Bandwidth", xlabel="Payload", ylabel="Payload over time (GB/s)"
        )
        bandwidth.set_ylim(bottom=0)
        for axes in (time, bandwidth):
            axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
            axes.xaxis.set_minor_locator(NullLocator())
        handles, names = time.get_legend_handles_labels()
        share_legend(figure, handles, names, 2)
    return Drawn(_CAPTION, _ALTERNATIVE, rows)


def _name(line: pd.DataFrame, several: bool) -> str:
    first = line.iloc[0]
    scope = f", {label(first['scope']).lower()}" if several else ""
    rings = f"{first['rings']:,} ring{'s' if first['rings'] != 1 else ''}"
    return f"{label(first['topology'])}{scope} ({first['participants']:,} participants, {rings})"


FIGURE = Figure(
    settings=RingAllReduceSettings,
    title="Ring all-reduce by topology",
    paper="railx",
    inputs=(FigureInput("collectives", "network.collectives"),),
    draw=draw,
)
