"""Bills of materials and their summary: counts of the networks times catalogue
prices, the check that the catalogues have the price sets of the settings, and cost and
power of every network over the number of chips at equal injection bandwidth, with a row
for every price set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from railx.economics.catalogue import Catalogue, read_catalogue
from railx.economics.pricing import NetworkPrice, price
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


def cost_by_scale(
    settings: EconomicsSettings, catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """One row per network, target number of chips and price set.

    A row is the smallest size of the family with at least ``target_chips`` chips;
    ``chips`` is the size's number. Sizes beyond a family's reach have no row. The
    ratios (``*_over_reference``) are to the reference network of exactly the same
    chips.

    Values are None where a bandwidth has no closed form, a power no source, or the
    reference does not reach the size. Raises SettingsError where the injection
    bandwidths of networks differ, or a price set cannot price one.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    _check_equal_injection(settings)
    return [
        _row(name, target, network, price_set, settings, catalogue)
        for name, target, network in _sized(settings)
        for price_set in settings.scale.price_sets
    ]


def _check_equal_injection(settings: EconomicsSettings) -> None:
    injection_gb_s = settings.scale.injection_gb_s_per_chip
    for name in dict.fromkeys((*settings.scale.networks, settings.scale.reference)):
        given = settings.networks[name].counts.injection_gb_s_per_chip
        if given != injection_gb_s:
            raise SettingsError(
                "scale.networks",
                f"{name} has {given:g} GB/s of injection a chip; allowed: networks with"
                f" {injection_gb_s:g} GB/s per chip",
            )


def _sized(settings: EconomicsSettings) -> Iterator[tuple[str, int, PricedNetwork]]:
    for name in settings.scale.networks:
        for target in settings.scale.chips:
            try:
                yield name, target, settings.networks[name].at_scale(target)
            except SettingsError as error:
                if error.key != "chips":
                    raise


def _row(
    name: str,
    target: int,
    network: PricedNetwork,
    price_set: str,
    settings: EconomicsSettings,
    catalogue: Catalogue,
) -> dict[str, Any]:
    priced = _price(name, network, price_set, settings, catalogue)
    reference = _reference(settings, network.chips, price_set, catalogue)
    counts, cost, per_chip = priced.counts, priced.cost, priced.per_chip
    other = None if reference is None else reference.per_chip.watts
    return {
        "topology": name,
        "target_chips": target,
        "price_set": price_set,
        "chips": counts.chips,
        "injection_gb_s_per_chip": counts.injection_gb_s_per_chip,
        "all_to_all_gb_s_per_chip": counts.all_to_all_gb_s_per_chip,
        "bisection_gb_s_per_chip": counts.bisection_gb_s_per_chip,
        "cost_usd": cost.usd,
        "cost_per_chip_usd": per_chip.usd,
        "usd_per_injection_gb_s": priced.usd_per_injection_gb_s,
        "usd_per_all_to_all_gb_s": priced.usd_per_all_to_all_gb_s,
        "power_watts": cost.watts,
        "watts_per_chip": per_chip.watts,
        "reference": settings.scale.reference,
        "injection_cost_over_reference": _over(
            priced.usd_per_injection_gb_s,
            None if reference is None else reference.usd_per_injection_gb_s,
        ),
        "all_to_all_cost_over_reference": _over(
            priced.usd_per_all_to_all_gb_s,
            None if reference is None else reference.usd_per_all_to_all_gb_s,
        ),
        "watts_over_reference": _over(per_chip.watts, other),
        "fidelity": "analytic",
    }


def _price(
    name: str,
    network: PricedNetwork,
    price_set: str,
    settings: EconomicsSettings,
    catalogue: Catalogue,
) -> NetworkPrice:
    nodes = settings.node_price_set
    return price(network, price_set, catalogue, node_price_set=nodes, name=name)


def _reference(
    settings: EconomicsSettings, chips: int, price_set: str, catalogue: Catalogue
) -> NetworkPrice | None:
    try:
        network = settings.networks[settings.scale.reference].at_scale(chips)
    except SettingsError as error:
        if error.key != "chips":
            raise
        return None
    return _price(settings.scale.reference, network, price_set, settings, catalogue)


def _over(value: float | None, reference: float | None) -> float | None:
    return None if value is None or reference is None else value / reference
