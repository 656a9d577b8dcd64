"""Bills of materials and their summary: counts of the networks times catalogue
prices, the check that the catalogues have the price sets of the settings, and cost and
power of every network over the number of chips at equal injection bandwidth, with a row
for every price set.
"""

from __future__ import annotations

from itertools import product
from operator import attrgetter
from typing import Any, Protocol

from railx.economics.catalogue import Catalogue, Rows, read_catalogue
from railx.economics.pricing import NetworkPrice, price
from railx.economics.settings import EconomicsSettings, PricedNetwork
from railx.errors import UserError
from railx.settings import SettingsError, check_names, to_dict


def bill_of_materials(settings: EconomicsSettings, catalogue: Catalogue | None = None) -> Rows:
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
) -> Rows:
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


def cost_summary(settings: EconomicsSettings, catalogue: Catalogue | None = None) -> Rows:
    """One row per network: bandwidth per chip, cost, cost per bandwidth and power.

    The sums are those of :func:`bill_of_materials`. ``usd_per_injection_gb_s`` and
    ``usd_per_all_to_all_gb_s`` divide the cost per chip by the bandwidth per chip
    (RailX compares topologies by these two). They are None where the bandwidth has no
    closed form, power where a component's has no source. Errors as for the bill.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    nodes = settings.node_price_set
    rows = []
    for name, network in settings.networks.items():
        priced = price(network, settings.price_set, catalogue, node_price_set=nodes, name=name)
        sums = _sums(priced)
        del sums["bisection_gb_s_per_chip"], sums["watts_per_chip"]
        tail = {"charges": priced.charges, "fidelity": "analytic"}
        rows.append({"topology": name, **sums, **tail})
    return rows


def _sums(priced: NetworkPrice) -> dict[str, Any]:
    """Bandwidths, cost and power of a network as columns."""
    counts, cost = priced.counts, priced.cost
    return {
        "chips": counts.chips,
        "injection_gb_s_per_chip": counts.injection_gb_s_per_chip,
        "all_to_all_gb_s_per_chip": counts.all_to_all_gb_s_per_chip,
        "bisection_gb_s_per_chip": counts.bisection_gb_s_per_chip,
        "cost_usd": cost.usd,
        "cost_per_chip_usd": priced.per_chip.usd,
        "usd_per_injection_gb_s": priced.usd_per_injection_gb_s,
        "usd_per_all_to_all_gb_s": priced.usd_per_all_to_all_gb_s,
        "power_watts": cost.watts,
        "watts_per_chip": priced.per_chip.watts,
    }


class _Priced(Protocol):
    @property
    def catalogue(self) -> str: ...

    @property
    def price_set(self) -> str: ...


def check_price_set(settings: _Priced, key: str) -> None:
    """Refuse a missing catalogue or price set; the error is below ``key``."""
    catalogue = _catalogue(settings.catalogue, f"{key}.catalogue")
    check_names(f"{key}.price_set", (settings.price_set,), catalogue.price_sets)


def check_prices(economics: EconomicsSettings, key: str = "economics") -> None:
    """Refuse missing price sets and catalogues; the error is below ``key``."""
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


def cost_by_scale(settings: EconomicsSettings, catalogue: Catalogue | None = None) -> Rows:
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
    scale, injection_gb_s = settings.scale, settings.scale.injection_gb_s_per_chip
    for name in dict.fromkeys((*scale.networks, scale.reference)):
        given = settings.networks[name].counts.injection_gb_s_per_chip
        if given != injection_gb_s:
            raise SettingsError(
                "scale.networks",
                f"{name} has {given:g} GB/s of injection a chip; allowed: networks with"
                f" {injection_gb_s:g} GB/s per chip",
            )
    rows = []
    for name, target in product(scale.networks, scale.chips):
        network = _at_scale(settings, name, target)
        if network is None:
            continue
        reference = _at_scale(settings, scale.reference, network.chips)
        for price_set in scale.price_sets:
            nodes = settings.node_price_set
            priced = price(network, price_set, catalogue, node_price_set=nodes, name=name)
            other = None
            if reference is not None:
                at = scale.reference
                other = price(reference, price_set, catalogue, node_price_set=nodes, name=at)
            rows.append(
                {
                    "topology": name,
                    "target_chips": target,
                    "price_set": price_set,
                    **_sums(priced),
                    "reference": scale.reference,
                    **_over(priced, other),
                    "fidelity": "analytic",
                }
            )
    return rows


def _at_scale(settings: EconomicsSettings, name: str, chips: int) -> PricedNetwork | None:
    """A network of at least so many chips; None beyond its family's reach."""
    try:
        return settings.networks[name].at_scale(chips)
    except SettingsError as error:
        if error.key != "chips":
            raise
        return None


#: What is divided by the reference's, by column.
_RATIOS = {
    "injection_cost_over_reference": attrgetter("usd_per_injection_gb_s"),
    "all_to_all_cost_over_reference": attrgetter("usd_per_all_to_all_gb_s"),
    "watts_over_reference": attrgetter("per_chip.watts"),
}


def _over(priced: NetworkPrice, reference: NetworkPrice | None) -> dict[str, float | None]:
    """The columns of a network over the reference; None where either has no value."""
    both = {
        name: (value(priced), reference and value(reference)) for name, value in _RATIOS.items()
    }
    return {
        name: None if ours is None or theirs is None else ours / theirs
        for name, (ours, theirs) in both.items()
    }
