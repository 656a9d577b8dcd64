"""Checks of the optical circuits of family ``railx_twisted_torus``."""

from __future__ import annotations

import numpy as np

from railx.families.railx_twisted_torus.graph import wrap_shift
from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings, grid_of
from railx.vocabulary.circuit_checks import check_ports
from railx.vocabulary.topology import Circuits

__all__ = ["check_circuits"]


def check_circuits(settings: RailXTwistedTorusSettings, circuits: Circuits) -> None:
    """Check the circuits of the rings; ValueError names the first fault.

    Every port is its node's own. The neighbours of each row, and up each column with
    the shifted wrap, are joined r times.
    """
    check_ports(circuits, grid_of(settings), paired=True)
    _check_wraps(circuits, settings)


def _check_wraps(circuits: Circuits, settings: RailXTwistedTorusSettings) -> None:
    """Each node's plus side leads to the next of its row and of its column.

    The column is shifted at the wrap; all rails are checked.
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
