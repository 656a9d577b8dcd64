"""Checks of the optical circuits of family ``railx_hyperx``."""

from __future__ import annotations

import numpy as np

from railx.families.railx_hyperx.settings import RailXHyperXSettings, grid_of
from railx.vocabulary.circuit_checks import check_ports
from railx.vocabulary.topology import Circuits

__all__ = ["check_circuits"]


def check_circuits(settings: RailXHyperXSettings, circuits: Circuits) -> None:
    """Check the circuits of the all-to-alls; ValueError names the first fault.

    Every port is its node's own. With directed rings every ordered pair of nodes of a
    line is joined by exactly one rail. With undirected rings every unordered pair is
    joined by exactly two.
    """
    grid = grid_of(settings)
    check_ports(circuits, grid, paired=False)
    _check_pairs(circuits, grid.nodes, directed=settings.rings == "directed")


def _check_pairs(circuits: Circuits, nodes: int, *, directed: bool) -> None:
    """Every pair of nodes of a line is joined as its rings say.

    Ordered pairs by exactly one rail, or unordered pairs by exactly two.
    """
    a, b = circuits.node_a.astype(np.int64), circuits.node_b.astype(np.int64)
    if not directed:
        a, b = np.minimum(a, b), np.maximum(a, b)
    side = int(circuits.port_a.max()) // 2 + 1
    wanted = 1 if directed else 2
    pairs, joined = np.unique(a * nodes + b, return_counts=True)
    expected_pairs = 2 * side * side * (side - 1) // wanted
    if len(pairs) != expected_pairs or (joined != wanted).any():
        worst = int(np.abs(joined - wanted).argmax())
        node_a, node_b = divmod(int(pairs[worst]), nodes)
        raise ValueError(
            f"circuits: {len(pairs)} pairs of nodes are joined instead of {expected_pairs}; nodes"
            f" {node_a} and {node_b} by {int(joined[worst])} rails; allowed: each"
            f" {'ordered' if directed else 'unordered'} pair of a line by {wanted}"
        )
