"""The families of topologies behind one interface: settings in, graph, natural halves
and closed forms out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railx.families.dragonfly import graph as dragonfly
from railx.families.dragonfly.settings import DragonflySettings
from railx.families.fat_tree import graph as fat_tree
from railx.families.fat_tree.settings import FatTreeSettings
from railx.families.hammingmesh import graph as hammingmesh
from railx.families.hammingmesh.settings import HammingMeshSettings
from railx.families.hyperx import graph as hyperx
from railx.families.hyperx.settings import HyperXSettings
from railx.families.mesh_2d import graph as mesh_2d
from railx.families.mesh_2d.settings import Mesh2DSettings
from railx.families.opus_rails import graph as opus_rails
from railx.families.opus_rails.settings import OpusRailsSettings
from railx.families.rail_only import graph as rail_only
from railx.families.rail_only.settings import RailOnlySettings
from railx.families.rail_optimised import graph as rail_optimised
from railx.families.rail_optimised.settings import RailOptimisedSettings
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
from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings
from railx.families.torus_2d import graph as torus_2d
from railx.families.torus_2d.settings import Torus2DSettings
from railx.families.torus_3d import graph as torus_3d
from railx.families.torus_3d.settings import Torus3DSettings
from railx.families.tpu_v4 import graph as tpu_v4
from railx.families.tpu_v4.settings import TpuV4Settings
from railx.settings import load
from railx.vocabulary.topology import Topology

__all__ = [
    "TopologySettings",
    "bisection_ports",
    "build_topology",
    "halves",
    "known_node_hop_counts",
    "optically_switched",
    "ports_per_chip",
    "settings_of",
]

#: The settings of every family, told apart by ``family``.
TopologySettings: TypeAlias = (
    RailXHyperXSettings
    | RailXTorusSettings
    | RailXTwistedTorusSettings
    | RailXSplitSettings
    | RailXDragonflySettings
    | RailXMixedSettings
    | Torus2DSettings
    | FatTreeSettings
    | Mesh2DSettings
    | Torus3DSettings
    | HyperXSettings
    | DragonflySettings
    | HammingMeshSettings
    | RailOptimisedSettings
    | RailOnlySettings
    | OpusRailsSettings
    | TpuV4Settings
)


@dataclass(frozen=True)
class _Family:
    """What a family's module offers."""

    build: Callable[[Any], Topology]
    halves: Callable[[Any], NDArray[np.int8]]
    bisection_ports: Callable[[Any], int]
    ports_per_chip: Callable[[Any], int]
    node_hop_counts: Callable[[Any], NDArray[np.int64]] | None = None


_FAMILIES: dict[str, _Family] = {
    "railx_hyperx": _Family(
        railx_hyperx.build,
        railx_hyperx.halves,
        railx_hyperx.bisection_ports,
        railx_hyperx.ports_per_chip,
    ),
    "railx_torus": _Family(
        railx_torus.build,
        railx_torus.halves,
        railx_torus.bisection_ports,
        railx_torus.ports_per_chip,
    ),
    "railx_dragonfly": _Family(
        railx_dragonfly.build,
        railx_dragonfly.halves,
        railx_dragonfly.bisection_ports,
        railx_dragonfly.ports_per_chip,
        railx_dragonfly.node_hop_counts,
    ),
    "railx_mixed": _Family(
        railx_mixed.build,
        railx_mixed.halves,
        railx_mixed.bisection_ports,
        railx_mixed.ports_per_chip,
    ),
    "railx_split": _Family(
        railx_split.build,
        railx_split.halves,
        railx_split.bisection_ports,
        railx_split.ports_per_chip,
    ),
    "railx_twisted_torus": _Family(
        railx_twisted_torus.build,
        railx_twisted_torus.halves,
        railx_twisted_torus.bisection_ports,
        railx_twisted_torus.ports_per_chip,
        railx_twisted_torus.node_hop_counts,
    ),
    "torus_2d": _Family(
        torus_2d.build, torus_2d.halves, torus_2d.bisection_ports, torus_2d.ports_per_chip
    ),
    "fat_tree": _Family(
        fat_tree.build, fat_tree.halves, fat_tree.bisection_ports, fat_tree.ports_per_chip
    ),
    "mesh_2d": _Family(
        mesh_2d.build,
        mesh_2d.halves,
        mesh_2d.bisection_ports,
        mesh_2d.ports_per_chip,
        mesh_2d.node_hop_counts,
    ),
    "torus_3d": _Family(
        torus_3d.build,
        torus_3d.halves,
        torus_3d.bisection_ports,
        torus_3d.ports_per_chip,
        torus_3d.node_hop_counts,
    ),
    "hyperx": _Family(
        hyperx.build,
        hyperx.halves,
        hyperx.bisection_ports,
        hyperx.ports_per_chip,
        hyperx.node_hop_counts,
    ),
    "dragonfly": _Family(
        dragonfly.build,
        dragonfly.halves,
        dragonfly.bisection_ports,
        dragonfly.ports_per_chip,
        dragonfly.node_hop_counts,
    ),
    "hammingmesh": _Family(
        hammingmesh.build,
        hammingmesh.halves,
        hammingmesh.bisection_ports,
        hammingmesh.ports_per_chip,
        hammingmesh.node_hop_counts,
    ),
    "rail_optimised": _Family(
        rail_optimised.build,
        rail_optimised.halves,
        rail_optimised.bisection_ports,
        rail_optimised.ports_per_chip,
    ),
    "rail_only": _Family(
        rail_only.build, rail_only.halves, rail_only.bisection_ports, rail_only.ports_per_chip
    ),
    "opus_rails": _Family(
        opus_rails.build, opus_rails.halves, opus_rails.bisection_ports, opus_rails.ports_per_chip
    ),
    "tpu_v4": _Family(tpu_v4.build, tpu_v4.halves, tpu_v4.bisection_ports, tpu_v4.ports_per_chip),
}

_SWITCHED = {
    "opus_rails",
    "railx_dragonfly",
    "railx_hyperx",
    "railx_mixed",
    "railx_split",
    "railx_torus",
    "railx_twisted_torus",
    "tpu_v4",
}


def build_topology(settings: TopologySettings) -> Topology:
    """Build the topology that the settings describe."""
    return _FAMILIES[settings.family].build(settings)


def settings_of(topology: Topology) -> TopologySettings:
    """The settings a topology was built from, checked again; SettingsError where its
    file holds others.
    """
    settings: TopologySettings = load(TopologySettings, topology.settings, "topology")
    return settings


def optically_switched(settings: TopologySettings) -> bool:
    """Whether links of the topology run through optical circuit switches, so that it
    has cross-connects.
    """
    return settings.family in _SWITCHED


def halves(settings: TopologySettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex in the family's natural cut."""
    return _FAMILIES[settings.family].halves(settings)


def bisection_ports(settings: TopologySettings) -> int:
    """Closed form of the ports that cross the natural cut in one direction."""
    return _FAMILIES[settings.family].bisection_ports(settings)


def ports_per_chip(settings: TopologySettings) -> int:
    """Ports of a chip, all sides or planes together: injection bandwidth over the
    port's rate (4n on 4 sides).
    """
    return _FAMILIES[settings.family].ports_per_chip(settings)


def known_node_hop_counts(settings: TopologySettings) -> NDArray[np.int64] | None:
    """How many ordered pairs of chips are h inter-node hops apart (index h), where the
    family knows without a search; else None.
    """
    counts = _FAMILIES[settings.family].node_hop_counts
    return None if counts is None else counts(settings)
