"""A fat tree of k-port switches in two or three tiers, tapered at the leaf or not.

There are as many identical planes as a chip has ports, and each chip has one port in
every plane. A leaf switch has d ports down and u = k - d up (u = d: non-blocking).

Two tiers have k leaves, u spines that join all leaves once each, and k d chips. Three
tiers have k pods of k/2 leaves and u aggregation switches, each of those with k/2 ports
up. Their u k/2 core switches join all pods once each. They have k^2 d / 2 chips, which
is the k-ary fat tree of k^3/4 chips for d = k/2.

Sources: Leiserson 1985; Al-Fares 2008. The two-tier sizes are those of the RailX
simulator's fat-tree inputs (radix 50, 41 and 38 in 8 planes).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.fat_tree.settings import FatTreeSettings
from railx.settings import SettingsError
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.topology import Links, Topology, check_size, chip_nodes, join_links

__all__ = ["bisection_ports", "build", "check", "halves", "ports_per_chip"]

IntArray = NDArray[np.int64]


def check(settings: FatTreeSettings) -> None:
    """Refuse trees that are not whole, and more links than fit in memory."""
    k = settings.switch_radix
    if settings.tiers not in (2, 3):
        raise SettingsError("tiers", f"got {settings.tiers}; allowed: 2, 3")
    if settings.leaf_up != round(settings.uplinks_per_downlink * settings.leaf_down, 9):
        raise SettingsError(
            "taper",
            f"got {settings.taper:g}; allowed: whole ports, null here and leaf_down_ports = "
            f"{settings.leaf_down} come nearest",
        )
    if settings.chips != settings.room:
        raise SettingsError(
            "populated_chips",
            f"got {settings.populated_chips}; allowed: null or {settings.room}, a graph is of a"
            " full tree",
        )
    check_size(
        "switch_radix",
        2
        * settings.planes
        * (settings.chips + settings.leaves * settings.leaf_up + k * settings.core_switches),
    )


def build(settings: FatTreeSettings) -> Topology:
    """Build the tree.

    Switches follow the chips plane by plane: leaves (by pod), then aggregation (by pod)
    or spines, then core. Links of a chip to its leaf are of kind ``leaf``, those to the
    second tier ``aggregation``, those to the third ``core``.
    """
    chips, up, links = settings.chips, settings.leaf_up, []
    for plane in range(settings.planes):
        first = chips + plane * settings.plane_switches
        leaf = first + np.arange(settings.leaves)
        upper = first + settings.leaves + np.arange(settings.upper_switches)
        pods = settings.pods if settings.tiers == 3 else 1
        links += [
            _tier(settings, "leaf", np.arange(chips), np.repeat(leaf, settings.leaf_down)),
            _tier(
                settings,
                "aggregation",
                *np.broadcast_arrays(leaf.reshape(pods, -1, 1), upper.reshape(pods, 1, up)),
            ),
        ]
        if settings.tiers == 3:
            core = (
                first
                + settings.leaves
                + settings.upper_switches
                + np.arange(settings.core_switches)
            )
            links.append(
                _tier(
                    settings,
                    "core",
                    *np.broadcast_arrays(upper.reshape(pods, up, 1), core.reshape(1, up, -1)),
                )
            )
    return Topology(
        settings=settings,
        chips=chips,
        nodes=chips,
        switches=settings.plane_switches * settings.planes,
        chip_node=chip_nodes(chips, 1),
        links=join_links(links),
        circuits=None,
    )


def halves(settings: FatTreeSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the pods (two tiers: the leaves) are cut.

    The cut is in the middle; an odd pod goes to half 1. The core switches are cut in
    the middle, spines all stand in half 1. Either adds one link for every pod of half
    0.
    """
    pods = np.arange(settings.pods) >= settings.pods // 2
    leaf = np.repeat(pods, settings.leaves // settings.pods)
    if settings.tiers == 3:
        core = np.arange(settings.core_switches) >= settings.core_switches // 2
        upper = np.concatenate([np.repeat(pods, settings.leaf_up), core])
    else:
        upper = np.ones(settings.upper_switches, dtype=np.bool_)
    plane = np.concatenate([leaf, upper])
    return np.concatenate(
        [np.repeat(leaf, settings.leaf_down), np.tile(plane, settings.planes)]
    ).astype(np.int8)


def bisection_ports(settings: FatTreeSettings) -> int:
    """Ports in one direction across that cut.

    They are all ports up of the top tier's k//2 pods in the smaller half. Without a
    taper half of the chips can send at full rate to the other half; a taper divides
    that by d / u.
    """
    top = settings.core_switches if settings.tiers == 3 else settings.upper_switches
    return settings.pods // 2 * top * settings.planes


def ports_per_chip(settings: FatTreeSettings) -> int:
    """Ports of a chip: one in each plane."""
    return settings.planes


def _tier(settings: FatTreeSettings, kind: str, lower: IntArray, upper: IntArray) -> Links:
    """Both directions of the links between two tiers.

    Tables are laid out as (link, up then down).
    """
    latency_ns = settings.leaf_latency_ns if kind == "leaf" else settings.global_latency_ns
    return duplex_links(lower, upper, kind, gbps=settings.port_gbps, latency_ns=latency_ns)
