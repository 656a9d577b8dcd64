"""The network families: one folder per family, and one list of them.

A folder's ``__init__`` defines ``FAMILY``, the record of all that the family can do.
Other rooms ask this record (:func:`family_of`) and never compare a family's name.
"""

from railx.families.family import Family
from railx.families.registry import (
    FAMILIES,
    TopologySettings,
    build_routing,
    build_topology,
    check_topology,
    families_with,
    family_named,
    family_of,
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
    "TopologySettings",
    "build_routing",
    "build_topology",
    "check_topology",
    "families_with",
    "family_named",
    "family_of",
    "read_topology",
    "register",
    "registered",
    "routing_names",
    "static_routing_names",
    "unregister",
    "write_topology",
]
