"""The list of network families, and who is asked for what a family knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railx.families import (
    dragonfly,
    fat_tree,
    hammingmesh,
    hyperx,
    imported,
    mesh_2d,
    opus_rails,
    rail_only,
    rail_optimised,
    railx_dragonfly,
    railx_hyperx,
    railx_mixed,
    railx_split,
    railx_torus,
    railx_twisted_torus,
    torus_2d,
    torus_3d,
    tpu_v4,
)
from railx.families.family import Family
from railx.settings import Registered, SettingsError
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import FamilySettings, Topology

__all__ = [
    "FAMILIES",
    "TopologySettings",
    "build_routing",
    "build_topology",
    "check_topology",
    "families_with",
    "family_named",
    "family_of",
    "register",
    "registered",
    "routing_names",
    "static_routing_names",
    "unregister",
]

#: Every network family there is.
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
    imported.FAMILY,
]


def _settings_types() -> Mapping[str, type]:
    return {family.name: family.settings for family in FAMILIES}


#: The settings of any family of the list, told apart by ``family``.
TopologySettings: TypeAlias = Annotated[
    FamilySettings, Registered("family", _settings_types, most=1_000_000)
]


def register(family: Family[Any]) -> None:
    """Add a family to the list; ValueError where its name is taken."""
    if any(known.name == family.name for known in FAMILIES):
        raise ValueError(f"family: got {family.name!r}, which is taken; allowed: another name")
    FAMILIES.append(family)


def unregister(family: Family[Any]) -> None:
    """Take a family off the list again."""
    FAMILIES.remove(family)


@contextmanager
def registered(family: Family[Any]) -> Iterator[Family[Any]]:
    """A family that is on the list inside a ``with`` block only."""
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
    """The family of settings or of a topology.

    Raises SettingsError as :func:`family_named`.
    """
    return family_named(network.family)


def families_with(capability: str) -> str:
    """The names of the families that have a capability, for messages.

    A capability is a field of :class:`Family`.
    """
    return ", ".join(family.name for family in FAMILIES if getattr(family, capability))


def routing_names() -> tuple[str, ...]:
    """The routings that any family offers, each once."""
    return tuple(dict.fromkeys(name for family in FAMILIES for name in family.routings))


def static_routing_names() -> tuple[str, ...]:
    """Those of them whose shares do not depend on queues."""
    return tuple(name for name in routing_names() if name.split("_")[0] != "adaptive")


def check_topology(settings: FamilySettings, key: str = "topology") -> None:
    """Refuse settings that no graph can be built of, in one line below ``key``.

    A bill of materials can be drawn up for networks that are too large to build.
    """
    try:
        family_of(settings).check(settings)
    except SettingsError as error:
        raise error.under(key) from None
    except (OverflowError, MemoryError) as error:
        raise SettingsError(
            key, f"too large to build ({error}); allowed: fewer chips or ports"
        ) from None


def build_topology(settings: FamilySettings) -> Topology:
    """Build the topology that the settings describe.

    Raises SettingsError as :func:`check_topology`.
    """
    check_topology(settings)
    return family_of(settings).build(settings)


def build_routing(
    topology: Topology,
    routing: str,
    destinations: NDArray[np.int32] | None = None,
    *,
    grouped: bool = False,
) -> RoutingTable:
    """The table of a routing, to all chips or to ``destinations`` alone.

    Over all pairs, unless ``grouped``: then with a column for each group of
    destinations where the family's routing has them, which is far smaller on large
    networks. SettingsError names the routings on offer.
    """
    family = family_of(topology)
    if routing not in family.routings:
        raise SettingsError(
            "routing",
            f"got {routing!r}; allowed on {family.name}: {', '.join(family.routings)}",
        )
    table = family.route(topology, routing, destinations)
    return table if grouped else table.over_pairs()
