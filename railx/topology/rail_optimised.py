"""Rail-optimised network: chips of equal rank in all servers of a pod share a leaf
switch, and a spine joins all rails.

A server is g chips behind a scale-up switch. A leaf (rail) switch of k ports serves one
rank of the k/2 servers of a pod and has k/2 ports up; the spine's p g / 2 switches
spread their ports over all p g leaves alike, so that every chip can send at full rate
to any other (full bisection). A chip has one port in each of ``planes`` such networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.settings import AtLeast, NonNegative, Positive, SettingsError, to_dict
from railx.topology.duplex import duplex_links
from railx.topology.model import Topology, check_size, chip_nodes, join_links
from railx.topology.servers import scale_up_links

__all__ = ["RailOptimisedSettings", "bisection_ports", "build", "halves", "ports_per_chip"]


@dataclass(frozen=True)
class RailOptimisedSettings:
    """``pods`` of switch_radix / 2 servers with ``chips_per_server`` chips; chip i of
    server a is number a * chips_per_server + i.

    ``planes``: parallel rail networks, one port of each chip in every plane.
    ``scale_up_width``: rate of a chip's link to its scale-up switch over the rate of
    all its ports together. ``leaf_latency_ns``: between a chip and its rail switch;
    ``global_latency_ns``: between rail switch and spine.
    """

    family: Literal["rail_optimised"]
    chips_per_server: Annotated[int, AtLeast(1)]
    pods: Annotated[int, AtLeast(1)]
    switch_radix: Annotated[int, AtLeast(4)]
    planes: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    scale_up_width: Annotated[float, Positive()]
    scale_up_latency_ns: Annotated[float, NonNegative()]
    leaf_latency_ns: Annotated[float, NonNegative()]
    global_latency_ns: Annotated[float, NonNegative()]

    def __post_init__(self) -> None:
        k, rails = self.switch_radix, self.rail_switches
        if k % 2:
            raise SettingsError(
                "switch_radix",
                f"got {k}; allowed: an even number, half of the ports face up; the nearest are"
                f" {k - 1} and {k + 1}",
            )
        if rails % 2 or k % rails:
            raise SettingsError(
                "pods",
                f"got {self.pods}; allowed: pods * chips_per_server even and a divisor of"
                f" switch_radix = {k}, so that every spine switch joins all {rails} rail switches"
                f" alike; {self._pods_that_work()}",
            )
        check_size("switch_radix", 2 * self.chips * (1 + 2 * self.planes))

    def _pods_that_work(self) -> str:
        k, g = self.switch_radix, self.chips_per_server
        fits = [pods for pods in range(1, k // g + 1) if pods * g % 2 == 0 and k % (pods * g) == 0]
        if not fits:
            fewest = 1 if g % 2 == 0 else 2
            radix = max(1, round(k / (fewest * g))) * fewest * g
            return (
                f"no number of pods fits this radix; the nearest is switch_radix {radix} with"
                f" {fewest} pods"
            )
        around = [
            max([p for p in fits if p < self.pods], default=None),
            min([p for p in fits if p > self.pods], default=None),
        ]
        near = [str(pods) for pods in around if pods is not None]
        return f"the nearest {'is' if len(near) == 1 else 'are'} {' and '.join(near)}"

    @property
    def servers_per_pod(self) -> int:
        return self.switch_radix // 2

    @property
    def servers(self) -> int:
        return self.pods * self.servers_per_pod

    @property
    def chips(self) -> int:
        return self.servers * self.chips_per_server

    @property
    def rail_switches(self) -> int:
        """Leaf switches of a plane: one for each rank in each pod."""
        return self.pods * self.chips_per_server

    @property
    def spines(self) -> int:
        """Spine switches of a plane."""
        return self.rail_switches // 2

    @property
    def spine_lanes(self) -> int:
        """Parallel links between a rail switch and a spine switch."""
        return self.switch_radix // self.rail_switches


def build(settings: RailOptimisedSettings) -> Topology:
    """Build the network. Switches: the scale-up switches, then plane by plane the rail
    switches (pod by pod) and the spine.
    """
    g, chips = settings.chips_per_server, settings.chips
    chip = np.arange(chips)
    links = [
        scale_up_links(
            settings.servers,
            g,
            ports=settings.planes,
            port_gbps=settings.port_gbps,
            width=settings.scale_up_width,
            latency_ns=settings.scale_up_latency_ns,
        )
    ]
    per_plane = settings.rail_switches + settings.spines
    for plane in range(settings.planes):
        leaf = chips + settings.servers + plane * per_plane + np.arange(settings.rail_switches)
        spine = leaf[-1] + 1 + np.arange(settings.spines)
        own = leaf[chip // (g * settings.servers_per_pod) * g + chip % g]
        links += [
            duplex_links(
                chip, own, "leaf", gbps=settings.port_gbps, latency_ns=settings.leaf_latency_ns
            ),
            duplex_links(
                leaf[:, None],
                spine[None, :],
                "aggregation",
                gbps=settings.port_gbps,
                latency_ns=settings.global_latency_ns,
                lanes=settings.spine_lanes,
            ),
        ]
    return Topology(
        family=settings.family,
        settings=to_dict(settings),
        chips=chips,
        nodes=settings.servers,
        switches=settings.servers + per_plane * settings.planes,
        chip_node=chip_nodes(chips, g),
        links=join_links(links),
        circuits=None,
    )


def halves(settings: RailOptimisedSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex: the pods are cut in the middle, a single pod
    between its servers; the spine is in half 1.
    """
    if settings.pods > 1:
        in_upper = np.arange(settings.servers) // settings.servers_per_pod >= settings.pods // 2
        leaf = np.repeat(np.arange(settings.pods) >= settings.pods // 2, settings.chips_per_server)
    else:
        in_upper = np.arange(settings.servers) >= settings.servers // 2
        leaf = np.ones(settings.rail_switches, dtype=np.bool_)
    plane = np.concatenate([leaf, np.ones(settings.spines, dtype=np.bool_)])
    return np.concatenate(
        [np.repeat(in_upper, settings.chips_per_server), in_upper, np.tile(plane, settings.planes)]
    ).astype(np.int8)


def bisection_ports(settings: RailOptimisedSettings) -> int:
    """Ports in one direction across that cut: as many as the chips of half 0 have."""
    servers = (
        settings.pods // 2 * settings.servers_per_pod
        if settings.pods > 1
        else settings.servers // 2
    )
    return servers * settings.chips_per_server * settings.planes


def ports_per_chip(settings: RailOptimisedSettings) -> int:
    """Ports of a chip to the rails: one in each plane (the link to the scale-up switch
    does not leave the server).
    """
    return settings.planes
