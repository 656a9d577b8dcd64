"""Photonic rails: chips of equal rank in all servers share an optical circuit switch,
set to rings over all servers.

A server is g chips behind a scale-up switch. Every chip has ``ocs_ports`` optical
ports, two on each of its switches, so that it can sit in one ring (or face two peers) a
switch. This is the static setting, a ring over all servers on every switch;
reconfiguration changes the circuits between phases of a job and is not part of the
graph.

Source: Opus (photonic rails; two ports a chip).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.settings import AtLeast, NonNegative, Positive, SettingsError, to_dict
from railx.topology.duplex import duplex_links
from railx.topology.model import Circuits, Topology, check_size, chip_nodes, join_links
from railx.topology.servers import scale_up_links

__all__ = ["OpusRailsSettings", "bisection_ports", "build", "halves", "ports_per_chip"]


@dataclass(frozen=True)
class OpusRailsSettings:
    """``servers`` of ``chips_per_server`` chips; chip i of server a is number a *
    chips_per_server + i.

    ``ocs_ports``: optical ports of a chip, two on each of ocs_ports / 2 switches of its
    rank. ``ocs_radix``: ports of a switch; null: just enough, 2 servers.
    ``scale_up_width``: rate of a chip's link to its scale-up switch over the rate of
    all its ports together. ``external_latency_ns``: of a circuit.
    """

    family: Literal["opus_rails"]
    chips_per_server: Annotated[int, AtLeast(1)]
    servers: Annotated[int, AtLeast(2)]
    ocs_ports: Annotated[int, AtLeast(2)]
    ocs_radix: Annotated[int, AtLeast(2)] | None
    port_gbps: Annotated[float, Positive()]
    scale_up_width: Annotated[float, Positive()]
    scale_up_latency_ns: Annotated[float, NonNegative()]
    external_latency_ns: Annotated[float, NonNegative()]

    def __post_init__(self) -> None:
        if self.ocs_ports % 2:
            raise SettingsError(
                "ocs_ports",
                f"got {self.ocs_ports}; allowed: an even number, two for each ring; the nearest are"
                f" {self.ocs_ports - 1} and {self.ocs_ports + 1}",
            )
        if self.ocs_radix is not None and self.ocs_radix < 2 * self.servers:
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: at least {2 * self.servers}, two ports for each of"
                f" {self.servers} servers (or at most {self.ocs_radix // 2} servers for this"
                " radix)",
            )
        check_size("servers", self.chips * (2 + self.ocs_ports))

    @property
    def chips(self) -> int:
        return self.servers * self.chips_per_server

    @property
    def rings_per_chip(self) -> int:
        """Optical switches, and so rings, that a chip is plugged into."""
        return self.ocs_ports // 2


def build(settings: OpusRailsSettings) -> Topology:
    """Build the network. Optical switch and rail of ring j of rank i: i * ocs_ports / 2
    + j; the only switches are scale-up ones.

    Circuits: dimension x, ``line`` = rail, nodes = servers; server a owns the ports 2a
    (towards a + 1) and 2a + 1.
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
        family=settings.family,
        settings=to_dict(settings),
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
    """Optical ports of a chip (the link to the scale-up switch does not leave the
    server).
    """
    return settings.ocs_ports
