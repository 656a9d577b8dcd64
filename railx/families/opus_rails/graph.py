"""Photonic rails: chips of equal rank in all servers share an optical circuit switch.

A server is g chips behind a scale-up switch. Every chip has ``ocs_ports`` optical
ports, two on each of its switches, so that it can sit in one ring (or face two peers)
per switch. This is the static setting, a ring over all servers on every switch.
Reconfiguration changes the circuits between phases of a job and is not part of the
graph.

Source: Opus (photonic rails; two ports per chip).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.opus_rails.settings import OpusRailsSettings
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.servers import scale_up_links
from railx.vocabulary.topology import Circuits, Topology, check_size, chip_nodes, join_links

__all__ = ["bisection_ports", "build", "check", "halves", "ports_per_chip"]


def check(settings: OpusRailsSettings) -> None:
    """Refuse more links than fit in memory."""
    check_size("servers", settings.chips * (2 + settings.ocs_ports))


def build(settings: OpusRailsSettings) -> Topology:
    """Build the network.

    Optical switch and rail of ring j of rank i: i * ocs_ports / 2 + j; the only
    switches are scale-up ones.

    Optical switch and rail of ring j of rank i: i * ocs_ports / 2 + j; the only
    switches are scale-up ones. Circuits: dimension x, ``line`` = rail, nodes = servers;
    server a owns the ports 2a (towards a + 1) and 2a + 1.
    """
    g, own = settings.chips_per_server, settings.rings_per_chip
    rail, a = np.indices((g * own, settings.servers)).reshape(2, -1)
    b = (a + 1) % settings.servers
    links = [
        scale_up_links(
            settings.servers,
            g,
            ports=settings.ocs_ports,
            port_gbps=settings.port_gbps,
            width=settings.scale_up_width,
            latency_ns=settings.scale_up_latency_ns,
        ),
        duplex_links(
            a * g + rail // own,
            b * g + rail // own,
            "optical",
            gbps=settings.port_gbps,
            latency_ns=settings.external_latency_ns,
            rail=rail,
        ),
    ]
    return Topology(
        settings=settings,
        chips=settings.chips,
        nodes=settings.servers,
        switches=settings.servers,
        chip_node=chip_nodes(settings.chips, g),
        links=join_links(links),
        circuits=Circuits(
            ocs=rail.astype(np.int32),
            port_a=(2 * a).astype(np.int32),
            port_b=(2 * b + 1).astype(np.int32),
            rail=rail.astype(np.int32),
            dimension=np.zeros(len(rail), dtype=np.int8),
            line=rail.astype(np.int32),
            node_a=a.astype(np.int32),
            node_b=b.astype(np.int32),
        ),
    )


def halves(settings: OpusRailsSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex: the servers are cut in the middle."""
    server = np.arange(settings.servers) >= settings.servers // 2
    return np.concatenate([np.repeat(server, settings.chips_per_server), server]).astype(np.int8)


def bisection_ports(settings: OpusRailsSettings) -> int:
    """Ports in one direction across that cut: each ring crosses it twice."""
    return 2 * settings.chips_per_server * settings.rings_per_chip


def ports_per_chip(settings: OpusRailsSettings) -> int:
    """Optical ports of a chip.

    The link to the scale-up switch does not leave the server.
    """
    return settings.ocs_ports
