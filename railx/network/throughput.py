"""Throughput bounds from exact channel loads, as the rows of the stage."""

from __future__ import annotations

from typing import Any

import numpy as np

from railx.families import family_of
from railx.network.settings import StaticNetworkSettings, TrafficSettings
from railx.network.static_loads import lane_loads
from railx.network.traffic import circuits_for
from railx.vocabulary.arrays import FloatArray
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology

FIDELITY = "analytic"


def simulate_static(
    topology: Topology,
    traffic: TrafficSettings,
    network: StaticNetworkSettings,
    name: str,
    *,
    seed: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Throughput bounds of a traffic pattern from exact static channel loads.

    ``seed`` draws the random parts of the pattern. Returns a summary row and the
    columns of a table of channels (src, dst, kind, rail, load of one lane, fidelity;
    one row per link row of the topology). Throughput is in flits/chip/cycle, where a
    cycle moves one flit over an external port, and in GB/s per chip.

    * bound: offered load at which the busiest lane, internal ones at their own width,
      is full.
    * ideal: the same with the load of each external kind of link spread evenly over its
      links (RailX: 4 r / (m^2 h) with h external hops) and wide internal links.
    * internal_width_needed: width of an internal lane, in external ports, that does not
      lower the bound; None without internal links.
    """
    topology = circuits_for(topology, traffic, seed)
    settings = topology.settings
    links = topology.links
    load = lane_loads(topology, traffic, network.routing, seed)
    width = links.gbps / settings.port_gbps
    with np.errstate(divide="ignore"):
        limit = np.where(load > 0, width / load, np.inf)
    busiest = int(
        np.round(limit, 9).argmin()
    )  # equal lanes differ in the last digits: take the first
    external = links.kind != INTERNAL
    bound, ideal = float(limit[busiest]), ideal_bound(topology, load)
    gb_s = settings.port_gbps / 8
    summary = {
        "topology": name,
        "family": topology.family,
        "chips": topology.chips,
        "nodes": topology.nodes,
        "traffic": traffic.pattern,
        "routing": network.routing,
        "ideal_flits_per_chip_cycle": ideal,
        "bound_flits_per_chip_cycle": bound,
        "injection_gb_s_per_chip": family_of(settings).ports_per_chip(settings) * gb_s,
        "ideal_gb_s_per_chip": ideal * gb_s,
        "bound_gb_s_per_chip": bound * gb_s,
        "bound_over_ideal": bound / ideal,
        "mean_external_hops": float((load * links.lanes)[external].sum()) / topology.chips,
        "mean_internal_hops": float((load * links.lanes)[~external].sum()) / topology.chips,
        "internal_width_needed": None
        if external.all()
        else float(load[~external].max() / load[external].max()),
        "busiest_link_kind": LINK_KINDS[int(links.kind[busiest])],
        "fidelity": FIDELITY,
    }
    return summary, _channels(topology, load)


def ideal_bound(topology: Topology, load: FloatArray) -> float:
    """Offered load that fills the average lane of the scarcest external kind.

    ``load``: of one lane of each link row.
    """
    kinds = topology.links.kind
    lanes = topology.links.lanes
    width = topology.links.gbps / topology.settings.port_gbps
    return min(
        float((width * lanes)[kinds == kind].sum() / (load * lanes)[kinds == kind].sum())
        for kind in np.unique(kinds).tolist()
        if kind != INTERNAL
    )


def _channels(topology: Topology, load: FloatArray) -> dict[str, Any]:
    """The channel table as columns.

    Names are dictionary-encoded: the full scale has millions of rows.
    """
    from railx.io import as_words

    links = topology.links
    return {
        "src": links.src,
        "dst": links.dst,
        "kind": as_words(links.kind, LINK_KINDS),
        "rail": links.rail,
        "load": load,
        "fidelity": as_words(np.zeros(len(links), dtype=np.int8), [FIDELITY]),
    }
