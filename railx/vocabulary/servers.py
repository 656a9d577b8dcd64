"""What rail fabrics share: servers of chips behind a scale-up switch."""

from __future__ import annotations

import numpy as np

from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.topology import Links

__all__ = ["scale_up_links"]


def scale_up_links(
    servers: int,
    chips_per_server: int,
    *,
    ports: int,
    port_gbps: float,
    width: float,
    latency_ns: float,
) -> Links:
    """The links of every chip to the scale-up switch of its server.

    ``ports`` lanes of ``width`` times a port each. Chip i of server a is vertex a *
    chips_per_server + i; the scale-up switches are the first switches, in the servers'
    order.
    """
    chip = np.arange(servers * chips_per_server)
    switch = servers * chips_per_server + chip // chips_per_server
    return duplex_links(
        chip, switch, "internal", gbps=port_gbps * width, latency_ns=latency_ns, lanes=ports
    )
