"""Exact static channel loads, in closed form, by hops or over a routing table.

Families may have closed forms for uniform all-to-all. Every function returns one load
per row of ``topology.links``: flits per cycle on one lane when chips offer one flit per
cycle on average, for uniform traffic spread evenly over all other chips. A cycle moves
one flit over an external port. Sources: the MIN routing of the RailX simulator;
dimension-order routing for tori; equal-cost multi-path for fat trees.
"""

from __future__ import annotations

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
from railx.network.settings import AllToAllTraffic, TrafficSettings, UniformTraffic
from railx.network.traffic import traffic_flows
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray
from railx.vocabulary.routing.analysis import table_lane_loads
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.topology import Topology

#: The routings of closed forms.
_LINE_ROUTINGS: tuple[LineRouting, ...] = ("min", "balanced")

#: Above this a table over all pairs takes minutes, and a gigabyte per block.
_MOST_TABLE_CHIPS = 6_000
_BLOCK = 1_024


def static_routings(topology: Topology) -> tuple[str, ...]:
    """The routings with computable loads on a topology.

    Only those of closed forms where it is too large for a table over all pairs.
    """
    family = family_of(topology)
    closed = () if family.loads is None else _LINE_ROUTINGS
    if topology.chips > _MOST_TABLE_CHIPS:
        return closed
    static = static_routing_names()
    return tuple(dict.fromkeys([*closed, *(name for name in family.routings if name in static)]))


def lane_loads(topology: Topology, traffic: TrafficSettings, routing: str, seed: int) -> FloatArray:
    """:func:`uniform_lane_loads` for any traffic pattern.

    Patterns other than uniform and all-to-all at up to 6,000 chips.
    """
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
    """The loads of a routing table (``demand`` None: uniform), by blocks of
    destinations.
    """
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
