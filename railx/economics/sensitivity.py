"""Prices for which the three cost claims of RailX's abstract are true.

Prices come from named price sets and from a grid of ratios. The two relative claims
depend on price ratios alone, the absolute one on the sum of transceiver and OCS port.
With b the bandwidth of a port (RailX, cost model), a RailX chip costs (4n/m)(c_t + c_o)
for 4 n b of injection and about 2 n b / m of all-to-all. So its cost per all-to-all, 2
(c_t + c_o) / b, depends neither on m nor on n. A three-tier fat tree costs 5 c_s + 6
c_t per b of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from railx.economics.catalogue import Catalogue, Rows, read_catalogue
from railx.economics.pricing import usd_per_chip
from railx.economics.settings import EconomicsSettings, PricedNetwork, SensitivitySettings
from railx.settings import SettingsError

PRICED = ("transceiver", "ocs_port", "electrical_switch_port")


@dataclass(frozen=True)
class _Case:
    """Prices in USD and their source, with RailX's share of the ideal all-to-all."""

    view: str
    name: str
    prices: dict[str, float]
    source: str
    all_to_all: str
    all_to_all_share: float


def in_node_lanes_of(network: PricedNetwork) -> float:
    """Width of the links inside a node in external ports per chip; 0 without nodes.

    They are in no bill.
    """
    lanes = network.bill.in_node_lanes
    return 0.0 if lanes is None else lanes(network.topology)


def price_sensitivity(settings: EconomicsSettings, catalogue: Catalogue | None = None) -> Rows:
    """One row per price case, fat tree and all-to-all bound.

    The bound is the ideal or the published minimal routing. ``view`` is ``price_set``
    (prices of a catalogue set) or ``ratio`` (a grid relative to the default set's
    transceiver). The ratios are RailX over fat tree.

    ``break_even_switch_port_usd`` is the electrical switch port price below which the
    all-to-all claim fails, the other prices held. ``break_even_in_node_lane_usd`` is
    the price of one external-port width of link inside a node, which is in no bill,
    above which the first of the two relative claims fails (0 where one fails already).
    Errors as for the bill of materials.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    chosen = settings.sensitivity
    railx = settings.networks[chosen.railx]
    rows = []
    for case in _cases(settings, catalogue):
        for name in chosen.fat_trees:
            tree = settings.networks[name]
            prices = dict(case.prices)
            if tree.copper_price_set is not None:
                prices["copper_cable"] = catalogue.price(
                    tree.copper_price_set, "copper_cable"
                ).unit_usd
            rows.append(_row(case, name, prices, railx, tree, chosen))
    return rows


def named_prices(
    price_sets: Sequence[str], catalogue: Catalogue
) -> Iterator[tuple[str, dict[str, float], str]]:
    """Name, USD by component and source of each price set."""
    for name in price_sets:
        try:
            prices = {component: catalogue.price(name, component) for component in PRICED}
        except SettingsError as error:
            raise SettingsError("sensitivity.price_sets", error.message) from None
        source = "; ".join(dict.fromkeys(price.provenance for price in prices.values()))
        yield name, {component: price.unit_usd for component, price in prices.items()}, source


def _cases(settings: EconomicsSettings, catalogue: Catalogue) -> list[_Case]:
    chosen = settings.sensitivity
    shares = {"ideal": 1.0, "published_routing": chosen.routed_over_ideal}
    named = [("price_set", *prices) for prices in named_prices(chosen.price_sets, catalogue)]
    transceiver = catalogue.price(settings.price_set, "transceiver")
    unit = transceiver.unit_usd
    source = f"transceiver of {transceiver.provenance}; the others at the given ratios to it"
    axes = chosen.ocs_port_over_transceiver, chosen.switch_port_over_transceiver
    for ocs, switch in product(*axes):
        prices_usd = dict(zip(PRICED, (unit, ocs * unit, switch * unit), strict=True))
        name = f"ocs port {ocs:g}, switch port {switch:g} transceivers"
        named.append(("ratio", name, prices_usd, source))
    return [_Case(*case, label, share) for case in named for label, share in shares.items()]


def _row(
    case: _Case,
    tree_name: str,
    prices: dict[str, float],
    railx: PricedNetwork,
    tree: PricedNetwork,
    chosen: SensitivitySettings,
) -> dict[str, Any]:
    grid, fat = railx.counts, tree.counts
    cost = usd_per_chip(grid, prices)
    assert grid.all_to_all_gb_s_per_chip is not None
    assert fat.all_to_all_gb_s_per_chip is not None
    injection = grid.injection_gb_s_per_chip
    all_to_all = grid.all_to_all_gb_s_per_chip * case.all_to_all_share
    fat_cost = usd_per_chip(fat, prices)
    per_injection = cost / injection / (fat_cost / fat.injection_gb_s_per_chip)
    per_all_to_all = cost / all_to_all / (fat_cost / fat.all_to_all_gb_s_per_chip)
    total = cost * grid.chips
    # At the break-even price of a switch port RailX costs the limit per all-to-all.
    needed = cost / all_to_all / chosen.all_to_all_cost_limit * fat.all_to_all_gb_s_per_chip
    without = usd_per_chip(fat, {**prices, "electrical_switch_port": 0.0})
    switch_port = (needed - without) * fat.chips / fat.components["electrical_switch_port"]
    # Both ratios grow in proportion to the cost of a RailX chip with its lanes.
    limits = chosen.injection_cost_limit, chosen.all_to_all_cost_limit
    headroom = min(limits[0] / per_injection, limits[1] / per_all_to_all)
    lanes = in_node_lanes_of(railx)
    return {
        "view": case.view,
        "prices": case.name,
        "topology": chosen.railx,
        "reference": tree_name,
        "all_to_all": case.all_to_all,
        "transceiver_usd": prices["transceiver"],
        "ocs_port_usd": prices["ocs_port"],
        "electrical_switch_port_usd": prices["electrical_switch_port"],
        "cost_usd": total,
        "injection_cost_ratio": per_injection,
        "all_to_all_cost_ratio": per_all_to_all,
        "injection_claim_holds": per_injection < chosen.injection_cost_limit,
        "all_to_all_claim_holds": per_all_to_all < chosen.all_to_all_cost_limit,
        "absolute_claim_holds": abs(total / chosen.absolute_cost_usd - 1)
        <= chosen.absolute_cost_tolerance,
        "break_even_switch_port_usd": max(0.0, switch_port),
        "break_even_in_node_lane_usd": max(0.0, cost * (headroom - 1) / lanes) if lanes else None,
        "source": case.source,
        "fidelity": "analytic",
    }
