"""What a Dragonfly of switches costs (Kim 2008); a plane per port of a chip."""

from __future__ import annotations

import math
from dataclasses import replace

from railx.families.dragonfly.settings import DragonflySettings
from railx.vocabulary.counts import Bill, Ports, dragonfly_hops, too_large

__all__ = ["BILL", "ports", "resize"]


def ports(settings: DragonflySettings) -> Ports:
    """What the groups are built of, and their bandwidths in ports per chip.

    A switch has p ports to chips, a - 1 into its group and h to other groups, all of
    them charged: 4 p - 1 in a balanced network.
    """
    p, groups, planes = settings.p, settings.groups, settings.planes
    switches = settings.switches * planes
    terminal, local, world = p * switches, (settings.a - 1) * switches, settings.h * switches
    cut = 2 * (groups // 2) * (groups - groups // 2) / (groups * (groups - 1))
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * terminal, "local": local, "global": world},
        injection=planes,
        all_to_all=planes * min(_delivered(settings), 1.0),
        bisection=planes * cut * (settings.h / p),
        electrical_switch_ports=terminal + local + world,
    )


def resize(settings: DragonflySettings, chips: int) -> DragonflySettings:
    """As many groups as hold the chips."""
    group, most = settings.p * settings.a, settings.a * settings.h + 1
    groups = max(2, math.ceil(chips / group))
    if groups > most:
        raise too_large(chips, most * group, f"one link between any two groups of {group} chips")
    return replace(settings, groups=groups)


def _delivered(settings: DragonflySettings) -> float:
    """Uniform traffic that the links carry, in ports of a plane per chip.

    The links are those inside and between groups.
    """
    inside, between = dragonfly_hops(settings.a, settings.groups, settings.p)
    share = settings.h / settings.p / between
    return min((settings.a - 1) / settings.p / inside, share) if inside else share


BILL = Bill(ports=ports, resize=resize, copper=("leaf", "local"))
