"""What rails of electrical switches cost that nothing joins.

Each rail is a tree of its own. Between rails a packet first moves inside its server.
"""

from __future__ import annotations

import math
from dataclasses import replace

from railx.families.rail_only.settings import RailOnlySettings
from railx.vocabulary.counts import Bill, Ports, fewest_tiers, rail_tree_ports

__all__ = ["BILL", "ports", "resize"]


def ports(settings: RailOnlySettings) -> Ports:
    """What the rails are built of, and their bandwidths in ports per chip."""
    return rail_tree_ports(
        chips=settings.chips,
        planes=settings.planes,
        tiers=settings.tiers,
        port_gbps=settings.port_gbps,
    )


def resize(settings: RailOnlySettings, chips: int) -> RailOnlySettings:
    """Whole servers that hold the chips, on as few tiers as reach them."""
    servers = max(2, math.ceil(chips / settings.chips_per_server))
    tiers = fewest_tiers(
        servers,
        settings.tiers,
        settings.switch_radix,
        None,
        chips=chips,
        chips_per_end=settings.chips_per_server,
    )
    return replace(settings, servers=servers, tiers=tiers)


BILL = Bill(ports=ports, resize=resize)
