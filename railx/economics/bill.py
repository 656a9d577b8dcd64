"""Bills of materials and their summary: counts of the networks times catalogue
prices, and the check that the catalogues have the price sets of the settings.
"""

from __future__ import annotations

from typing import Any, Protocol

from railx.economics.catalogue import Catalogue, read_catalogue
from railx.economics.pricing import price
from railx.economics.settings import EconomicsSettings, PricedNetwork
from railx.errors import UserError
from railx.settings import SettingsError, check_names, to_dict


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


class _Priced(Protocol):
    @property
    def catalogue(self) -> str: ...

    @property
    def price_set(self) -> str: ...


def check_price_set(settings: _Priced, key: str) -> None:
    """Refuse a missing catalogue or price set; SettingsError names the key below
    ``key``.
    """
    catalogue = _catalogue(settings.catalogue, f"{key}.catalogue")
    check_names(f"{key}.price_set", (settings.price_set,), catalogue.price_sets)


def check_prices(economics: EconomicsSettings, key: str = "economics") -> None:
    """Refuse missing price sets and catalogues; SettingsError names the key below
    ``key``.
    """
    catalogue = _catalogue(economics.catalogue, f"{key}.catalogue")
    asked = {
        "price_set": (economics.price_set,),
        "sensitivity.price_sets": economics.sensitivity.price_sets,
        "scale.price_sets": economics.scale.price_sets,
        **{
            f"networks.{name}.{field}": (price_set,)
            for name, network in economics.networks.items()
            for field in ("price_set", "copper_price_set")
            if (price_set := getattr(network, field)) is not None
        },
        **{
            f"rails.platforms.{name}.price_set": (platform.price_set,)
            for name, platform in economics.rails.platforms.items()
        },
    }
    for field, names in asked.items():
        check_names(f"{key}.{field}", names, catalogue.price_sets)
    for part in ("claim_map", "sensitivity"):
        for field, value in to_dict(getattr(economics, part)).items():
            if value == []:
                raise SettingsError(
                    f"{key}.{part}.{field}", "got an empty list; allowed: at least one value"
                )
    try:
        bill_of_materials(economics, catalogue)
    except SettingsError as error:
        raise error.under(key) from None


def _catalogue(path: str, key: str) -> Catalogue:
    try:
        return read_catalogue(path)
    except (UserError, OSError) as error:
        raise SettingsError(key, str(error)) from None
