"""A fat tree of k-port switches, two or three tiers, in as many identical planes as a
chip has ports, tapered at the leaf or not.

Each chip has one port in every plane. A leaf switch has d ports down and u = k - d up
(u = d: non-blocking). Two tiers: k leaves, and u spines that join all leaves once each;
k d chips. Three tiers: k pods of k/2 leaves and u aggregation switches, each of those
with k/2 ports up, u k/2 core switches that join all pods once each; k^2 d / 2 chips,
which is the k-ary fat tree of k^3/4 chips for d = k/2. Sources: Leiserson 1985;
Al-Fares 2008; the two-tier sizes are those of the RailX simulator's fat-tree inputs
(radix 50, 41 and 38 in 8 planes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.settings import AtLeast, NonNegative, Positive, SettingsError, to_dict
from railx.topology.duplex import duplex_links
from railx.topology.model import Links, Topology, check_size, chip_nodes, join_links

__all__ = ["FatTreeSettings", "bisection_ports", "build", "halves", "ports_per_chip"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class FatTreeSettings:
    """``switch_radix``: ports k of a switch. ``planes``: parallel trees, one port of
    each chip in every plane.

    ``leaf_down_ports``: ports d of a leaf switch to chips, the other k - d face up;
    null: half of them (non-blocking). ``leaf_latency_ns``: between a chip and its leaf
    switch; ``global_latency_ns``: between switches.
    """

    family: Literal["fat_tree"]
    tiers: Literal[2, 3]
    switch_radix: Annotated[int, AtLeast(4)]
    leaf_down_ports: Annotated[int, AtLeast(1)] | None
    planes: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    leaf_latency_ns: Annotated[float, NonNegative()]
    global_latency_ns: Annotated[float, NonNegative()]

    def __post_init__(self) -> None:
        k = self.switch_radix
        if k % 2 and (self.tiers == 3 or self.leaf_down_ports is None):
            way = "" if self.tiers == 3 else ", or leaf_down_ports given"
            raise SettingsError(
                "switch_radix",
                f"got {k}; allowed: an even number{way}, half of the ports face up; the nearest are"
                f" {k - 1} and {k + 1}",
            )
        if self.leaf_down_ports is not None and self.leaf_down_ports >= k:
            raise SettingsError(
                "leaf_down_ports",
                f"got {self.leaf_down_ports}; allowed: 1 to {k - 1} of {k} ports, one at least"
                f" faces up; the nearest is {k - 1}",
            )
        check_size(
            "switch_radix",
            2 * self.planes * (self.chips + self.leaves * self.leaf_up + k * self.core_switches),
        )

    @property
    def leaf_down(self) -> int:
        """Chips below a leaf switch."""
        return self.switch_radix // 2 if self.leaf_down_ports is None else self.leaf_down_ports

    @property
    def leaf_up(self) -> int:
        """Ports of a leaf switch to the tier above, each to another switch."""
        return self.switch_radix - self.leaf_down

    @property
    def pods(self) -> int:
        """Parts that only the top tier joins: pods in three tiers, leaves in two."""
        return self.switch_radix

    @property
    def leaves(self) -> int:
        """Leaf switches of a plane."""
        return self.switch_radix * (self.switch_radix // 2 if self.tiers == 3 else 1)

    @property
    def upper_switches(self) -> int:
        """Switches of a plane in the second tier: spines of a two-tier tree,
        aggregation switches of all pods in three tiers.
        """
        return self.leaf_up * (self.switch_radix if self.tiers == 3 else 1)

    @property
    def core_switches(self) -> int:
        """Switches of a plane in the third tier."""
        return self.leaf_up * (self.switch_radix // 2) if self.tiers == 3 else 0

    @property
    def plane_switches(self) -> int:
        """Switches of a plane, all tiers."""
        return self.leaves + self.upper_switches + self.core_switches

    @property
    def chips(self) -> int:
        return self.leaves * self.leaf_down


def build(settings: FatTreeSettings) -> Topology:
    """Build the tree. Switches follow the chips: plane by plane, leaves (by pod), then
    aggregation (by pod) or spines, then core.

    Links of a chip to its leaf are of kind ``leaf``, those to the second tier
    ``aggregation``, those to the third ``core``.
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
        family=settings.family,
        settings=to_dict(settings),
        chips=chips,
        nodes=chips,
        switches=settings.plane_switches * settings.planes,
        chip_node=chip_nodes(chips, 1),
        links=join_links(links),
        circuits=None,
    )


def halves(settings: FatTreeSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex: the pods (two tiers: the leaves) are cut in the
    middle, an odd one goes to half 1.

    The core switches are cut in the middle, spines all stand in half 1; either way each
    adds one link for every pod of half 0.
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
    """Ports in one direction across that cut: all ports up of the top tier's k//2 pods
    in the smaller half.

    Without a taper half of the chips can send at full rate to the other half; a taper
    divides that by d / u.
    """
    top = settings.core_switches if settings.tiers == 3 else settings.upper_switches
    return settings.pods // 2 * top * settings.planes


def ports_per_chip(settings: FatTreeSettings) -> int:
    """Ports of a chip: one in each plane."""
    return settings.planes


def _tier(settings: FatTreeSettings, kind: str, lower: IntArray, upper: IntArray) -> Links:
    """Both directions of the links between two tiers; tables are laid out as (link, up
    then down).
    """
    latency_ns = settings.leaf_latency_ns if kind == "leaf" else settings.global_latency_ns
    return duplex_links(lower, upper, kind, gbps=settings.port_gbps, latency_ns=latency_ns)
