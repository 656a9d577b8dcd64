"""Checks of the optical circuits of a grid of nodes, from the circuits alone."""

from __future__ import annotations

import numpy as np

from railx.vocabulary.grid import Grid, line_nodes
from railx.vocabulary.line_parts import LinePart
from railx.vocabulary.topology import Circuits


def check_ports(circuits: Circuits, grid: Grid, *, paired: bool) -> None:
    """Check that every port of a switch belongs to the node at its position.

    The node at position p of a line owns the ports 2p (plus side) and 2p + 1 (minus
    side) of every switch of the line.
    """
    ends = ((circuits.node_a, circuits.port_a), (circuits.node_b, circuits.port_b))
    for side, (node, port) in enumerate(ends):
        line, position = circuits.line.astype(np.int64), port.astype(np.int64) // 2
        in_row, lines = circuits.dimension == 0, grid.columns // 2 if paired else grid.columns
        node_y = line_nodes(grid, 1, line, position, paired_columns=paired)
        owner = np.where(in_row, line_nodes(grid, 0, line, position), node_y)
        exists = line < np.where(in_row, grid.rows, lines)
        astray = (owner != node) | (port % 2 != side) | ~exists
        if astray.any():
            first = int(astray.argmax())
            raise ValueError(
                f"circuits: port {port[first]} of optical switch {circuits.ocs[first]} is not one"
                f" of node {node[first]}'s ports"
            )


def check_part(circuits: Circuits, dimension: int, part: LinePart, *, directed: bool) -> None:
    """Check that the arcs of all sub-lines are those of the part."""
    rail = circuits.rail - part.first_rail
    in_part = (circuits.dimension == dimension) & (rail >= 0) & (rail < part.rails)
    line = circuits.line[in_part].astype(np.int64)
    a, b = (port[in_part].astype(np.int64) // 2 for port in (circuits.port_a, circuits.port_b))
    first_a, first_b = (part.move(p, np.zeros_like(p)) for p in (a, b))
    where = f"circuits: {'row' if dimension == 0 else 'column'}"
    strays = np.flatnonzero(first_a != first_b)
    if len(strays):
        k = int(strays[0])
        raise ValueError(
            f"{where} {line[k]}: positions {a[k]} and {b[k]} are joined; allowed: only positions of"
            " one sub-line"
        )
    length = int(max(a.max(), b.max())) + 1
    sub_lines, which = np.unique(line * length + first_a, return_inverse=True)
    counts = np.zeros((len(sub_lines), part.size, part.size), dtype=np.int64)
    np.add.at(counts, (which, part.coordinate(a), part.coordinate(b)), 1)
    itself = np.eye(part.size, dtype=np.int64)
    next_in_ring = np.roll(itself, 1, axis=1)
    expected = part.copies * (next_in_ring if part.kind == "ring" else 1 - itself)
    if part.kind == "all_to_all" and not directed:
        counts, expected = counts + counts.transpose(0, 2, 1), expected + expected.T
    wrong = np.argwhere(counts != expected)
    if len(wrong):
        at, a, b = wrong[0].tolist()
        raise ValueError(
            f"{where} {sub_lines[at] // length}: places {a} and {b} of a sub-line of"
            f" {part.size} are joined by {counts[at, a, b]} rails; allowed: {expected[a, b]}"
        )
