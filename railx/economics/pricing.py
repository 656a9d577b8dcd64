"""The prices of networks: counts times catalogue prices, the same for every table.

A network is charged for its used ports, or as its way of counting says. Links inside
its nodes are free, or charged at the prices of a set that has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from railx.economics.catalogue import Catalogue, Cost, Price
from railx.economics.settings import PricedNetwork
from railx.families import links_inside
from railx.settings import SettingsError
from railx.vocabulary.counts import NetworkCounts
from railx.vocabulary.topology import FamilySettings

__all__ = ["Cost", "NetworkPrice", "Part", "node_links", "price", "total", "usd_per_chip"]


@dataclass(frozen=True)
class Part:
    """Units of a component and their price."""

    component: str
    count: int
    price: Price

    @property
    def cost(self) -> Cost:
        """The cost of all units."""
        return self.price.unit_cost.scaled(self.count)


@dataclass(frozen=True)
class NetworkPrice:
    """The bill of a network, and its cost per chip and per bandwidth."""

    counts: NetworkCounts
    parts: tuple[Part, ...]
    charges: str
    """What is charged: used ports, or the name of another way of counting."""

    @property
    def cost(self) -> Cost:
        """The whole network."""
        return total(part.cost for part in self.parts)

    @property
    def per_chip(self) -> Cost:
        """The network over its chips."""
        cost, chips = self.cost, self.counts.chips
        watts = None if cost.watts is None else cost.watts / chips
        return Cost(cost.usd / chips, watts, cost.low_usd / chips, cost.high_usd / chips)

    @property
    def usd_per_injection_gb_s(self) -> float:
        return self.per_chip.usd / self.counts.injection_gb_s_per_chip

    @property
    def usd_per_all_to_all_gb_s(self) -> float | None:
        """None where the bandwidth has no closed form."""
        bandwidth = self.counts.all_to_all_gb_s_per_chip
        return None if bandwidth is None else self.per_chip.usd / bandwidth


def price(
    network: PricedNetwork | FamilySettings,
    price_set: str,
    catalogue: Catalogue,
    *,
    node_price_set: str | None = None,
    name: str = "network",
) -> NetworkPrice:
    """The bill of a network.

    ``network``: the settings of a topology, or with them how it is priced.
    ``price_set`` is the default of the network's; ``node_price_set`` has the prices of
    links inside nodes and on boards, in whole GB/s; None: they are free. SettingsError
    below ``networks.name`` where a set is unknown, lacks a component, is for another
    port speed or for sensitivity only.
    """
    priced = network if isinstance(network, PricedNetwork) else PricedNetwork(network)
    parts = [
        Part(component, count, _price_of(component, priced, name, price_set, catalogue))
        for component, count in priced.counts.components.items()
    ]
    if node_price_set is not None:
        for component, gb_s in node_links(priced.topology).items():
            try:
                unit = catalogue.price(node_price_set, component)
            except SettingsError as error:
                raise SettingsError("node_price_set", error.message) from None
            parts.append(Part(component, round(gb_s * priced.chips), unit))
    return NetworkPrice(priced.counts, tuple(parts), priced.charges)


def node_links(settings: FamilySettings) -> dict[str, float]:
    """GB/s of a chip's links inside nodes and on boards, by component of the
    catalogue."""
    sums: dict[str, float] = {}
    for node in links_inside(settings):
        component = f"node_{node.links}_gb_s"
        sums[component] = sums.get(component, 0.0) + node.gb_s
    return sums


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of costs."""
    parts = list(costs)
    watts = [part.watts for part in parts if part.watts is not None]
    return Cost(
        sum(part.usd for part in parts),
        sum(watts) if len(watts) == len(parts) else None,
        sum(part.low_usd for part in parts),
        sum(part.high_usd for part in parts),
    )


def usd_per_chip(counts: NetworkCounts, unit_usd: Mapping[str, float]) -> float:
    """USD of a chip's share of a network at prices from outside the catalogue."""
    return (
        sum(count * unit_usd[component] for component, count in counts.components.items())
        / counts.chips
    )


def _price_of(
    component: str, network: PricedNetwork, name: str, price_set: str, catalogue: Catalogue
) -> Price:
    """The price of a component in the network's price set, or else the experiment's."""
    key = "copper_price_set" if component == "copper_cable" else "price_set"
    network_price_set: str | None = getattr(network, key)
    where = f"networks.{name}.{key}" if network_price_set is not None else "price_set"
    try:
        price = catalogue.price(
            network_price_set if network_price_set is not None else price_set, component
        )
    except SettingsError as error:
        raise SettingsError(where, error.message) from None
    if price.role == "sensitivity":
        raise SettingsError(
            where,
            f"{price.price_set!r} is inferred, not a price; allowed: sourced price sets (look at it"
            " in sensitivity.price_sets)",
        )
    if price.port_gbps is not None and price.port_gbps != network.counts.port_gbps:
        raise SettingsError(
            f"networks.{name}.topology.port_gbps",
            f"got {network.counts.port_gbps:g} Gb/s per priced port; allowed: {price.port_gbps:g},"
            f" the port speed of price set {price.price_set!r}",
        )
    return price
