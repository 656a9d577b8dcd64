"""The list of network families, and the functions that look a family up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

from railx.families import (
    cloudmatrix,
    dragonfly,
    dragonfly_plus,
    fat_tree,
    hammingmesh,
    hpn,
    hyperx,
    imported,
    jellyfish,
    khop_ring,
    mesh_2d,
    mixnet,
    opus_rails,
    polarfly,
    polarstar,
    rail_only,
    rail_optimised,
    railx_dragonfly,
    railx_hyperx,
    railx_mixed,
    railx_split,
    railx_torus,
    railx_twisted_torus,
    slim_fly,
    topoopt,
    torus_2d,
    torus_3d,
    tpu_v4,
    ub_mesh,
)
from railx.families.family import Family
from railx.families.nodes import check_node, composed, inside_nodes, order_of
from railx.settings import Registered, SettingsError
from railx.vocabulary.arrays import Int32Array
from railx.vocabulary.placement import Placement, Sizes, run_placement
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import FamilySettings, NodeSettings, Topology, chip_nodes

#: All network families.
FAMILIES: list[Family[Any]] = [
    railx_hyperx.FAMILY,
    railx_torus.FAMILY,
    railx_twisted_torus.FAMILY,
    railx_split.FAMILY,
    railx_dragonfly.FAMILY,
    railx_mixed.FAMILY,
    torus_2d.FAMILY,
    torus_3d.FAMILY,
    mesh_2d.FAMILY,
    hammingmesh.FAMILY,
    hyperx.FAMILY,
    dragonfly.FAMILY,
    fat_tree.FAMILY,
    rail_optimised.FAMILY,
    rail_only.FAMILY,
    opus_rails.FAMILY,
    tpu_v4.FAMILY,
    slim_fly.FAMILY,
    topoopt.FAMILY,
    mixnet.FAMILY,
    polarfly.FAMILY,
    jellyfish.FAMILY,
    polarstar.FAMILY,
    dragonfly_plus.FAMILY,
    cloudmatrix.FAMILY,
    ub_mesh.FAMILY,
    hpn.FAMILY,
    khop_ring.FAMILY,
    imported.FAMILY,
]


#: The settings of any listed family, selected by ``family``.
TopologySettings: TypeAlias = Annotated[
    FamilySettings,
    Registered(
        "family", lambda: {family.name: family.settings for family in FAMILIES}, most=1_000_000
    ),
]


def register(family: Family[Any]) -> None:
    """Add a family to the list; ValueError where its name is taken."""
    if any(listed.name == family.name for listed in FAMILIES):
        raise ValueError(f"family: got {family.name!r}, which is taken; allowed: another name")
    FAMILIES.append(family)


def unregister(family: Family[Any]) -> None:
    """Remove a family from the list."""
    FAMILIES.remove(family)


@contextmanager
def registered(family: Family[Any]) -> Iterator[Family[Any]]:
    """Register a family inside a ``with`` block."""
    register(family)
    try:
        yield family
    finally:
        unregister(family)


def family_named(name: str) -> Family[Any]:
    """The family of this name; SettingsError where the list has none."""
    for family in FAMILIES:
        if family.name == name:
            return family
    names = ", ".join(family.name for family in FAMILIES)
    raise SettingsError("family", f"got {name!r}; allowed: {names}")


def family_of(network: FamilySettings | Topology) -> Family[Any]:
    """The family of settings or of a topology; errors: :func:`family_named`.

    Where ``node`` gives nodes to chips that stand alone, its capabilities are those of
    the network with these nodes.
    """
    family = family_named(network.family)
    settings = network.settings if isinstance(network, Topology) else network
    return family if settings.node is None or family.has_nodes else composed(family)


def check_nodes(settings: FamilySettings) -> None:
    """Refuse a node other than the one that the family's other settings describe."""
    check_node(family_named(settings.family), settings)


def links_inside(settings: FamilySettings) -> list[NodeSettings]:
    """The links inside nodes and on boards of a network, which no bill has."""
    return inside_nodes(family_named(settings.family), settings)


def node_of_chips(settings: FamilySettings, chips: int, chips_per_node: int) -> Int32Array:
    """The node of each chip: runs of chips, or as the nodes of the settings lie."""
    family = family_named(settings.family)
    if settings.node is None or family.has_nodes:
        return chip_nodes(chips, chips_per_node)
    return order_of(family, settings, chips).chip_node


def families_with(capability: str) -> str:
    """The names of the families with a capability, a field of :class:`Family`."""
    return ", ".join(family.name for family in FAMILIES if getattr(family, capability))


def routing_names() -> tuple[str, ...]:
    """The routings that any family offers, without repeats."""
    return tuple(dict.fromkeys(name for family in FAMILIES for name in family.routings))


def static_routing_names() -> tuple[str, ...]:
    """The routings whose shares do not depend on queues."""
    return tuple(name for name in routing_names() if name.split("_")[0] != "adaptive")


def check_topology(settings: FamilySettings, key: str = "topology") -> None:
    """Raise SettingsError below ``key`` for settings without a graph.

    Networks that are too large to build may still have a bill of materials.
    """
    try:
        check_nodes(settings)
        family_of(settings).check(settings)
    except SettingsError as error:
        raise error.under(key) from None
    except (OverflowError, MemoryError) as error:
        raise SettingsError(
            key, f"too large to build ({error}); allowed: fewer chips or ports"
        ) from None


def build_topology(settings: FamilySettings) -> Topology:
    """Build the topology of the settings; errors: :func:`check_topology`."""
    check_topology(settings)
    return family_of(settings).build(settings)


def rank_placement(topology: Topology, sizes: Sizes) -> Placement:
    """The chips of a job of ``sizes``: chips of a node x nodes of a row x of a column.

    Without a layout of the family, runs of chips below the same switches. Raises
    SettingsError("layout") where the job does not fit.
    """
    placement = family_of(topology).placement
    if placement is None:
        return run_placement(topology, sizes)
    return placement(topology.settings, topology, sizes)


def build_routing(
    topology: Topology,
    routing: str,
    destinations: Int32Array | None = None,
    *,
    grouped: bool = False,
) -> RoutingTable:
    """The table of a routing, to all chips or to ``destinations`` alone.

    ``grouped``: with a column per group of destinations where the routing has groups,
    which is far smaller on large networks; else over all pairs. SettingsError names the
    routings of the family.
    """
    family = family_of(topology)
    if routing not in family.routings:
        raise SettingsError(
            "routing", f"got {routing!r}; allowed on {family.name}: {', '.join(family.routings)}"
        )
    table = family.route(topology.settings, topology, routing, destinations)
    return table if grouped else table.over_pairs()
