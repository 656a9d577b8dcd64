"""Bandwidth and latency of the operations of groups of ranks on a topology.

Ranks are placed as those of a training job (the family's ``placement``). For each group
size and stride between members, all groups that fill the job communicate at once, so
that they contend for links as in a training step. An operation of ``bytes`` takes
``latency_us + bytes / gb_s``; its bytes are those of the whole tensor of a rank before
or after it (an all-to-all's input, an all-gather's output, a reduce-scatter's input, a
message).

Each operation has a row for each algorithm: ``direct`` (every member sends its part to
every other) and ``ring`` (both directions). ``railx.replay.pricing`` takes the better
one for an operation's size.

* ``analytic``: exact channel loads of the routing; the busiest channel sets the rate.
* ``flow``: all messages at once with max-min fair rates; the last one sets the rate.

Latency is that of the flight alone, message after message, without software.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from railx.families import build_routing, rank_placement
from railx.network.flows import finish_times, link_gb_s, spread_flows
from railx.network.settings import BandwidthSettings
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.routing.analysis import longest_paths, table_channel_loads
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

__all__ = ["all_to_all_gb_s", "group_bandwidth", "group_shapes", "ranks_in_order"]


@dataclass(frozen=True)
class _Way:
    """A pattern of messages within groups.

    ``share[i, j]``: the part of member i's traffic that goes to member j; ``rounds``:
    messages in a row.
    """

    share: FloatArray
    rounds: int


def group_bandwidth(
    topology: Topology, settings: BandwidthSettings, routing: str, name: str
) -> list[dict[str, Any]]:
    """One row for each operation, group size, placement, algorithm and fidelity.

    Columns: topology, operation, algorithm, group_size, stride, placement
    (``consecutive`` for stride 1, else ``strided``), gb_s, latency_us, fidelity.
    SettingsError("ranks") where the job has no room on the topology.
    """
    chips = ranks_in_order(topology, settings.ranks)
    table = build_routing(topology, routing, np.sort(chips).astype(np.int32))
    rows: list[dict[str, Any]] = []
    for size, stride in group_shapes(len(chips)):
        groups = _groups(chips, size, stride)
        key = {
            "group_size": size,
            "stride": stride,
            "placement": "consecutive" if stride == 1 else "strided",
        }
        for algorithm, way in _ways(size).items():
            for fidelity in settings.fidelities:
                rate = _flow_rate if fidelity == "flow" else _exact_rate
                gb_s, flight_ns = rate(topology, table, groups, way)
                for operation, sent in _sent(algorithm, size).items():
                    halves = 2 if operation == "all_reduce" else 1
                    rows.append(
                        {"topology": name, "operation": operation, "algorithm": algorithm}
                        | key
                        | {
                            "gb_s": gb_s / sent,
                            "latency_us": flight_ns * way.rounds * halves / 1e3,
                            "fidelity": fidelity,
                        }
                    )
    return rows


def all_to_all_gb_s(topology: Topology, ranks: int, routing: str) -> dict[int, float]:
    """All-to-all bandwidth of groups of consecutive ranks by size, as
    :func:`group_bandwidth`.
    """
    chips = ranks_in_order(topology, ranks)
    table = build_routing(topology, routing, np.sort(chips).astype(np.int32))
    bandwidth = {}
    for size, stride in group_shapes(len(chips)):
        if stride == 1:
            groups = _groups(chips, size, stride)
            gb_s, _ = _exact_rate(topology, table, groups, _ways(size)["direct"])
            bandwidth[size] = gb_s / _sent("direct", size)["all_to_all"]
    return bandwidth


def ranks_in_order(topology: Topology, ranks: int) -> IntArray:
    """The chip of every rank.

    Ranks fill the chips of a node, then the nodes of a row, then rows, on a grid of
    nodes if the family has one.
    """
    mesh = topology.chips // topology.nodes
    while ranks % mesh:
        mesh -= 1
    nodes, best = ranks // mesh, None
    for x in range(nodes, 0, -1):
        if nodes % x:
            continue
        try:
            placement = rank_placement(topology, (mesh, x, nodes // x))
        except SettingsError:
            continue
        best = placement if best is None or placement.kind == "grid" else best
        if best.kind == "grid":
            break
    if best is None:
        raise SettingsError(
            "ranks", f"got {ranks}; allowed on {topology.family} of {topology.chips} chips: fewer"
        )
    # Mesh is the first axis and varies fastest.
    return best.chips.transpose(2, 1, 0).ravel()


def group_shapes(ranks: int) -> Iterator[tuple[int, int]]:
    """Sizes and strides of groups that fill a job, powers of two."""
    size = 2
    while size <= ranks:
        stride = 1
        while size * stride <= ranks:
            yield size, stride
            stride *= 2
        size *= 2


def _groups(chips: IntArray, size: int, stride: int) -> IntArray:
    """All groups of a shape: int[groups, members]."""
    end = len(chips) // (size * stride) * size * stride
    blocks = chips[:end].reshape(-1, size, stride)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1)).reshape(-1, size)


def _ways(size: int) -> dict[str, _Way]:
    """The algorithms of a group."""
    ways = {"direct": _Way((1 - np.eye(size)) / (size - 1), 1)}
    if size > 2:
        following = np.roll(np.eye(size), 1, axis=1)
        ways["ring"] = _Way((following + following.T) / 2, size - 1)
    return ways


def _sent(algorithm: str, size: int) -> dict[str, float]:
    """Bytes that a member sends per byte of an operation, by operation of an algorithm.

    An all-reduce is a reduce-scatter and an all-gather. Both ends of a message send at
    once, as neighbouring stages of a pipeline do.
    """
    share = (size - 1) / size
    gathers = {"all_gather": share, "reduce_scatter": share, "all_reduce": 2 * share}
    if algorithm == "ring":
        return gathers
    return {"all_to_all": share} | gathers | ({"message": 1.0} if size == 2 else {})


def _exact_rate(
    topology: Topology, table: RoutingTable, groups: IntArray, way: _Way
) -> tuple[float, float]:
    """Rate of each member (GB/s), and the longest flight in ns."""
    demand = np.zeros((topology.chips, len(table.destinations)))
    column = np.searchsorted(table.destinations, groups)
    demand[groups[:, :, None], column[:, None, :]] = way.share
    load = table_channel_loads(topology, table, demand)
    flight = longest_paths(topology, table, topology.links.latency_ns, demand)
    width = np.repeat(topology.links.gbps, topology.links.lanes) / 8
    used = load > 0
    return float((width[used] / load[used]).min()), float(flight[demand > 0].max())


def _flow_rate(
    topology: Topology, table: RoutingTable, groups: IntArray, way: _Way
) -> tuple[float, float]:
    """Rate and flight as :func:`_exact_rate`, by max-min fair rates of all messages at
    once.
    """
    member, other = np.nonzero(way.share)
    paths = spread_flows(topology, table, groups[:, member].ravel(), groups[:, other].ravel())
    size_bytes = np.tile(way.share[member, other], len(groups))
    sending = finish_times(paths, link_gb_s(topology), size_bytes) - paths.latency_ns
    return float(1 / sending.max()), float(paths.latency_ns.max())
