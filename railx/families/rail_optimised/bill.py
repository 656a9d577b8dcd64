"""What rails of electrical switches cost that a spine joins.

They are a fat tree over all chips, each port of a chip in a plane of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from railx.families.rail_optimised.settings import RailOptimisedSettings
from railx.settings import SettingsError
from railx.vocabulary.counts import Bill, Ports, fewest_tiers, largest_tree, rail_tree_ports

__all__ = ["BILL", "artifact_switch_ports", "check", "ports", "resize"]


def check(settings: RailOptimisedSettings) -> None:
    """Refuse more chips than the tiers reach."""
    largest = largest_tree(settings.tiers, settings.switch_radix)
    if settings.chips > largest:
        servers = largest // settings.chips_per_server
        raise SettingsError(
            "tiers",
            f"got {settings.tiers} for {settings.servers} servers; allowed: at most {servers}"
            f" servers with {settings.tiers} tiers of {settings.switch_radix}-port switches; the"
            f" nearest is {servers}",
        )


def ports(settings: RailOptimisedSettings) -> Ports:
    """What the rails are built of, and their bandwidths in ports per chip."""
    return rail_tree_ports(
        chips=settings.chips,
        planes=settings.planes,
        tiers=settings.tiers,
        port_gbps=settings.port_gbps,
    )


def resize(settings: RailOptimisedSettings, chips: int) -> RailOptimisedSettings:
    """Whole servers that hold the chips, on as few tiers as reach them."""
    servers = max(2, math.ceil(chips / settings.chips_per_server))
    ends = servers * settings.chips_per_server
    tiers = fewest_tiers(ends, settings.tiers, settings.switch_radix, None, chips=chips)
    pods = math.ceil(servers / settings.servers_per_pod)
    return replace(settings, tiers=tiers, pods=pods, populated_servers=servers)


def artifact_switch_ports(servers: int, rails: int) -> int:
    """Switch ports as the released cost script of Opus counts them (fig. 15).

    Switches have k = round(sqrt(4 S)) ports for S servers. There are 2 floor(S /
    floor(k/2)) leaves per rail and rails S / k spines, and all their ports count.
    """
    radix = round(math.sqrt(4 * servers))
    return radix * (rails * 2 * (servers // (radix // 2)) + rails * servers // radix)


def _opus_artifact(settings: RailOptimisedSettings, *, switch_side: bool) -> Ports:
    """The same for a network of ours, a port per chip.

    Transceivers stand at the chips, and where ``switch_side`` at every switch port too.
    """
    chips = settings.servers * settings.chips_per_server
    switch_ports = artifact_switch_ports(settings.servers, settings.chips_per_server)
    return Ports(
        chips=chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": chips + (switch_ports if switch_side else 0)},
        injection=1,
        all_to_all=1,
        bisection=1,
        electrical_switch_ports=switch_ports,
    )


BILL = Bill(
    ports=ports,
    resize=resize,
    check=check,
    countings={
        "opus_artifact": lambda settings: _opus_artifact(settings, switch_side=False),
        "opus_artifact_both_ends": lambda settings: _opus_artifact(settings, switch_side=True),
    },
)
