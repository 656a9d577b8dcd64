"""The network families: one module or package per family, and one list of them.

Every module defines ``FAMILY``, the record of the family's capabilities. Other rooms
ask this record (:func:`family_of`) and never compare a family's name.
"""

from railx.families.family import Family, FamilyBase, LineGraph, Lines
from railx.families.registry import (
    FAMILIES,
    TopologySettings,
    build_routing,
    build_topology,
    check_nodes,
    check_topology,
    families_with,
    family_named,
    family_of,
    links_inside,
    rank_placement,
    register,
    registered,
    routing_names,
    static_routing_names,
    unregister,
)
from railx.families.topology_file import read_topology, write_topology

__all__ = [
    "FAMILIES",
    "Family",
    "FamilyBase",
    "LineGraph",
    "Lines",
    "TopologySettings",
    "build_routing",
    "build_topology",
    "check_nodes",
    "check_topology",
    "families_with",
    "family_named",
    "family_of",
    "links_inside",
    "rank_placement",
    "read_topology",
    "register",
    "registered",
    "routing_names",
    "static_routing_names",
    "unregister",
    "write_topology",
]
