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
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.contrast import readable
from railx.figures.figure import Canvas, Choice, Drawn, Tables, figure, reads
from railx.figures.panels import beside
from railx.figures.tables import read_frame, where
from railx.figures.theme import GREY, INK, PALETTE, dot, label, lighter
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, phrases, spoken
from railx.settings import Between, NonNegative


@dataclass(frozen=True)
class RailRingsSettings(Choice):
    """Rail rings of one line of nodes."""

    only: tuple[str, ...] = ("railx_hyperx",)
    """Topologies to look in, in that order; empty: in all that there are. The first
    with circuits in the line is drawn."""
    dimension: Literal["x", "y"] = "x"
    """Whether the line is a row (x) or a column (y) of nodes."""
    line: Annotated[int, NonNegative()] = 0
    """Index of the line in its dimension."""
    max_rails: Annotated[int, Between(1, 8)] = 4
    """Most rails that are drawn one by one; the overview has all of them together."""


@figure("Rail rings and optical switch ports", "railx", height=5.6)
@reads(graph="topology.graph: element ocs port_a port_b rail dimension line node_a node_b")
def rail_rings(settings: RailRingsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """The line of the settings, of the first topology that has circuits there."""
    name, circuits = _circuits(settings, tables)
    nodes = sorted({*circuits["node_a"], *circuits["node_b"]})
    rails = sorted(set(circuits["rail"]))
    shown = rails[: settings.max_rails]
    joined = len(circuits[["node_a", "node_b"]].drop_duplicates())
    pairs = len(nodes) * (len(nodes) - 1)
    subtitle = f"""{label(name)}, dimension {settings.dimension.upper()}, line {settings.line}:
        {len(rails)} rails, one optical circuit switch (OCS) each. The rings join {joined:,} of
        {pairs:,} ordered pairs of nodes with {len(circuits):,} circuits."""
    note = f"Rails {shown[0]} to {shown[-1]} of {len(rails)} are shown one by one"
    footnote = fidelity_line(["analytic"], note if len(shown) < len(rails) else "")
    title = f"Rail rings of one line of {len(nodes)} nodes"
    colours = dict(zip(rails, PALETTE * len(rails), strict=False))
    with canvas(subtitle, footnote, title=title) as page:
        lines: list[Any] = [
            ["all", *(f"{part} {rail}" for rail in shown)] for part in ("ring", "switch")
        ]
        widths = [1.7] + [1.0] * len(shown)
        panels = page.subplot_mosaic(lines, width_ratios=widths, height_ratios=[1, 1.15])
        _ring(panels["all"], circuits, nodes, colours, arrows=False)
        panels["all"].set_title("All rails together")
        for rail in shown:
            rows = where(circuits, rail=rail)
            ring = panels[f"ring {rail}"]
            _ring(ring, rows, nodes, colours, arrows=True)
            ring.set_title(f"Rail {rail}", color=readable(colours[rail]), loc="center")
            _switch(panels[f"switch {rail}"], rows, colours[rail])
    ports = [end for side in ("port_a", "port_b") for end in _rows(circuits, "ocs", side)]
    used = len(set(ports))
    rings = int((circuits.groupby("rail").size() == len(nodes)).sum())
    every = joined == pairs
    serves = ", so that the same wiring serves ring collectives and all-to-all" if every else ""
    caption = f"""A line of {len(nodes)} nodes of {spoken(name)}: {rings} of its {len(rails)}
        rails visit every node once. Together they join {"" if every else "only "}{joined:,} of the
        {pairs:,} ordered pairs of nodes with {len(circuits):,} circuits{serves}. Below each ring
        are the ports of its optical circuit switch (OCS), on the left those that lead out of a
        node, on the right those that lead in, and the circuits that join them; {used:,} ports are
        used, {len(ports) - used or "none"} twice."""
    parts = "; ".join(
        f"rail {rail}: {phrases(where(circuits, rail=rail), '{node_a} to {node_b}', ', ')}"
        for rail in shown
    )
    alternative = f"""Circles of nodes joined by rail rings, and the circuits of their switches.
        {parts}."""
    return Drawn(caption, alternative, circuits[tables.columns("graph")[1:]])


def _rows(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[column] for column in columns), strict=True))


def _circuits(settings: RailRingsSettings, tables: Tables) -> tuple[str, DataFrame]:
    files = tables.files("graph", settings.only)
    for name, path in files:
        if not (read_frame(path, ["element"])["element"] == "circuit").any():
            continue
        rows = where(
            read_frame(path, tables.columns("graph")), element="circuit", line=settings.line
        )
        rows = rows[rows["dimension"].astype(str).str.lower() == settings.dimension]
        if len(rows):
            numbers = ["ocs", "port_a", "port_b", "rail", "node_a", "node_b"]
            return name, rows.astype(dict.fromkeys(numbers, int))
    raise UserError(
        f"{', '.join(str(path) for _, path in files)}: no circuits in dimension"
        f" {settings.dimension}, line {settings.line}; allowed: a topology with optical switches"
        " and a line that it has"
    )


def _ring(
    axes: Axes, rows: DataFrame, nodes: Sequence[int], colours: dict[int, str], *, arrows: bool
) -> None:
    """Nodes on a circle, clockwise from the top.

    An arc leads from each node to its successor on the rail, bent so that both senses
    show.
    """
    angles = [2 * math.pi * i / len(nodes) for i in range(len(nodes))]
    x, y = ([function(angle) for angle in angles] for function in (math.sin, math.cos))
    position = dict(zip(nodes, zip(x, y, strict=True), strict=True))
    few = len(nodes) <= 16
    size = (9 if arrows else 11) if few else max(2.0, 150 / len(nodes))
    arrow = {
        "arrowstyle": "-|>" if few else "-",
        "linewidth": (1.6 if arrows else 1.3) if few else 0.6,
        "alpha": 1.0 if few else 0.6,
        "mutation_scale": 9,
        "shrinkA": size * 0.62,
        "shrinkB": size * 0.62,
        "connectionstyle": f"arc3,rad={0.0 if arrows else 0.09}",
    }
    for rail, start, end in _rows(rows, "rail", "node_a", "node_b"):
        style = {**arrow, "color": colours[rail]}
        axes.annotate("", position[end], position[start], arrowprops=style)
    hollow = dot("white", size * 1.25, markeredgecolor=INK, markeredgewidth=1.0, zorder=3)
    axes.plot(x, y, **hollow)
    for node in nodes if few else ():
        axes.text(*position[node], str(node), ha="center", va="center", zorder=4)
    axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    axes.set_axis_off()


def _switch(axes: Axes, rows: DataFrame, colour: str) -> None:
    """The ports of one optical switch in two columns, a line for each circuit.

    Every port is used at most once.
    """
    left, right = (
        {port: i for i, port in enumerate(sorted(rows[side]))} for side in ("port_a", "port_b")
    )
    count = max(len(left), len(right))
    few = count <= 16
    for a, b in _rows(rows, "port_a", "port_b"):
        width = 1.5 if few else 0.5
        ends = [left[a], right[b]]
        axes.plot([0, 1], ends, color=colour, linewidth=width, solid_capstyle="round")
    for x, side, ports in ((0, "a", left), (1, "b", right)):
        square = dot(INK, 5.5 if few else 1.5, marker="s", zorder=3)
        axes.plot([x] * len(ports), [*ports.values()], **square)
        names = [f"port_{side}", f"node_{side}"]
        for port, node in sorted(_rows(rows, *names)) if few else ():
            text = f"p{port} · {node}" if x else f"{node} · p{port}"
            align = "left" if x else "right"
            beside(axes, text, x, ports[port], 7 if x else -7, ha=align, color=GREY)
    switches = ", ".join(map(str, sorted(set(rows["ocs"]))))
    axes.set_title(f"OCS {switches}", loc="center", fontweight="normal", color=INK)
    axes.set(xlim=(-0.85, 1.85) if few else (-0.2, 1.2), ylim=(count - 0.4, -0.6))
    axes.fill_between([-0.12, 1.12], -0.5, count - 0.5, color=lighter(GREY, 0.88), zorder=0)
    below = "node · port      port · node" if few else "ports"
    axes.text(0.5, count - 0.45, below, ha="center", va="top", color=GREY)
    axes.set_axis_off()
