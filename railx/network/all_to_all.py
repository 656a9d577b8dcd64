"""All-to-all among chips of a network, in two models.

One is the bottleneck of the routing's exact loads, the other sends all messages at once
at fair rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from railx.families import build_routing, family_of
from railx.network.flows.fair import link_gb_s
from railx.network.flows.paths import route_flows
from railx.network.flows.transfers import finish_times
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.routing.analysis import longest_paths, table_lane_loads
from railx.vocabulary.topology import Topology

#: Messages whose loads are summed over a routing table; larger networks need closed
#: forms.
_MOST_ROUTED = 2_000_000
_BLOCK = 1_024


@dataclass(frozen=True)
class AllToAll:
    """The bottleneck and the longest path of an all-to-all.

    ``gb_s``: rate of a chip to all others together while the busiest link is full.
    ``latency_ns``: latency of the longest path, or the family's bound where the network
    is too large to follow every path.
    """

    participants: int
    gb_s: float
    latency_ns: float

    def analytic_ns(self, payload_bytes: float) -> float:
        """Time at the bottleneck: every chip keeps 1 / P of its payload and sends the
        rest.
        """
        share = (self.participants - 1) / self.participants
        return self.latency_ns + share * payload_bytes / self.gb_s


def all_to_all(topology: Topology, chips: IntArray, routing: str) -> AllToAll | None:
    """The all-to-all of ``chips`` under a routing.

    None for a network that is too large and has no closed form.
    """
    if len(chips) * (len(chips) - 1) <= _MOST_ROUTED:
        return _routed(topology, chips, routing)
    family = family_of(topology)
    if (
        family.loads is None
        or family.longest_path_ns is None
        or len(chips) < topology.chips
        or routing not in ("min", "balanced")
    ):
        return None
    loads = family.loads(topology.settings, topology, "min" if routing == "min" else "balanced")
    # A lane's load is relative to an external port, full with one flit per cycle.
    port_gbps = topology.settings.port_gbps
    width = topology.links.gbps / port_gbps
    bound = float((width[loads > 0] / loads[loads > 0]).min())
    latency_ns = family.longest_path_ns(topology.settings)
    return AllToAll(len(chips), bound * port_gbps / 8, latency_ns)


class Messages:
    """All messages of an all-to-all, sent at once; they share links max-min fairly."""

    def __init__(self, topology: Topology, chips: IntArray, routing: str) -> None:
        paths = route_flows(topology, routing, *_pairs(chips))
        self._latency = paths.latency_ns
        self._sending = finish_times(paths, link_gb_s(topology), 1 / len(chips)) - paths.latency_ns

    def time_ns(self, payload_bytes: float) -> float:
        """Arrival of the last message; the time grows in proportion to the payload."""
        return float((self._sending * payload_bytes + self._latency).max())


def _routed(topology: Topology, chips: IntArray, routing: str) -> AllToAll:
    loads, latency = np.zeros(len(topology.links)), 0.0
    for block in np.split(np.sort(chips).astype(np.int32), range(_BLOCK, len(chips), _BLOCK)):
        table = build_routing(topology, routing, block)
        demand = np.zeros((topology.chips, len(block)))
        demand[chips] = 1 / (len(chips) - 1)
        demand[block, np.arange(len(block))] = 0
        loads += table_lane_loads(topology, table, demand) * topology.links.lanes
        latency = max(
            latency, float(longest_paths(topology, table, topology.links.latency_ns)[chips].max())
        )
    used = loads > 0
    return AllToAll(len(chips), float((link_gb_s(topology)[used] / loads[used]).min()), latency)


def _pairs(chips: IntArray) -> tuple[IntArray, IntArray]:
    """All ordered pairs, ascending by destination so that a block needs few table
    columns.
    """
    dst, src = (axis.ravel() for axis in np.meshgrid(chips, chips, indexing="ij"))
    return src[src != dst], dst[src != dst]
