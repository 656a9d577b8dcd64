"""Exact loads of uniform traffic on family ``fat_tree``, at any size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.fat_tree.settings import FatTreeSettings
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.topology import Topology, kind_code

__all__ = ["uniform_loads"]


def uniform_loads(topology: Topology, routing: LineRouting) -> NDArray[np.float64]:
    """Equal-cost multi-path.

    A chip spreads over its planes, a switch over its upward ports; up and down carry
    the same. A tapered leaf has fewer ports up than down, and each of them carries so
    much more; so do those of the tier above. All routings load the links alike.
    """
    settings = topology.settings
    assert isinstance(settings, FatTreeSettings)
    taper = settings.leaf_down / settings.leaf_up
    pod = settings.leaf_down * settings.switch_radix // 2
    load = np.zeros(len(topology.links))
    for kind, inside, share in (
        ("leaf", 1, 1.0),
        ("aggregation", settings.leaf_down, taper),
        ("core", pod, taper),
    ):
        outside = (topology.chips - inside) / (topology.chips - 1)
        load[topology.links.kind == kind_code(kind)] = outside * share / settings.planes
    return load
