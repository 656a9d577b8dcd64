"""What a HyperX costs (Ahn 2009): routers in a grid, joined along each dimension."""

from __future__ import annotations

import math
from dataclasses import replace

from railx.families.hyperx.settings import HyperXSettings
from railx.vocabulary.counts import Bill, Ports, too_large

__all__ = ["BILL", "ports", "resize"]


def ports(settings: HyperXSettings) -> Ports:
    """What the routers are joined by, and the bandwidths in ports per chip.

    With p chips on a switch all-to-all gets S / p of a port per lane through a
    dimension of size S, capped by the injection. Where the chips are the routers, their
    links have a transceiver at both ends and there are no switches.
    """
    per_router, chips = max(1, settings.chips_per_switch), settings.chips
    planes, lanes, routers = settings.planes, settings.lanes, settings.routers * settings.planes
    between, leaf = settings.line_ports * routers, settings.chips_per_switch * routers
    cut = min(2 * (size // 2) * (size - size // 2) / (size * per_router) for size in settings.shape)
    return Ports(
        chips=chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * leaf, "line": between},
        injection=settings.line_ports if settings.switchless else planes,
        all_to_all=planes * lanes * min(settings.shape) / per_router * (chips - 1) / chips,
        bisection=planes * lanes * cut,
        electrical_switch_ports=0 if settings.switchless else leaf + between,
    )


def resize(settings: HyperXSettings, chips: int) -> HyperXSettings:
    """The narrowest, in as few dimensions, that holds the chips.

    It has no more of them on a switch than keep all-to-all uncut. Where the chips are
    the routers the shape fixes their ports, so that no larger network has the same.
    """
    if settings.switchless:
        if chips > settings.chips:
            raise too_large(chips, settings.chips, "the shape fixes the ports of a chip")
        return settings
    largest, lanes = 0, settings.lanes
    radix = settings.radix if settings.switch_radix is None else settings.switch_radix
    for dimensions in range(1, len(settings.shape) + 1):
        for size in range(2, radix):
            room = min(lanes * size, radix - lanes * dimensions * (size - 1))
            if room < 1:
                break
            largest = max(largest, room * size**dimensions)
            on_switch = math.ceil(chips / size**dimensions)
            if on_switch <= room:
                return replace(settings, shape=(size,) * dimensions, chips_per_switch=on_switch)
    raise too_large(chips, largest, f"{len(settings.shape)} dimensions of {radix}-port switches")


BILL = Bill(ports=ports, resize=resize)
