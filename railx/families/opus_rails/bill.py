"""What photonic rails cost, as the released cost script of Opus counts them (fig. 15).

Optical ports share transceivers, two of them one in the script.
"""

from __future__ import annotations

import math
from dataclasses import replace

from railx.families.opus_rails.settings import OpusRailsSettings
from railx.vocabulary.counts import Bill, Ports, too_large

__all__ = ["BILL", "ports", "resize"]


def ports(settings: OpusRailsSettings) -> Ports:
    """What the rails are built of, and their injection in ports per chip.

    A port is a transceiver with its optical ports. Two circuits per chip carry no
    all-to-all directly, and what is left over multiple hops depends on the job: neither
    bandwidth has a closed form.
    """
    shared = settings.ocs_ports_per_transceiver
    transceivers = settings.ocs_ports // shared
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps * shared,
        cables={"optical": settings.chips * transceivers},
        injection=transceivers,
        all_to_all=None,
        bisection=None,
        ocs_ports=settings.chips * settings.ocs_ports,
    )


def resize(settings: OpusRailsSettings, chips: int) -> OpusRailsSettings:
    """As many servers as hold the chips."""
    servers = max(2, math.ceil(chips / settings.chips_per_server))
    radix = 2 * settings.servers if settings.ocs_radix is None else settings.ocs_radix
    if 2 * servers > radix:
        raise too_large(
            chips,
            radix // 2 * settings.chips_per_server,
            f"one switch of {radix} ports per rail",
        )
    return replace(settings, servers=servers)


BILL = Bill(ports=ports, resize=resize)
