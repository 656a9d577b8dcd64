"""A non-blocking three-tier fat tree of k-port switches, in as many identical planes as a chip has ports.

Each chip has one port in every plane, and a plane is the k-ary fat tree: k pods of k/2 leaf and k/2 aggregation switches, (k/2)^2
core switches, k^3/4 chips (Leiserson 1985; Al-Fares 2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.settings import AtLeast, NonNegative, Positive, SettingsError, to_dict
from railx.topology.model import Links, Topology, check_size, chip_nodes, join_links, kind_code

__all__ = ["FatTreeSettings", "bisection_ports", "build", "halves"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class FatTreeSettings:
    """``switch_radix``: ports k of a switch, even. ``planes``: parallel trees, one port of each chip in every plane.

    ``leaf_latency_ns``: between a chip and its leaf switch; ``global_latency_ns``: between switches.
    """

    family: Literal["fat_tree"]
    switch_radix: Annotated[int, AtLeast(4)]
    planes: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    leaf_latency_ns: Annotated[float, NonNegative()]
    global_latency_ns: Annotated[float, NonNegative()]

    def __post_init__(self) -> None:
        k = self.switch_radix
        if k % 2:
            raise SettingsError(
                "switch_radix", f"got {k}; allowed: an even number, half of the ports face up; the nearest are {k - 1} and {k + 1}"
            )
        check_size("switch_radix", 6 * self.chips * self.planes)

    @property
    def chips(self) -> int:
        return self.switch_radix**3 // 4


def build(settings: FatTreeSettings) -> Topology:
    """Build the tree. Switches follow the chips: plane by plane, leaves (by pod), then aggregation (by pod), then core."""
    half = settings.switch_radix // 2
    chips, links = settings.chips, []
    for plane in range(settings.planes):
        leaf = chips + plane * 5 * half**2 + np.arange(2 * half**2)
        aggregation = leaf + 2 * half**2
        core = leaf[0] + 4 * half**2 + np.arange(half**2)
        pod_leaf, pod_aggregation = leaf.reshape(-1, half, 1), aggregation.reshape(-1, 1, half)
        links += [
            _tier(settings, "leaf", np.arange(chips), np.repeat(leaf, half)),
            _tier(settings, "aggregation", *np.broadcast_arrays(pod_leaf, pod_aggregation)),
            _tier(settings, "core", *np.broadcast_arrays(aggregation.reshape(-1, half, 1), core.reshape(1, half, half))),
        ]
    return Topology(
        family=settings.family,
        settings=to_dict(settings),
        chips=chips,
        nodes=chips,
        switches=5 * half**2 * settings.planes,
        chip_node=chip_nodes(chips, 1),
        links=join_links(links),
        circuits=None,
    )


def halves(settings: FatTreeSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex: the pods are cut in the middle, and so are the core switches."""
    half = settings.switch_radix // 2
    pods = np.arange(2 * half) >= half
    plane = np.concatenate([np.repeat(pods, half), np.repeat(pods, half), np.arange(half**2) >= half**2 // 2])
    return np.concatenate([np.repeat(pods, half**2), np.tile(plane, settings.planes)]).astype(np.int8)


def bisection_ports(settings: FatTreeSettings) -> int:
    """Ports in one direction across that cut: half of the chips can send at full rate to the other half."""
    return settings.chips // 2 * settings.planes


def _tier(settings: FatTreeSettings, kind: str, lower: IntArray, upper: IntArray) -> Links:
    """Both directions of the links between two tiers; tables are laid out as (link, up then down)."""
    rows = 2 * lower.size
    return Links(
        src=np.stack([lower.ravel(), upper.ravel()], axis=1).ravel().astype(np.int32),
        dst=np.stack([upper.ravel(), lower.ravel()], axis=1).ravel().astype(np.int32),
        kind=np.full(rows, kind_code(kind), dtype=np.int8),
        gbps=np.full(rows, settings.port_gbps),
        latency_ns=np.full(rows, settings.leaf_latency_ns if kind == "leaf" else settings.global_latency_ns),
        rail=np.full(rows, -1, dtype=np.int32),
        lanes=np.ones(rows, dtype=np.int32),
    )
