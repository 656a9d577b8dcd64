"""Bills of materials and their summary: counts of the networks times catalogue
prices.
"""

from __future__ import annotations

from typing import Any

from railx.economics.catalogue import Catalogue, read_catalogue
from railx.economics.pricing import price
from railx.economics.settings import EconomicsSettings, PricedNetwork

__all__ = ["bill_of_materials", "cost_summary", "price_network"]


def bill_of_materials(
    settings: EconomicsSettings, catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """One row per network and component: count, USD with range, W, price source.

    ``charges``: used ports, or another way of counting.

    Reads ``settings.catalogue`` unless a catalogue is given. Watts are None where no
    source gives them. Raises SettingsError naming the network where a price set is
    unknown, lacks a component, is for another port speed or is for sensitivity only,
    and ValueError for a broken catalogue file.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    return [
        row
        for name, network in settings.networks.items()
        for row in price_network(
            name, network, settings.price_set, catalogue, settings.node_price_set
        )
    ]


def price_network(
    name: str,
    network: PricedNetwork,
    price_set: str,
    catalogue: Catalogue,
    node_price_set: str | None = None,
) -> list[dict[str, Any]]:
    """The rows of a network in the bill, priced as :func:`railx.economics.price`."""
    priced = price(network, price_set, catalogue, node_price_set=node_price_set, name=name)
    return [
        {
            "topology": name,
            "chips": priced.counts.chips,
            "component": part.component,
            "count": part.count,
            "unit_usd": part.price.unit_usd,
            "total_usd": part.cost.usd,
            "total_low_usd": part.cost.low_usd,
            "total_high_usd": part.cost.high_usd,
            "unit_watts": part.price.unit_watts,
            "total_watts": part.cost.watts,
            "charges": priced.charges,
            "source": part.price.provenance,
            "fidelity": "analytic",
        }
        for part in priced.parts
    ]


def cost_summary(
    settings: EconomicsSettings, catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """One row per network: bandwidth per chip, cost, cost per bandwidth and power.

    The sums are those of :func:`bill_of_materials`. ``usd_per_injection_gb_s`` and
    ``usd_per_all_to_all_gb_s`` divide the cost per chip by the bandwidth per chip
    (RailX compares topologies by these two). They are None where the bandwidth has no
    closed form, power where a component's has no source. Errors as for the bill.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    rows: list[dict[str, Any]] = []
    for name, network in settings.networks.items():
        priced = price(
            network,
            settings.price_set,
            catalogue,
            node_price_set=settings.node_price_set,
            name=name,
        )
        counts, cost = priced.counts, priced.cost
        rows.append(
            {
                "topology": name,
                "chips": counts.chips,
                "injection_gb_s_per_chip": counts.injection_gb_s_per_chip,
                "all_to_all_gb_s_per_chip": counts.all_to_all_gb_s_per_chip,
                "cost_usd": cost.usd,
                "cost_per_chip_usd": priced.per_chip.usd,
                "usd_per_injection_gb_s": priced.usd_per_injection_gb_s,
                "usd_per_all_to_all_gb_s": priced.usd_per_all_to_all_gb_s,
                "power_watts": cost.watts,
                "charges": priced.charges,
                "fidelity": "analytic",
            }
        )
    return rows
