"""The price of a node at which the ranking of two networks flips.

At equal cost a network pays for its ports and its node. The step gets shorter with the
rate of the ports, so one rate makes it as long as the reference's. Its cost, taken from
what the reference pays for its own ports, is what the node may cost beyond the
reference's: with a dearer node the network is slower, with a cheaper one faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from railx.economics import read_catalogue
from railx.families import family_of, rank_placement
from railx.mapping.cost import ChipCosts, chip_costs, equal_bandwidth
from railx.mapping.settings import JobSettings, MappingSettings
from railx.mapping.step import FIDELITY, Basis, step_ms
from railx.performance.topologies import ExactLoads
from railx.settings import SettingsError
from railx.vocabulary.topology import Topology

#: Factors of the rate of ports that are looked between.
_LOWEST, _HIGHEST = 1e-6, 1e3


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
    """What a node costs beyond another: least, as the price set says, most.

    Links of one kind have the same price in both.
    """
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
    """The rate of the ports, over that of equal bandwidth, at which a step is as long.

    None where no rate does.
    """

    def at(factor: float) -> float:
        return step_ms(network, placement, job, replace(equal, ports=equal.ports * factor))

    if not at(_HIGHEST) < goal_ms < at(_LOWEST):
        return None
    # Slow to import, and only the price of a node needs it.
    from scipy.optimize import brentq

    ends = math.log(_LOWEST), math.log(_HIGHEST)
    # Times go with the reciprocal of the rate: their logarithm is nearly straight.
    return math.exp(brentq(lambda log: math.log(at(math.exp(log)) / goal_ms), *ends, xtol=1e-10))
