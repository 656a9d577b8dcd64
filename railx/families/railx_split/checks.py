"""Checks of the optical circuits of family ``railx_split``."""

from __future__ import annotations

from railx.families.railx_split.graph import parts_of
from railx.families.railx_split.settings import RailXSplitSettings, grid_of
from railx.vocabulary.circuit_checks import check_part, check_ports
from railx.vocabulary.topology import Circuits

__all__ = ["check_circuits"]


def check_circuits(settings: RailXSplitSettings, circuits: Circuits) -> None:
    """Check the circuits of the parts; ValueError names the first fault.

    Every port is its node's own. Every pair of a sub-line is joined as often as the
    copies of its part say.
    """
    check_ports(circuits, grid_of(settings), paired=False)
    for dimension, parts in enumerate(parts_of(settings)):
        for part in parts:
            check_part(circuits, dimension, part, directed=settings.rings == "directed")
