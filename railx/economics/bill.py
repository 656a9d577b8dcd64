"""Bills of materials and their summary: counts of the networks times catalogue
prices.
"""

from __future__ import annotations

from typing import Any

from railx.economics.catalogue import Catalogue, Price, read_catalogue
from railx.economics.settings import EconomicsSettings, PricedNetwork
from railx.settings import SettingsError

__all__ = ["bill_of_materials", "cost_summary", "price_network"]


def bill_of_materials(
    settings: EconomicsSettings, catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """One row per network and component: count, USD and W (per unit and total), price
    source.

    Reads ``settings.catalogue`` unless a catalogue is given. Watts are None where no
    source gives them. Raises SettingsError naming the network where a price set is
    unknown, lacks a component, is for another port speed or is for sensitivity only,
    and ValueError for a broken catalogue file.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    return [
        row
        for name, network in settings.networks.items()
        for row in price_network(name, network, settings.price_set, catalogue)
    ]


def price_network(
    name: str, network: PricedNetwork, price_set: str, catalogue: Catalogue
) -> list[dict[str, Any]]:
    """The rows of a network in the bill; ``price_set`` is the default of the
    network's.
    """
    counts = network.counts
    rows: list[dict[str, Any]] = []
    for component, count in counts.components.items():
        price = _price_of(component, network, name, price_set, catalogue)
        rows.append(
            {
                "topology": name,
                "chips": counts.chips,
                "component": component,
                "count": count,
                "unit_usd": price.unit_usd,
                "total_usd": count * price.unit_usd,
                "unit_watts": price.unit_watts,
                "total_watts": None if price.unit_watts is None else count * price.unit_watts,
                "source": price.provenance,
                "fidelity": "analytic",
            }
        )
    return rows


def cost_summary(
    settings: EconomicsSettings, catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """One row per network: bandwidth per chip, cost, cost per bandwidth and power.

    The sums are those of :func:`bill_of_materials`. ``usd_per_injection_gb_s`` and
    ``usd_per_all_to_all_gb_s`` divide the cost per chip by the bandwidth per chip
    (RailX compares topologies by these two). They are None where the bandwidth has no
    closed form, power where a component's has no source. Errors as for the bill.
    """
    bill = bill_of_materials(settings, catalogue)
    rows: list[dict[str, Any]] = []
    for name, network in settings.networks.items():
        counts = network.counts
        parts = [row for row in bill if row["topology"] == name]
        cost_usd = sum(row["total_usd"] for row in parts)
        watts = [row["total_watts"] for row in parts]
        per_chip = cost_usd / counts.chips
        all_to_all = counts.all_to_all_gb_s_per_chip
        rows.append(
            {
                "topology": name,
                "chips": counts.chips,
                "injection_gb_s_per_chip": counts.injection_gb_s_per_chip,
                "all_to_all_gb_s_per_chip": all_to_all,
                "cost_usd": cost_usd,
                "cost_per_chip_usd": per_chip,
                "usd_per_injection_gb_s": per_chip / counts.injection_gb_s_per_chip,
                "usd_per_all_to_all_gb_s": None if all_to_all is None else per_chip / all_to_all,
                "power_watts": None if None in watts else sum(watts),
                "fidelity": "analytic",
            }
        )
    return rows


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
    if price.role != "default":
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
