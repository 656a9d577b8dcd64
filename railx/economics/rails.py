"""Cost and power of rails: electrical, a fat tree and photonic, by size and platform.

Networks are counted in two ways. ``artifact`` is the released cost script of Opus (fig.
15), the source of the published bills. ``used_ports`` is this project's: trees with the
fewest tiers that their switches allow, charged by the port.

The script charges two optical ports for each chip at any size. A rail of S servers
needs 2 S ports, so a switch of R ports ends at R / 2 servers. Larger rails use an
``arrangement``:

* ``one``: a switch with enough ports.
* ``parallel``: two switches per rail, one port of each chip in either. A ring of an
  even number of chips alternates between them; rings of odd length are impossible. It
  costs the same per port and serves R servers.
* ``clos``: leaves and spines of optical switches with as many ports upwards as down. It
  needs 3 ports for each port of a chip and a circuit passes 3 switches. A new circuit
  may have to move others.
* ``clos_strict``: the same with 2 n - 1 ports upwards for n downwards, so that no
  circuit ever has to move.

Light passes three switches in the last two; no source says whether its budget allows
that. Prices of switches other than the priced one are assumed to be its price per port,
times the factors of the settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from railx.economics.catalogue import Catalogue, Rows, read_catalogue
from railx.economics.pricing import Cost, total
from railx.economics.settings import EconomicsSettings, RailPlatform, RailsSettings
from railx.settings import SettingsError
from railx.vocabulary.counts import fewest_tiers, opus_rail_switch_ports, opus_tree_switch_ports

ARRANGEMENTS = ("one", "parallel", "clos", "clos_strict")
#: Optical ports of a chip: one towards either neighbour of a ring (Opus).
_OCS_PORTS_PER_CHIP = 2
_PARTS = ("transceiver", "electrical_switch_port", "ocs_port")
#: Tiers that trees of used ports may have.
_MOST_TIERS = 5
_FIDELITY = "analytic"


@dataclass(frozen=True)
class OpticalRail:
    """How the chips of one rank are joined by optical switches."""

    arrangement: str
    """One of ``ARRANGEMENTS``."""
    switches: int
    """Switches of a rail."""
    ports: int
    """Used ports of a rail."""
    passes: int
    """Switches that a circuit passes."""


def optical_rails(servers: int, radix: int) -> list[OpticalRail]:
    """Every arrangement of ``radix``-port switches that joins ``servers`` servers.

    A Clos network is omitted where one switch is enough.
    """
    ends = _OCS_PORTS_PER_CHIP * servers
    if ends <= radix:
        return [OpticalRail("one", 1, ends, 1)]
    rails = [OpticalRail("parallel", 2, ends, 1)] if servers <= radix else []
    for name, down, up in (
        ("clos", radix // 2, radix // 2),
        ("clos_strict", (radix + 1) // 3, 2 * ((radix + 1) // 3) - 1),
    ):
        leaves = math.ceil(ends / down) if down else radix + 1
        if leaves <= radix:
            # Each leaf has one link to each spine, so there are as many spines.
            rails.append(OpticalRail(name, leaves + up, ends + 2 * leaves * up, 3))
    return rails


def rail_economics(settings: EconomicsSettings, catalogue: Catalogue | None = None) -> Rows:
    """One row per platform, size, network and arrangement.

    ``cost_ratio`` and ``power_ratio`` are the electrical rails of the artifact over the
    network, both per chip; the ``equal_bandwidth`` ones also divide by the injection.
    Prices of ports of the catalogue's switch are ``sourced``; those of any other
    switch, and at any factor but 1, are ``assumed``.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    rails = settings.rails
    rows: Rows = []
    for name, platform in rails.platforms.items():
        prices = _prices(name, platform, catalogue)
        for gpus in rails.gpus:
            if gpus % platform.chips_per_server or gpus < 2 * platform.chips_per_server:
                continue
            networks = list(_networks(rails, platform, gpus))
            bills = [_bill(network, prices) for network in networks]
            reference = bills[0]
            for network, bill in zip(networks, bills, strict=True):
                share = network.injection
                cost, power = (reference[key] / bill[key] for key in ("cost_usd", "power_watts"))
                rows.append(
                    {
                        "platform": name,
                        "gpus": gpus,
                        "servers": gpus // platform.chips_per_server,
                        **network.columns,
                        **bill,
                        "cost_per_gpu_usd": bill["cost_usd"] / gpus,
                        "watts_per_gpu": bill["power_watts"] / gpus,
                        "gb_s_per_gpu": share * platform.port_gbps / 8,
                        "cost_ratio": cost,
                        "power_ratio": power,
                        "equal_bandwidth_cost_ratio": cost * share,
                        "equal_bandwidth_power_ratio": power * share,
                        "fidelity": _FIDELITY,
                    }
                )
    return rows


def rail_map(settings: EconomicsSettings, catalogue: Catalogue | None = None) -> Rows:
    """The range of the claims on cost and power over the networks' components.

    One row per platform, transceivers of a chip, claim and point: USD (cost) or W
    (power) of a transceiver by electrical switch ports of a chip. With t of a
    transceiver, c of a switch port, o of an optical port, n transceivers of a chip and
    p switch ports, s of which have a transceiver each (0 or 1), the ratio is

        (t (1 + s p) + c p) / (n t + 2 o).

    ``ports_at_boundary`` is the p at which it equals ``limit``.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    chosen, counts = settings.rails.map, settings.rails.transceivers_per_gpu
    claims = (
        ("cost", "usd", chosen.transceiver_usd, chosen.cost_reduction),
        ("power", "watts", chosen.transceiver_watts, chosen.power_reduction),
    )
    rows: Rows = []
    for name, platform in settings.rails.platforms.items():
        parts = _prices(name, platform, catalogue)
        for count, (claim, unit, levels, limit) in product(counts, claims):
            _, switch_port, ocs_port = (getattr(parts[part], unit) for part in _PARTS)
            for level, ports in product(levels, chosen.switch_ports_per_gpu):
                photonic = count * level + _OCS_PORTS_PER_CHIP * ocs_port
                per_port = platform.switch_transceivers * level + switch_port
                ratio = (level + per_port * ports) / photonic
                rows.append(
                    {
                        "platform": name,
                        "transceivers_per_gpu": count,
                        "claim": claim,
                        "transceiver": level,
                        "switch_ports_per_gpu": ports,
                        "ratio": ratio,
                        "limit": limit,
                        "holds": ratio >= limit,
                        "ports_at_boundary": (limit * photonic - level) / per_port,
                        "fidelity": _FIDELITY,
                    }
                )
    return rows


@dataclass(frozen=True)
class _Network:
    """The components of a network; ``columns``: its columns beside the bill."""

    transceivers: int
    switch_ports: int
    ocs_ports: int
    injection: int
    ocs_factor: float
    columns: dict[str, Any]


def _networks(rails: RailsSettings, platform: RailPlatform, gpus: int) -> Iterator[_Network]:
    """The networks, first the artifact's electrical rails, the reference."""
    servers, per_server = gpus // platform.chips_per_server, platform.chips_per_server

    def electrical(network: str, counting: str, switch_ports: int, tiers: int | None) -> _Network:
        at_switches = switch_ports if platform.switch_transceivers else 0
        columns = _columns(network, counting, transceivers_per_gpu=1, tiers=tiers)
        return _Network(gpus + at_switches, switch_ports, 0, 1, 1.0, columns)

    yield electrical(
        "electrical_rails", "artifact", opus_rail_switch_ports(servers, per_server), None
    )
    yield electrical("fat_tree", "artifact", opus_tree_switch_ports(gpus), None)
    radix = platform.electrical_switch_radix
    for network, ends in (("electrical_rails_alone", servers), ("electrical_rails", gpus)):
        tiers = fewest_tiers(ends, _MOST_TIERS, radix, None, chips=gpus)
        yield electrical(network, "used_ports", gpus * (2 * tiers - 1), tiers)
    for count in rails.transceivers_per_gpu:
        columns = _columns("photonic_rails", "artifact", transceivers_per_gpu=count)
        yield _Network(count * gpus, 0, _OCS_PORTS_PER_CHIP * gpus, count, 1.0, columns)
        for switch, ports in rails.switches.items():
            for rail in optical_rails(servers, ports):
                for factor in rails.ocs_port_price_factors:
                    sourced = switch == rails.priced_switch and factor == 1
                    columns = _columns(
                        "photonic_rails",
                        "used_ports",
                        transceivers_per_gpu=count,
                        switch=switch,
                        switch_ports=ports,
                        arrangement=rail.arrangement,
                        switches_per_rail=rail.switches,
                        ocs_ports_per_gpu=rail.ports / servers,
                        switch_passes=rail.passes,
                        ocs_port_price_factor=factor,
                        ocs_port_price="sourced" if sourced else "assumed",
                    )
                    yield _Network(count * gpus, 0, rail.ports * per_server, count, factor, columns)


def _columns(network: str, counting: str, **given: Any) -> dict[str, Any]:
    names = (
        *("transceivers_per_gpu", "tiers", "switch", "switch_ports", "arrangement"),
        *("switches_per_rail", "ocs_ports_per_gpu", "switch_passes", "ocs_port_price_factor"),
        "ocs_port_price",
    )
    return {"network": network, "counting": counting, **dict.fromkeys(names), **given}


def _bill(network: _Network, prices: dict[str, Cost]) -> dict[str, Any]:
    optical = prices["ocs_port"].scaled(network.ocs_ports)
    cost = total(
        [
            prices["transceiver"].scaled(network.transceivers),
            prices["electrical_switch_port"].scaled(network.switch_ports),
            # An assumed price implies no power.
            replace(optical, usd=optical.usd * network.ocs_factor),
        ]
    )
    return {
        "transceivers": network.transceivers,
        "electrical_switch_ports": network.switch_ports,
        "ocs_ports": network.ocs_ports,
        "cost_usd": cost.usd,
        "power_watts": cost.watts,
    }


def _prices(name: str, platform: RailPlatform, catalogue: Catalogue) -> dict[str, Cost]:
    """The cost of a unit of each of the three parts."""
    where = f"rails.platforms.{name}.price_set"
    try:
        parts = [catalogue.price(platform.price_set, component) for component in _PARTS]
    except SettingsError as error:
        raise SettingsError(where, error.message) from None
    if any(part.unit_watts is None for part in parts):
        raise SettingsError(where, f"{platform.price_set!r} has no power; allowed: sets with power")
    if any(part.port_gbps != platform.port_gbps for part in parts):
        raise SettingsError(
            f"rails.platforms.{name}.port_gbps",
            f"got {platform.port_gbps:g}; allowed: the port speed of price set"
            f" {platform.price_set!r}",
        )
    return {part.component: part.unit_cost for part in parts}
