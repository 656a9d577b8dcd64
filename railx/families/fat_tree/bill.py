"""What a fat tree costs; each port of a chip is an end port of it, in its own plane."""

from __future__ import annotations

import math
from dataclasses import replace

from railx.families.fat_tree.settings import FatTreeSettings
from railx.vocabulary.counts import Bill, Ports, TreeBill, fewest_tiers, largest_tree

__all__ = ["BILL", "artifact_switch_ports", "filled", "ports", "resize"]


def ports(settings: FatTreeSettings) -> Ports:
    """What the tree is built of, and its bandwidths in ports per chip.

    A full tree of T tiers has 2 T - 1 switch ports and 2 T transceivers per end port;
    the top tier has no ports upwards.
    """
    ends, levels = settings.chips * settings.planes, settings.tiers - 1
    uplinks = math.ceil(ends * settings.uplinks_per_downlink) if levels else 0
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * ends, "uplink": 2 * levels * uplinks},
        injection=settings.planes,
        all_to_all=settings.planes * _delivered(settings),
        bisection=settings.planes * settings.uplinks_per_downlink,
        electrical_switch_ports=ends + 2 * levels * uplinks,
    )


def resize(settings: FatTreeSettings, chips: int) -> FatTreeSettings:
    """A tree of so many chips with as few tiers as reach them."""
    tiers = fewest_tiers(
        chips, settings.tiers, settings.switch_radix, settings.leaf_down, chips=chips
    )
    return replace(settings, tiers=tiers, populated_chips=chips)


def filled(settings: FatTreeSettings, tiers: int, taper: float) -> FatTreeSettings:
    """The tree with other tiers and another taper.

    It has as many of its chips as then fit: what matters here is the cost of an end
    port, whatever the size.
    """
    whole = replace(settings, tiers=tiers, taper=taper, leaf_down_ports=None, populated_chips=None)
    room = largest_tree(tiers, whole.switch_radix, whole.leaf_down)
    return replace(whole, populated_chips=min(settings.chips, room))


def artifact_switch_ports(chips: int) -> int:
    """Switch ports as the released cost script of Opus counts them (fig. 15).

    A tree of k-port switches with k = round((4 G)^(1/3)) for G chips, whole: k^2 +
    floor(k^2 / 4) switches.
    """
    radix = round((4 * chips) ** (1 / 3))
    return int(radix * (radix**2 + radix**2 // 4))


def _delivered(settings: FatTreeSettings) -> float:
    """Share of the injection that the uplinks of a leaf give to uniform traffic."""
    taper, under, chips = settings.uplinks_per_downlink, settings.leaf_down, settings.chips
    if taper >= 1 or under >= chips:
        return 1.0
    return min(1.0, taper * (chips - 1) / (chips - under))


BILL = Bill(
    ports=ports,
    resize=resize,
    copper=("leaf",),
    tree=TreeBill(tiers=lambda settings: settings.tiers, filled=filled, leaf="leaf"),
)
