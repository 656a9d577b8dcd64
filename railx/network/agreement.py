"""The flow model against the packet simulator: throughput in both.

Traffic, routing and offered load are the same. The flow model gives every flow its
max-min fair rate with its offered load as demand; flows split in the fixed shares of
the routing. Below the static bound (the load at which the busiest link is full) the
flow model delivers the offered load. The packet simulator may deliver less, as packets
wait in finite buffers behind others whose links are busy. It may deliver more, as
packets of a flow may leave a path that is full.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from railx.errors import UserError
from railx.families import build_routing, family_of
from railx.network.flows.fair import fair_rates, link_gb_s
from railx.network.flows.paths import path_loads, spread_flows
from railx.network.packets.simulate import simulate_packets
from railx.network.settings import AgreementSettings
from railx.network.traffic import repeat_seeds, routed_for, traffic_flows
from railx.vocabulary.topology import Topology


def agreement_rows(
    topology: Topology, settings: AgreementSettings, seed: int, name: str
) -> list[dict[str, Any]]:
    """One row for each routing that the family offers, traffic pattern, load and seed.

    Circuits that follow the traffic are set for it where the routing takes them.
    Rates in flits/(chip cycle): ``offered``, ``flow`` (sum of the fair rates),
    ``packet`` (accepted in the measured cycles) and ``static_bound``;
    ``load_over_bound`` = offered over static bound, ``ratio`` = packet over flow.
    """
    rows = []
    for repeat_seed in repeat_seeds(seed, settings.repeats):
        rows += _rows_of_a_seed(topology, settings, repeat_seed, name)
    return rows


def _rows_of_a_seed(
    topology: Topology, settings: AgreementSettings, seed: int, name: str
) -> list[dict[str, Any]]:
    port_gb_s = topology.settings.port_gbps / 8
    rows = []
    for routing in settings.routings:
        if routing not in family_of(topology).routings:
            continue
        built = build_routing(topology, routing)
        network = dataclasses.replace(settings.network, routing=routing)
        for pattern, traffic in settings.traffics.items():
            flows = traffic_flows(topology, traffic, seed)
            if flows.spread.any():
                raise UserError(
                    f"{name}: got {topology.chips} chips; allowed: sizes whose flows are listed one"
                    " by one"
                )
            graph, table = routed_for(topology, built, flows.src, flows.dst, flows.share)
            capacity = link_gb_s(graph)
            paths = spread_flows(graph, table, flows.src, flows.dst)
            loads = path_loads(graph, paths, flows.share * port_gb_s)
            bound = float((capacity[loads > 0] / loads[loads > 0]).min())
            for over in settings.loads_over_bound:
                offered = over * bound
                rates = fair_rates(paths, capacity, flows.share * port_gb_s * offered)
                flow = float(rates.sum()) / port_gb_s / topology.chips
                result = simulate_packets(
                    graph, table, dataclasses.replace(traffic, load=offered), network, seed
                )
                packet = result.accepted_flits_per_chip_cycle
                rows.append(
                    {
                        "topology": name,
                        "family": topology.family,
                        "traffic": pattern,
                        "routing": routing,
                        "load_over_bound": over,
                        "offered_flits_per_chip_cycle": offered,
                        "static_bound_flits_per_chip_cycle": bound,
                        "flow_flits_per_chip_cycle": flow,
                        "packet_flits_per_chip_cycle": packet,
                        "ratio": packet / flow,
                        "seed": seed,
                        "flow_fidelity": "flow",
                        "packet_fidelity": "packet",
                        "fidelity": "flow",
                    }
                )
    return rows
