"""Rail-only network: chips of equal rank in all servers share a rail switch.

Nothing joins the rails but the scale-up switches. It is the rail-optimised network
without its spine: a chip reaches chips of another rank through the scale-up switch of
its own server. Source: Wang et al. 2023, "Optimized network architectures for large
language model training with billions of parameters".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.rail_only.settings import RailOnlySettings
from railx.settings import SettingsError
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.servers import scale_up_links
from railx.vocabulary.topology import Topology, check_size, chip_nodes, join_links

__all__ = ["bisection_ports", "build", "check", "halves", "ports_per_chip"]


def check(settings: RailOnlySettings) -> None:
    """Refuse rails of several tiers, and more links than fit in memory."""
    if settings.tiers != 1:
        raise SettingsError("tiers", f"got {settings.tiers}; allowed: 1, one rail switch per rank")
    check_size("servers", 2 * settings.chips * (1 + settings.planes))


def build(settings: RailOnlySettings) -> Topology:
    """Build the network.

    Switches: the scale-up switches, then plane by plane the rail switches.
    """
    g, chips = settings.chips_per_server, settings.chips
    chip = np.arange(chips)
    plane = np.arange(settings.planes)[:, None]
    links = [
        scale_up_links(
            settings.servers,
            g,
            ports=settings.planes,
            port_gbps=settings.port_gbps,
            width=settings.scale_up_width,
            latency_ns=settings.scale_up_latency_ns,
        ),
        duplex_links(
            chip,
            chips + settings.servers + plane * g + chip % g,
            "leaf",
            gbps=settings.port_gbps,
            latency_ns=settings.leaf_latency_ns,
        ),
    ]
    return Topology(
        settings=settings,
        chips=chips,
        nodes=settings.servers,
        switches=settings.servers + g * settings.planes,
        chip_node=chip_nodes(chips, g),
        links=join_links(links),
        circuits=None,
    )


def halves(settings: RailOnlySettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the servers are cut in the middle.

    The rail switches stand in half 1.
    """
    server = np.arange(settings.servers) >= settings.servers // 2
    rails = np.ones(settings.chips_per_server * settings.planes, dtype=np.bool_)
    return np.concatenate([np.repeat(server, settings.chips_per_server), server, rails]).astype(
        np.int8
    )


def bisection_ports(settings: RailOnlySettings) -> int:
    """Ports in one direction across that cut: as many as the chips of half 0 have."""
    return settings.servers // 2 * settings.chips_per_server * settings.planes


def ports_per_chip(settings: RailOnlySettings) -> int:
    """Ports of a chip to the rails: one in each plane.

    The link to the scale-up switch does not leave the server.
    """
    return settings.planes
