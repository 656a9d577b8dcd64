"""Checks of the optical circuits of family ``railx_dragonfly``."""

from __future__ import annotations

import numpy as np

from railx.families.railx_dragonfly.graph import row_part
from railx.families.railx_dragonfly.settings import RailXDragonflySettings, grid_of
from railx.vocabulary.circuit_checks import check_part, check_ports
from railx.vocabulary.topology import Circuits

__all__ = ["check_circuits"]


def check_circuits(settings: RailXDragonflySettings, circuits: Circuits) -> None:
    """Check the circuits of the groups; ValueError names the first fault.

    Every port is its node's own. Every pair of columns of a row is joined, and every
    pair of rows in some column.
    """
    check_ports(circuits, grid_of(settings), paired=False)
    check_part(circuits, 0, row_part(settings), directed=settings.rings == "directed")
    _check_groups(circuits, settings)


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
