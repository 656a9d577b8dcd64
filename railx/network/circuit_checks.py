"""Checks of the optical circuits of RailX settings against what each setting promises,
counted from the circuits alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_dragonfly import graph as railx_dragonfly
from railx.families.railx_dragonfly.settings import RailXDragonflySettings
from railx.families.railx_hyperx import graph as railx_hyperx
from railx.families.railx_hyperx.settings import RailXHyperXSettings
from railx.families.railx_mixed import graph as railx_mixed
from railx.families.railx_mixed.settings import RailXMixedSettings
from railx.families.railx_split import graph as railx_split
from railx.families.railx_split.settings import RailXSplitSettings
from railx.families.railx_torus import graph as railx_torus
from railx.families.railx_torus.settings import RailXTorusSettings
from railx.families.railx_twisted_torus import graph as railx_twisted_torus
from railx.families.railx_twisted_torus.graph import wrap_shift
from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings
from railx.vocabulary.grid import Grid, line_nodes
from railx.vocabulary.line_parts import LinePart, PartSettings, line_parts
from railx.vocabulary.topology import Circuits

__all__ = ["check_railx_circuits"]

IntArray = NDArray[np.int64]


def check_railx_circuits(settings: Any, circuits: Circuits) -> None:
    """Check that every port is its node's own and that the circuits join what the
    setting says; ValueError names the first fault.

    Torus: neighbours of each line, r times. Twisted torus: neighbours of each row, and
    up each column with the shifted wrap, r times. Split and mixed: in each part, every
    pair of a sub-line as often as its copies say, or the neighbours of its ring.
    Dragonfly: every pair of columns of a row, and every pair of rows in some column.
    Settings of other families are not looked at, and pairs of the 2D HyperX are counted
    by :func:`railx.network.metrics.check_circuits` itself.
    """
    if isinstance(settings, RailXHyperXSettings):
        _check_ports(circuits, railx_hyperx.grid_of(settings), paired=False)
    elif isinstance(settings, RailXTorusSettings):
        _check_ports(circuits, railx_torus.grid_of(settings), paired=False)
        rails = settings.m * settings.n
        for dimension, length in enumerate((settings.x_scale, settings.y_scale)):
            (ring,) = line_parts((PartSettings("ring", rails, length, 1),))
            _check_part(circuits, dimension, ring, directed=True)
    elif isinstance(settings, RailXTwistedTorusSettings):
        _check_ports(circuits, railx_twisted_torus.grid_of(settings), paired=True)
        _check_wraps(circuits, settings)
    elif isinstance(settings, RailXSplitSettings | RailXMixedSettings):
        family = railx_split if isinstance(settings, RailXSplitSettings) else railx_mixed
        _check_ports(circuits, family.grid_of(settings), paired=False)
        for dimension, parts in enumerate(family.parts_of(settings)):
            for part in parts:
                _check_part(circuits, dimension, part, directed=settings.rings == "directed")
    elif isinstance(settings, RailXDragonflySettings):
        _check_ports(circuits, railx_dragonfly.grid_of(settings), paired=False)
        _check_part(
            circuits, 0, railx_dragonfly.row_part(settings), directed=settings.rings == "directed"
        )
        _check_groups(circuits, settings)


def _check_ports(circuits: Circuits, grid: Grid, *, paired: bool) -> None:
    """Port 2p (plus side) or 2p + 1 (minus side) of a switch of a line is the one of
    the node at position p of that line.
    """
    for node, port, side in (
        (circuits.node_a, circuits.port_a, 0),
        (circuits.node_b, circuits.port_b, 1),
    ):
        line, position = circuits.line.astype(np.int64), port.astype(np.int64) // 2
        own_x = line_nodes(grid, 0, line, position)
        own_y = line_nodes(grid, 1, line, position, paired_columns=paired)
        lines = grid.columns // 2 if paired else grid.columns
        exists = np.where(circuits.dimension == 0, line < grid.rows, line < lines)
        astray = (
            (np.where(circuits.dimension == 0, own_x, own_y) != node) | (port % 2 != side) | ~exists
        )
        if astray.any():
            first = int(astray.argmax())
            raise ValueError(
                f"circuits: port {port[first]} of optical switch {circuits.ocs[first]} is not one"
                f" of node {node[first]}'s ports"
            )


def _check_part(circuits: Circuits, dimension: int, part: LinePart, *, directed: bool) -> None:
    """Every sub-line of every line: its arcs are those of the part, each as often as
    the part says.
    """
    own = (
        (circuits.dimension == dimension)
        & (circuits.rail >= part.first_rail)
        & (circuits.rail < part.first_rail + part.rails)
    )
    line = circuits.line[own].astype(np.int64)
    a, b = (port[own].astype(np.int64) // 2 for port in (circuits.port_a, circuits.port_b))
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
    wanted = np.zeros((part.size, part.size), dtype=np.int64)
    place = np.arange(part.size)
    if part.kind == "ring":
        wanted[place, (place + 1) % part.size] = part.rails
    else:
        wanted[:] = part.copies * (1 - np.eye(part.size, dtype=np.int64))
    if part.kind == "all_to_all" and not directed:
        counts, wanted = counts + counts.transpose(0, 2, 1), wanted + wanted.T
    wrong = np.argwhere(counts != wanted)
    if len(wrong):
        at, one, other = wrong[0].tolist()
        raise ValueError(
            f"{where} {sub_lines[at] // length}: places {one} and {other} of a sub-line of"
            f" {part.size} are joined by {counts[at, one, other]} rails; allowed:"
            f" {wanted[one, other]}"
        )


def _check_wraps(circuits: Circuits, settings: RailXTwistedTorusSettings) -> None:
    """Each node's plus side leads to the next of its row and to the next of its column,
    shifted at the wrap, on every rail.
    """
    columns, rows = settings.x_scale, settings.y_scale
    x, y = circuits.node_a % columns, circuits.node_a // columns
    over = y == rows - 1
    along_x = y * columns + (x + 1) % columns
    along_y = (y + 1) % rows * columns + (x + np.where(over, wrap_shift(settings), 0)) % columns
    wrong = np.flatnonzero(circuits.node_b != np.where(circuits.dimension == 0, along_x, along_y))
    if len(wrong):
        k = int(wrong[0])
        raise ValueError(
            f"circuits: nodes {circuits.node_a[k]} and {circuits.node_b[k]} are joined, which are"
            " no neighbours"
        )
    expected = 2 * settings.m * settings.n * columns * rows
    if len(circuits) != expected:
        raise ValueError(
            f"circuits: {len(circuits)} circuits; allowed: {expected}, each rail of each node in"
            " both dimensions"
        )


def _check_groups(circuits: Circuits, settings: RailXDragonflySettings) -> None:
    """Every pair of rows is joined in some column."""
    own = circuits.dimension == 1
    joined = np.eye(settings.rows, dtype=np.bool_)
    a, b = (port[own] // 2 for port in (circuits.port_a, circuits.port_b))
    joined[a, b] = joined[b, a] = True
    if not joined.all():
        one, other = np.argwhere(~joined)[0].tolist()
        raise ValueError(
            f"circuits: no column joins rows {one} and {other}; allowed: every pair of rows in at"
            " least one column"
        )
