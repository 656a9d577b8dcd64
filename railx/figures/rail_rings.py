"""Rail rings of one RailX line: Hamiltonian cycles over its nodes.

Beside them are the circuits of the optical switches that make them. RailX wires every
rail of a line of nodes as a ring. A Hamiltonian decomposition makes the rings together
join every ordered pair of nodes exactly once (RailX, Theorem 3.1 and Appendix A.1).
Each rail has one optical circuit switch (OCS) per line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from railx.errors import UserError
from railx.figures.contrast import readable
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.tables import FigureInput, Tables, read_frame
from railx.figures.theme import GREY, INK, PALETTE, label, lighter
from railx.figures.types import Axes, DataFrame, Page
from railx.figures.words import fidelity_line, sentence, spoken
from railx.settings import Between, NonNegative

__all__ = ["FIGURE", "RailRingsSettings"]

_COLUMNS = ("element", "ocs", "port_a", "port_b", "rail", "dimension", "line", "node_a", "node_b")


@dataclass(frozen=True)
class RailRingsSettings(CanvasSettings):
    """Rail rings of one line of nodes."""

    figure: Literal["rail_rings"] = "rail_rings"
    height_inches: Height = 5.6

    only: tuple[str, ...] = ("railx_hyperx",)
    """Topologies to look in, in that order; empty: in all that there are. The first
    with circuits in the line is drawn."""

    dimension: Literal["x", "y"] = "x"
    """Whether the line is a row (x) or a column (y) of nodes."""

    line: Annotated[int, NonNegative()] = 0
    """Index of the line in its dimension."""

    max_rails: Annotated[int, Between(1, 8)] = 4
    """Most rails that are drawn one by one; the overview has all of them together."""


def draw(settings: RailRingsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Draw one line from the first topology file that has circuits there.

    The line is ``settings.line`` of ``settings.dimension``. Raises ValueError when no
    file has any.
    """
    name, circuits = _circuits(settings, tables)
    nodes = sorted(set(circuits["node_a"]) | set(circuits["node_b"]))
    rails = sorted(set(circuits["rail"]))
    shown = rails[: settings.max_rails]
    pairs = set(zip(circuits["node_a"], circuits["node_b"], strict=True))
    title = f"Rail rings of one line of {len(nodes)} nodes"
    subtitle = (
        f"{label(name)}, dimension {settings.dimension.upper()}, line {settings.line}: {len(rails)}"
        f" rails, one optical circuit switch (OCS) each. The rings join {len(pairs):,} of"
        f" {len(nodes) * (len(nodes) - 1):,} ordered pairs of nodes with {len(circuits):,}"
        " circuits."
    )
    note = (
        f"Rails {shown[0]} to {shown[-1]} of {len(rails)} are shown one by one"
        if len(shown) < len(rails)
        else ""
    )
    with canvas(subtitle, fidelity_line(["analytic"], note), title=title) as page:
        _draw_panels(page, circuits, nodes, shown)
    return Drawn(
        _caption(name, circuits, nodes, rails, pairs),
        _alternative(circuits, shown),
        circuits[[column for column in _COLUMNS if column != "element"]],
    )


def _caption(
    name: str,
    circuits: DataFrame,
    nodes: Sequence[int],
    rails: Sequence[int],
    pairs: set[tuple[int, int]],
) -> str:
    every = len(nodes) * (len(nodes) - 1)
    circuits_per_rail = circuits.groupby("rail").size()
    rings = int((circuits_per_rail == len(nodes)).sum())
    used = [*zip(circuits["ocs"], circuits["port_a"], strict=True)]
    used += zip(circuits["ocs"], circuits["port_b"], strict=True)
    total = len(pairs) == every
    return sentence(
        f"A line of {len(nodes)} nodes of {spoken(label(name))}: {rings} of its {len(rails)} rails"
        f" visit every node once. Together they join {'' if total else 'only '}{len(pairs):,} of"
        f" the"
        f" {every:,} ordered pairs of nodes with {len(circuits):,} circuits"
        + (", so that the same wiring serves ring collectives and all-to-all." if total else "."),
        "Below each ring are the ports of its optical circuit switch (OCS), on the left those that"
        " lead out of a node, on the right those that lead in, and the circuits that join them;"
        f" {len(set(used)):,} ports are used,"
        f" {'none' if len(set(used)) == len(used) else len(used) - len(set(used))} twice.",
    )


def _alternative(circuits: DataFrame, shown: Sequence[int]) -> str:
    parts = "; ".join(
        f"rail {rail}: " + ", ".join(f"{a} to {b}" for a, b in _joined(circuits, rail))
        for rail in shown
    )
    return f"Circles of nodes joined by rail rings, and the circuits of their switches. {parts}."


def _joined(circuits: DataFrame, rail: int) -> list[tuple[int, int]]:
    rows = circuits[circuits["rail"] == rail]
    return list(zip(rows["node_a"], rows["node_b"], strict=True))


def _circuits(settings: RailRingsSettings, tables: Tables) -> tuple[str, DataFrame]:
    files = tables.files("graph", settings.only)
    for name, path in files:
        frame = read_frame(path, ["element"])
        if not (frame["element"] == "circuit").any():
            continue
        frame = read_frame(path, _COLUMNS)
        frame = frame[(frame["element"] == "circuit") & (frame["line"] == settings.line)]
        frame = frame[frame["dimension"].astype(str).str.lower() == settings.dimension]
        if not frame.empty:
            total = ["ocs", "port_a", "port_b", "rail", "node_a", "node_b"]
            return name, frame.astype(dict.fromkeys(total, int))
    raise UserError(
        f"{', '.join(str(path) for _, path in files)}: no circuits in dimension"
        f" {settings.dimension}, line {settings.line}; allowed: a topology with optical switches"
        " and a line that it has"
    )


def _draw_panels(
    page: Page, circuits: DataFrame, nodes: Sequence[int], shown: Sequence[int]
) -> None:
    colours = {
        rail: PALETTE[i % len(PALETTE)] for i, rail in enumerate(sorted(set(circuits["rail"])))
    }
    grid = page.add_gridspec(
        2, len(shown) + 1, width_ratios=[1.7] + [1.0] * len(shown), height_ratios=[1, 1.15]
    )
    overview = page.add_subplot(grid[:, 0])
    _ring(overview, circuits, nodes, colours, arrows=False)
    overview.set_title("All rails together")
    for column, rail in enumerate(shown, start=1):
        rows = circuits[circuits["rail"] == rail]
        ring = page.add_subplot(grid[0, column])
        _ring(ring, rows, nodes, colours, arrows=True)
        ring.set_title(f"Rail {rail}", color=readable(colours[rail]), loc="center")
        _switch(page.add_subplot(grid[1, column]), rows, colours[rail])


def _ring(
    axes: Axes, rows: DataFrame, nodes: Sequence[int], colours: dict[int, str], *, arrows: bool
) -> None:
    """Nodes on a circle, clockwise from the top.

    An arc leads from each node to its successor on the rail, bent so that both senses
    show.
    """
    position = {
        node: (math.sin(2 * math.pi * i / len(nodes)), math.cos(2 * math.pi * i / len(nodes)))
        for i, node in enumerate(nodes)
    }
    few = len(nodes) <= 16
    size = (11 if not arrows else 9) if few else max(2.0, 150 / len(nodes))
    for rail, start, end in zip(rows["rail"], rows["node_a"], rows["node_b"], strict=True):
        axes.annotate(
            "",
            xy=position[end],
            xytext=position[start],
            arrowprops={
                "arrowstyle": "-|>" if few else "-",
                "color": colours[rail],
                "linewidth": (1.6 if arrows else 1.3) if few else 0.6,
                "alpha": 1.0 if few else 0.6,
                "mutation_scale": 9,
                "shrinkA": size * 0.62,
                "shrinkB": size * 0.62,
                "connectionstyle": f"arc3,rad={0.0 if arrows else 0.09}",
            },
        )
    x, y = zip(*(position[node] for node in nodes), strict=True)
    axes.plot(
        x,
        y,
        "o",
        markersize=size * 1.25,
        markerfacecolor="white",
        markeredgecolor=INK,
        markeredgewidth=1.0,
        zorder=3,
    )
    if few:
        for node in nodes:
            axes.text(*position[node], str(node), ha="center", va="center", zorder=4)
    axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    axes.set_axis_off()


def _switch(axes: Axes, rows: DataFrame, colour: str) -> None:
    """The ports of one optical switch in two columns, a line for each circuit.

    Every port is used at most once.
    """
    left = {port: i for i, port in enumerate(sorted(rows["port_a"]))}
    right = {port: i for i, port in enumerate(sorted(rows["port_b"]))}
    count = max(len(left), len(right))
    few = count <= 16
    for a, b in zip(rows["port_a"], rows["port_b"], strict=True):
        axes.plot(
            [0, 1],
            [left[a], right[b]],
            color=colour,
            linewidth=1.5 if few else 0.5,
            solid_capstyle="round",
        )
    for x, side, ports, nodes in ((0, "right", left, "node_a"), (1, "left", right, "node_b")):
        owner = dict(zip(rows["port_a" if x == 0 else "port_b"], rows[nodes], strict=True))
        axes.plot(
            [x] * len(ports),
            list(ports.values()),
            "s",
            markersize=5.5 if few else 1.5,
            color=INK,
            zorder=3,
        )
        if few:
            for port, position in ports.items():
                offset = (-7, 0) if x == 0 else (7, 0)
                text = f"{owner[port]} · p{port}" if x == 0 else f"p{port} · {owner[port]}"
                axes.annotate(
                    text,
                    (x, position),
                    offset,
                    textcoords="offset points",
                    ha=side,
                    va="center",
                    color=GREY,
                )
    ocs = sorted(set(rows["ocs"]))
    axes.set_title(f"OCS {', '.join(map(str, ocs))}", loc="center", fontweight="normal", color=INK)
    axes.set(xlim=(-0.85, 1.85) if few else (-0.2, 1.2), ylim=(count - 0.4, -0.6))
    axes.fill_between([-0.12, 1.12], -0.5, count - 0.5, color=lighter(GREY, 0.88), zorder=0)
    axes.text(
        0.5,
        count - 0.45,
        "node · port      port · node" if few else "ports",
        ha="center",
        va="top",
        color=GREY,
    )
    axes.set_axis_off()


FIGURE = Figure(
    RailRingsSettings,
    "Rail rings and optical switch ports",
    "railx",
    (
        FigureInput(
            "graph", "topology.graph", "element ocs port_a port_b rail dimension line node_a node_b"
        ),
    ),
    draw,
)
