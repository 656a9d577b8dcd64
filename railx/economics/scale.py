"""Cost and power of every network over the number of chips at equal injection
bandwidth.

There is a row for every price set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from railx.economics.catalogue import Catalogue, read_catalogue
from railx.economics.pricing import NetworkPrice, price
from railx.economics.settings import EconomicsSettings, PricedNetwork
from railx.settings import SettingsError


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
