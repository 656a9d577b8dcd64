"""Bases of comparison: equal injection bandwidth, and equal cost of the network; and
the price of a node at which the ranking of two networks flips.

At equal cost a network pays for its ports and its node. The step gets shorter with the
rate of the ports, so one rate makes it as long as the reference's. Its cost, taken from
what the reference pays for its own ports, is what the node may cost beyond the
reference's: with a dearer node the network is slower, with a cheaper one faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from railx.economics import (
    Cost,
    NetworkPrice,
    PricedNetwork,
    node_links,
    price,
    read_catalogue,
    total,
)
from railx.families import families_with, family_of, rank_placement
from railx.mapping.settings import (
    JobSettings,
    MappingSettings,
    PriceSettings,
    SwitchedNetwork,
    SwitchedSettings,
)
from railx.mapping.step import FIDELITY, Basis, step_ms
from railx.performance.topologies import ExactLoads
from railx.settings import SettingsError
from railx.vocabulary.topology import FamilySettings, Topology

_BITS_PER_BYTE = 8
#: Factors of the rate of ports that are looked between.
_LOWEST, _HIGHEST = 1e-6, 1e3


def injection_gb_s_per_chip(settings: FamilySettings) -> float:
    """Injection bandwidth of a chip, one direction: all ports that leave its node."""
    return family_of(settings).ports_per_chip(settings) * settings.port_gbps / _BITS_PER_BYTE


def equal_bandwidth(settings: MappingSettings, topology: Topology) -> Basis:
    """The basis at which the ports have the injection bandwidth of the settings.

    All links are scaled by the same factor; it has no cost.
    """
    factor = settings.injection_gb_s_per_chip / injection_gb_s_per_chip(topology.settings)
    return Basis("equal_bandwidth", factor, factor, None)


def comparison_bases(
    settings: MappingSettings, topology: Topology, name: str, reference: FamilySettings
) -> list[Basis]:
    """``equal_bandwidth`` and, where it has a price, ``equal_cost`` with nodes free and
    charged.

    Topology ``name`` has one where it is priced and its family has a bill;
    ``reference`` are the settings of the reference topology. A network costs in
    proportion to the rate of its ports. So at equal bandwidth it costs its USD per GB/s
    of injection times the injection bandwidth, and at equal cost its ports have the
    bandwidth that the reference's cost buys. Links inside nodes keep the rate of equal
    bandwidth: free under ``equal_cost``. Under ``equal_cost_nodes`` (where the settings
    have a price set for them) both networks pay for theirs, and the ports get the rest
    of the sum; the basis has a ``reason`` where nothing is left.
    Raises SettingsError where the reference has no bill, and as
    :func:`railx.economics.price`.
    """
    equal = equal_bandwidth(settings, topology)
    if not settings.topologies[name].priced or family_of(topology).bill is None:
        return [equal]
    check_reference(settings, reference)
    costs = [
        chip_costs(settings, key, priced)
        for key, priced in ((name, topology.settings), (settings.reference, reference))
    ]
    cost, affordable = (of.ports_usd for of in costs)
    bases = [
        replace(equal, cost_per_chip_usd=cost),
        Basis("equal_cost", equal.ports * affordable / cost, equal.inside, affordable),
    ]
    if settings.node_price_set is not None:
        mine, budget = costs[0].node.usd, affordable + costs[1].node.usd
        left = budget - mine
        dear = f"the node alone costs {mine:.0f} of {budget:.0f} USD a chip"
        reason = None if left > 0 else dear
        ports = equal.ports * max(left, 0) / cost
        bases.append(Basis("equal_cost_nodes", ports, equal.inside, budget, reason))
    return bases


@dataclass(frozen=True)
class ChipCosts:
    """USD of a chip at equal bandwidth: its part of the network, and its node."""

    ports_usd: float
    node: Cost
    components: dict[str, float]
    """GB/s of its links inside nodes and on boards, by component of the catalogue."""


def chip_costs(settings: MappingSettings, name: str, topology: FamilySettings) -> ChipCosts:
    """What a chip of a network costs with the injection bandwidth of the settings."""
    free, charged = (
        network_price(
            settings, "mapping", f"topologies.{name}", PricedNetwork(topology), node_price_set
        )
        for node_price_set in (None, settings.node_price_set)
    )
    scale = settings.injection_gb_s_per_chip / free.counts.injection_gb_s_per_chip
    node = total(part.cost for part in charged.parts[len(free.parts) :])
    return ChipCosts(
        settings.injection_gb_s_per_chip * free.usd_per_injection_gb_s,
        node.scaled(scale / free.counts.chips),
        {component: scale * gb_s for component, gb_s in node_links(topology).items()},
    )


def check_reference(settings: MappingSettings, reference: FamilySettings) -> None:
    """Refuse a reference whose family has no bill."""
    if family_of(reference).bill is None:
        got = f"got {settings.reference!r} of family {reference.family}"
        allowed = f"a topology of a family with a bill ({families_with('bill')})"
        raise SettingsError("mapping.reference", f"{got}; allowed: {allowed}")


def cost_columns(cost: Cost, gpus: int) -> dict[str, float | None]:
    """The columns of a table, where ``cost`` is that of one GPU."""
    all_gpus = cost.scaled(gpus)
    return {
        "cost_per_gpu_usd": cost.usd,
        "cost_usd": all_gpus.usd,
        "watts_per_gpu": cost.watts,
        "power_watts": all_gpus.watts,
    }


def network_price(
    prices: PriceSettings,
    stage: str,
    key: str,
    network: PricedNetwork,
    node_price_set: str | None = None,
) -> NetworkPrice:
    """The bill of a network; SettingsError where it has no price.

    The error is below ``key``, the key of its topology's settings, or for a price set
    below ``stage``.
    """
    catalogue = read_catalogue(prices.catalogue)
    try:
        return price(network, prices.price_set, catalogue, node_price_set=node_price_set)
    except SettingsError as error:
        below = error.key.removeprefix("networks.network.topology.")
        if below == error.key:
            raise error.under(stage) from None
        raise SettingsError(f"{key}.{below}", error.message) from None


def network_cost(
    settings: SwitchedSettings,
    key: str,
    chosen: SwitchedNetwork,
    scale: Callable[[PricedNetwork], float],
) -> Cost:
    """The bill of a network times ``scale``; SettingsError where it has no price.

    ``key`` is that of the network below ``switched``.
    """
    priced = PricedNetwork(chosen.topology, counting=chosen.counting)
    bill = network_price(settings, "switched", f"switched.{key}.topology", priced)
    return bill.cost.scaled(scale(priced))


def node_price_rows(
    settings: MappingSettings,
    topology: Topology,
    name: str,
    routings: Sequence[str],
    reference: Topology,
) -> list[dict[str, Any]]:
    """One row per job that both networks have room for; none without node prices.

    ``node_usd_per_chip`` is the node's price and range in the settings' price set,
    ``difference_usd_per_chip`` what it costs beyond the reference's. With
    ``break_even_usd_per_chip`` of difference the steps are equally long; None where no
    rate of the ports makes them so. ``faster_free`` and ``faster_priced``: whether the
    network is faster than the reference. ``flips``: whether that changes within the
    range of the prices.
    """
    if (
        settings.node_price_set is None
        or name == settings.reference
        or not settings.topologies[name].priced
        or family_of(topology).bill is None
    ):
        return []
    mine = chip_costs(settings, name, topology.settings)
    other = chip_costs(settings, settings.reference, reference.settings)
    networks = [
        (ExactLoads(graph, ways), equal_bandwidth(settings, graph))
        for graph, ways in (
            (topology, routings),
            (reference, settings.topologies[settings.reference].routings),
        )
    ]
    low, usual, high = _difference(settings, mine, other)
    rows = []
    for job_name, job in settings.jobs.items():
        try:
            places = [rank_placement(network.topology, job.layout.sizes) for network, _ in networks]
        except SettingsError as error:
            if error.key != "layout":
                raise
            continue
        (network, equal), (other_network, other_equal) = networks
        goal_ms = step_ms(other_network, places[1], job, other_equal)
        factor = _factor(network, places[0], job, equal, goal_ms)
        most = None if factor is None else other.ports_usd - factor * mine.ports_usd
        rows.append(
            {
                "topology": name,
                "reference": settings.reference,
                "job": job_name,
                "node_gb_s": sum(mine.components.values()),
                "node_usd_per_chip": mine.node.usd,
                "node_low_usd_per_chip": mine.node.low_usd,
                "node_high_usd_per_chip": mine.node.high_usd,
                "difference_usd_per_chip": usual,
                "difference_low_usd_per_chip": low,
                "difference_high_usd_per_chip": high,
                "break_even_usd_per_chip": most,
                "faster_free": most is not None and most > 0,
                "faster_priced": most is not None and most > usual,
                "flips": most is not None and min(low, 0.0) < most < max(high, 0.0),
                "fidelity": FIDELITY,
            }
        )
    return rows


def _difference(
    settings: MappingSettings, mine: ChipCosts, other: ChipCosts
) -> tuple[float, float, float]:
    """What a node costs beyond another: least, as the price set says, most."""
    assert settings.node_price_set is not None
    components = read_catalogue(settings.catalogue).components(settings.node_price_set)
    low = usual = high = 0.0
    for component in {*mine.components, *other.components}:
        more = mine.components.get(component, 0.0) - other.components.get(component, 0.0)
        unit = components[component].unit_cost
        low += more * (unit.low_usd if more > 0 else unit.high_usd)
        usual += more * unit.usd
        high += more * (unit.high_usd if more > 0 else unit.low_usd)
    return low, usual, high


def _factor(
    network: ExactLoads, placement: Any, job: JobSettings, equal: Basis, goal_ms: float
) -> float | None:
    """The factor of the ports' rate at which a step is as long; None: no rate does."""

    def at(factor: float) -> float:
        return step_ms(network, placement, job, replace(equal, ports=equal.ports * factor))

    if not at(_HIGHEST) < goal_ms < at(_LOWEST):
        return None
    # Slow to import, and only the price of a node needs it.
    from scipy.optimize import brentq

    ends = math.log(_LOWEST), math.log(_HIGHEST)
    # Times go with the reciprocal of the rate: their logarithm is nearly straight.
    return math.exp(brentq(lambda log: math.log(at(math.exp(log)) / goal_ms), *ends, xtol=1e-10))
