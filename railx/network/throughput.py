"""Exact static channel loads, in closed form, by hops or over a routing table, and the
throughput bounds that follow, as the rows of the stage.

Families may have closed forms for uniform all-to-all. Every function returns one load
per row of ``topology.links``: flits per cycle on one lane when chips offer one flit per
cycle on average, for uniform traffic spread evenly over all other chips. A cycle moves
one flit over an external port. Sources: the MIN routing of the RailX simulator;
dimension-order routing for tori; equal-cost multi-path for fat trees.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railx.errors import UserError
from railx.families import (
    build_routing,
    families_with,
    family_named,
    family_of,
    static_routing_names,
)
from railx.network.group_bandwidth import routed_loads
from railx.network.settings import (
    AllToAllTraffic,
    StaticNetworkSettings,
    TrafficSettings,
    UniformTraffic,
)
from railx.network.traffic import circuits_for, traffic_flows
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray
from railx.vocabulary.routing.analysis import table_lane_loads
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology

#: The routings of closed forms.
_LINE_ROUTINGS: tuple[LineRouting, ...] = ("min", "balanced")

#: Above this a table over all pairs takes minutes, and a gigabyte per block.
_MOST_TABLE_CHIPS = 6_000
_BLOCK = 1_024
FIDELITY = "analytic"


def static_routings(topology: Topology) -> tuple[str, ...]:
    """The routings with computable loads: closed forms alone, where too large."""
    family = family_of(topology)
    closed = () if family.loads is None else _LINE_ROUTINGS
    if topology.chips > _MOST_TABLE_CHIPS:
        return closed
    static = static_routing_names()
    return tuple(dict.fromkeys([*closed, *(name for name in family.routings if name in static)]))


def lane_loads(topology: Topology, traffic: TrafficSettings, routing: str, seed: int) -> FloatArray:
    """:func:`uniform_lane_loads` for any pattern, others at up to 6,000 chips."""
    if isinstance(traffic, UniformTraffic | AllToAllTraffic):
        return uniform_lane_loads(topology, routing)
    _check_size(topology, f"{traffic.pattern} traffic")
    return _table_loads(topology, routing, traffic_flows(topology, traffic, seed).demand())


def uniform_lane_loads(topology: Topology, routing: str) -> FloatArray:
    """Load of one lane of each link row under uniform all-to-all, exact.

    In flits/cycle per flit/chip/cycle offered; the mean of the lanes of each row. At
    any size for families with closed forms, at up to 6,000 chips for the others,
    ValueError above. ``routing`` as in :class:`railx.network.StaticNetworkSettings`.
    """
    closed_form = family_of(topology).loads
    for line_routing in _LINE_ROUTINGS:
        if closed_form is not None and routing == line_routing:
            loads: FloatArray = closed_form(topology.settings, topology, line_routing)
            return loads
    _check_size(topology, f"family {topology.family}")
    if routing in family_named(topology.family).hop_loads:
        every = routed_loads(topology, routing)
        if every.of_gathers is not None:
            _, load, _ = every.of_gathers(np.arange(topology.chips)[None, :])
            lanes = topology.links.lanes.astype(np.int64)
            by_row: FloatArray = np.add.reduceat(load, np.cumsum(lanes) - lanes) / lanes
            return by_row
    return _table_loads(topology, routing, None)


def _check_size(topology: Topology, what: str) -> None:
    if topology.chips > _MOST_TABLE_CHIPS:
        raise UserError(
            f"topology: {topology.chips:,} chips are too many for a table over all pairs, which"
            f" {what} needs; allowed: at most {_MOST_TABLE_CHIPS:,}, or uniform traffic on a family"
            f" with closed forms: {families_with('loads')}"
        )


def _table_loads(topology: Topology, routing: str, demand: FloatArray | None) -> FloatArray:
    """The loads of a routing table, by blocks; ``demand`` None: uniform traffic."""
    blocks = np.split(
        np.arange(topology.chips, dtype=np.int32), range(_BLOCK, topology.chips, _BLOCK)
    )
    loads = []
    for block in blocks:
        table = build_routing(topology, routing, block)
        if table.selection == "adaptive":
            raise SettingsError(
                "routing",
                f"got {routing!r}, which chooses by queues; allowed: a routing with exact loads:"
                f" {', '.join(static_routings(topology))}",
            )
        loads.append(
            table_lane_loads(topology, table, None if demand is None else demand[:, block])
        )
    total: FloatArray = np.sum(loads, axis=0)
    return total


@np.errstate(divide="ignore")  # what no traffic takes sets no limit
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
    limit = np.where(load > 0, width / load, np.inf)
    # Equal lanes differ in the last digits: the first is taken.
    busiest = int(np.round(limit, 9).argmin())
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
        else float(load[~external].max() / (load / width)[external].max()),
        "busiest_link_kind": LINK_KINDS[int(links.kind[busiest])],
        "fidelity": FIDELITY,
    }
    return summary, _channels(topology, load)


@np.errstate(divide="ignore")
def ideal_bound(topology: Topology, load: FloatArray) -> float:
    """Offered load that fills the scarcest external kind; ``load``: of a lane."""
    kinds = topology.links.kind
    lanes = topology.links.lanes
    width = topology.links.gbps / topology.settings.port_gbps
    return min(
        float((width * lanes)[kinds == kind].sum() / (load * lanes)[kinds == kind].sum())
        for kind in np.unique(kinds).tolist()
        if kind != INTERNAL
    )


def _channels(topology: Topology, load: FloatArray) -> dict[str, Any]:
    """The channel table by columns, with words encoded: it has millions of rows."""
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
