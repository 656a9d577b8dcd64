"""Rail-optimised network: chips of equal rank share leaf switches below a spine.

A leaf switch is shared by the servers of a pod, and the spine joins all rails. A server
is g chips behind a scale-up switch. A leaf (rail) switch of k ports serves one rank of
the k/2 servers of a pod and has k/2 ports up. The spine's p g / 2 switches spread their
ports over all p g leaves alike, so that every chip can send at full rate to any other
(full bisection). A chip has one port in each of ``planes`` such networks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.rail_optimised.settings import RailOptimisedSettings
from railx.settings import SettingsError
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.servers import scale_up_links
from railx.vocabulary.topology import Topology, check_size, chip_nodes, join_links

__all__ = ["bisection_ports", "build", "check", "halves", "ports_per_chip"]


def check(settings: RailOptimisedSettings) -> None:
    """Refuse pods that no spine joins alike, and more links than fit in memory."""
    k, rails = settings.switch_radix, settings.rail_switches
    if settings.tiers != 2:
        raise SettingsError("tiers", f"got {settings.tiers}; allowed: 2, rail switches and spine")
    if rails % 2 or k % rails:
        raise SettingsError(
            "pods",
            f"got {settings.pods}; allowed: pods * chips_per_server even and a divisor of"
            f" switch_radix = {k}, so that every spine switch joins all {rails} rail switches"
            f" alike; {settings.pods_that_work()}",
        )
    full = settings.pods * settings.servers_per_pod
    if settings.servers != full:
        raise SettingsError(
            "populated_servers",
            f"got {settings.populated_servers}; allowed: null or {full}, a graph is of full pods",
        )
    check_size("switch_radix", 2 * settings.chips * (1 + 2 * settings.planes))


def build(settings: RailOptimisedSettings) -> Topology:
    """Build the network.

    Switches: the scale-up switches, then plane by plane the rail switches (pod by pod)
    and the spine.
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
        settings=settings,
        chips=chips,
        nodes=settings.servers,
        switches=settings.servers + per_plane * settings.planes,
        chip_node=chip_nodes(chips, g),
        links=join_links(links),
        circuits=None,
    )


def halves(settings: RailOptimisedSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the pods are cut in the middle.

    A single pod is cut between its servers. The spine is in half 1.
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
    """Ports of a chip to the rails: one in each plane.

    The link to the scale-up switch does not leave the server.
    """
    return settings.planes
