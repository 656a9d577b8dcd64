"""Bases of comparison: equal injection bandwidth, and equal cost of the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from railx.economics import PricedNetwork, price_network, read_catalogue
from railx.families import families_with, family_of
from railx.mapping.settings import MappingSettings, PriceSettings, SwitchedNetwork, SwitchedSettings
from railx.mapping.step import Basis
from railx.settings import SettingsError
from railx.vocabulary.topology import FamilySettings, Topology

__all__ = [
    "NetworkCost",
    "check_reference",
    "comparison_bases",
    "equal_bandwidth",
    "injection_gb_s_per_chip",
    "network_bill",
    "network_cost",
]

_BITS_PER_BYTE = 8


def injection_gb_s_per_chip(topology: Topology) -> float:
    """Injection bandwidth of a chip, one direction.

    All ports that leave its node together.
    """
    settings = topology.settings
    return family_of(settings).ports_per_chip(settings) * settings.port_gbps / _BITS_PER_BYTE


def equal_bandwidth(settings: MappingSettings, topology: Topology) -> Basis:
    """The basis at which the ports have the injection bandwidth of the settings.

    All links are scaled by the same factor; it has no cost.
    """
    factor = settings.injection_gb_s_per_chip / injection_gb_s_per_chip(topology)
    return Basis("equal_bandwidth", factor, factor, None)


def comparison_bases(
    settings: MappingSettings, topology: Topology, name: str, reference: FamilySettings
) -> list[Basis]:
    """``equal_bandwidth`` and, where it has a price, ``equal_cost``.

    Topology ``name`` has one where it is priced and its family has a bill;
    ``reference`` are the settings of the reference topology. A network costs in
    proportion to the rate of its ports. So at equal bandwidth it costs its USD per GB/s
    of injection times the injection bandwidth, and at equal cost its ports have the
    bandwidth that the reference's cost buys. No bill has links inside a node (or
    scale-up switches): at equal cost they keep the rate of equal bandwidth.
    Raises SettingsError where the reference has no bill, and as
    :func:`railx.economics.price_network`.
    """
    equal = equal_bandwidth(settings, topology)
    if not settings.topologies[name].priced or family_of(topology).bill is None:
        return [equal]
    check_reference(settings, reference)
    cost, affordable = (
        settings.injection_gb_s_per_chip * _usd_per_injection_gb_s(settings, key, priced)
        for key, priced in ((name, topology.settings), (settings.reference, reference))
    )
    return [
        replace(equal, cost_per_chip_usd=cost),
        Basis("equal_cost", equal.ports * affordable / cost, equal.inside, affordable),
    ]


def check_reference(settings: MappingSettings, reference: FamilySettings) -> None:
    """Refuse a reference whose family has no bill."""
    if family_of(reference).bill is None:
        raise SettingsError(
            "mapping.reference",
            f"got {settings.reference!r} of family {reference.family}; allowed: a topology of a"
            f" family with a bill ({families_with('bill')})",
        )


@dataclass(frozen=True)
class NetworkCost:
    """USD and W of a network, per unit that the caller chose."""

    usd: float
    watts: float | None

    def scaled(self, factor: float) -> NetworkCost:
        """So many units."""
        return NetworkCost(factor * self.usd, None if self.watts is None else factor * self.watts)

    def columns(self, gpus: int) -> dict[str, float | None]:
        """The columns of a table, where this is the cost of one GPU."""
        total = self.scaled(gpus)
        return {
            "cost_per_gpu_usd": self.usd,
            "cost_usd": total.usd,
            "watts_per_gpu": self.watts,
            "power_watts": total.watts,
        }


def network_bill(prices: PriceSettings, name: str, network: PricedNetwork) -> NetworkCost:
    """USD and W of a whole network; SettingsError where it has no price."""
    bill = price_network(name, network, prices.price_set, read_catalogue(prices.catalogue))
    watts = [row["total_watts"] for row in bill]
    return NetworkCost(sum(row["total_usd"] for row in bill), None if None in watts else sum(watts))


def network_cost(
    settings: SwitchedSettings,
    name: str,
    chosen: SwitchedNetwork,
    scale: Callable[[PricedNetwork], float],
) -> NetworkCost:
    """The bill of a network times ``scale``; SettingsError where it has no price."""
    priced = PricedNetwork(chosen.topology, counting=chosen.counting)
    try:
        return network_bill(settings, name, priced).scaled(scale(priced))
    except SettingsError as error:
        raise error.under("switched") from None


def _usd_per_injection_gb_s(
    settings: MappingSettings, name: str, topology: FamilySettings
) -> float:
    network = PricedNetwork(topology)
    try:
        usd = network_bill(settings, name, network).usd
    except SettingsError as error:
        prefix = f"networks.{name}.topology."
        if error.key.startswith(prefix):
            raise SettingsError(
                f"topologies.{name}.{error.key.removeprefix(prefix)}", error.message
            ) from None
        raise error.under("mapping") from None
    return usd / network.chips / network.counts.injection_gb_s_per_chip
