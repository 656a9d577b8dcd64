"""Checks of the optical circuits of family ``railx_torus``."""

from __future__ import annotations

from railx.families.railx_torus.settings import RailXTorusSettings, grid_of
from railx.vocabulary.circuit_checks import check_part, check_ports
from railx.vocabulary.line_parts import PartSettings, line_parts
from railx.vocabulary.topology import Circuits

__all__ = ["check_circuits"]


def check_circuits(settings: RailXTorusSettings, circuits: Circuits) -> None:
    """Check the circuits of the rings; ValueError names the first fault.

    Every port is its node's own, and the neighbours of each line are joined r times.
    """
    check_ports(circuits, grid_of(settings), paired=False)
    rails = settings.m * settings.n
    for dimension, length in enumerate((settings.x_scale, settings.y_scale)):
        (ring,) = line_parts((PartSettings("ring", rails, length, 1),))
        check_part(circuits, dimension, ring, directed=True)
