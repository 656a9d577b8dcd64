"""Networks that price the operations of graphs: two rates, exact loads, or rails.

All implement :class:`railx.replay.graph_pricing.GroupNetwork` for ranks that fill
servers in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from railx.families import build_topology, family_of
from railx.performance.networks import Kind, Network
from railx.performance.topologies import ExactLoads, Way
from railx.replay.graph_order import reordered
from railx.replay.graph_pricing import FloatArray
from railx.replay.graphs import NODE_KINDS, RankGraphs
from railx.replay.recording import Price
from railx.vocabulary.topology import FamilySettings

__all__ = ["GroupsAlone", "LoadedGroups", "OwnRings", "TableGroups", "placed", "places_by_traffic"]

IntArray = npt.NDArray[np.int64]


def places_by_traffic(graphs: RankGraphs, server: int) -> IntArray:
    """The place of each rank where the busiest groups that fit lie inside servers.

    For traces whose ranks are numbered by parallelism and not by server. Of the groups
    whose size divides ``server`` and that have every rank once, those with most bytes
    fill the servers in the order of their first ranks; where there are none, ranks keep
    their numbers.
    """
    best, most = list(range(graphs.ranks)), 0
    for alike in _classes(graphs):
        members = [rank for group in alike for rank in group]
        if server % len(alike[0]) or sorted(members) != list(range(graphs.ranks)):
            continue
        numbers = [number for number, group in enumerate(graphs.groups) if group in alike]
        size_bytes = int(graphs.columns["bytes"][np.isin(graphs.columns["group"], numbers)].sum())
        if size_bytes > most:
            best, most = members, size_bytes
    return np.argsort(best)


def placed(graphs: RankGraphs, places: IntArray) -> RankGraphs:
    """The same graphs with ranks numbered by their places."""
    ranks, peer = graphs.columns["rank"], graphs.columns["peer"]
    columns = dict(graphs.columns)
    columns["rank"] = places[ranks].astype(ranks.dtype)
    columns["peer"] = np.where(peer >= 0, places[peer], -1).astype(peer.dtype)
    groups = tuple(tuple(sorted(places[list(group)].tolist())) for group in graphs.groups)
    moved = replace(graphs, columns=columns, groups=groups)
    return reordered(moved, np.argsort(columns["rank"], kind="stable"))


@dataclass(frozen=True, eq=False)
class GroupsAlone:
    """Any network of the step model: each group as if no other communicated."""

    network: Network
    contention = "groups alone"

    def transfer_ns(self, kind: Kind, size_bytes: FloatArray, members: tuple[int, ...]) -> Any:
        """See :class:`railx.replay.graph_pricing.GroupNetwork`."""
        servers = np.unique(np.array(members) // self.network.node_devices, return_counts=True)[1]
        count, inside = np.full(len(size_bytes), len(members)), int(servers.min())
        return 1e9 * self.network.time_s(kind, size_bytes, count, np.full(len(size_bytes), inside))


@dataclass(frozen=True, eq=False)
class TableGroups:
    """The prices of a topology's table of bandwidths."""

    price: Price
    contention = "table"

    def transfer_ns(self, kind: Kind, size_bytes: FloatArray, members: tuple[int, ...]) -> Any:
        """See :class:`railx.replay.graph_pricing.GroupNetwork`."""
        return [self.price(kind, int(size), members) for size in size_bytes.tolist()]


class LoadedGroups:
    """Exact loads of a topology: all groups of a size that share no rank communicate at
    once, as in a training step, and so do messages between ranks of one distance.
    """

    contention = "exact loads"

    def __init__(self, loads: ExactLoads, graphs: RankGraphs) -> None:
        self._loads = loads
        alike = _classes(graphs)
        pairs = _messages(graphs)
        by_distance = {
            distance: [pair for pair in pairs if pair[1] - pair[0] == distance]
            for distance in {high - low for low, high in pairs}
        }
        self._groups = {group: np.array(groups) for groups in alike for group in groups}
        self._pairs: dict[tuple[int, ...], IntArray] = {
            pair: np.array(by_distance[pair[1] - pair[0]]) for pair in pairs
        }
        self._ways: dict[tuple[Kind, bytes], list[Way]] = {}

    def transfer_ns(self, kind: Kind, size_bytes: FloatArray, members: tuple[int, ...]) -> Any:
        """See :class:`railx.replay.graph_pricing.GroupNetwork`."""
        ranks = (self._pairs if kind == "send" else self._groups)[members]
        key = kind, ranks.tobytes()
        if key not in self._ways:
            self._ways[key] = self._loads.ways(self._loads.chips[ranks], kind)
        return _fastest(self._ways[key], size_bytes)


class OwnRings:
    """Rails whose circuits are switched for each operation.

    The servers of a collective have a ring to themselves, and both ports of two
    servers face each other. A message has one circuit, so one of two ports.
    """

    contention = "own circuits"

    def __init__(self, settings: FamilySettings, routings: tuple[str, ...]) -> None:
        lines = family_of(settings).lines
        assert lines is not None
        self._alone = lines.alone
        self._settings = settings
        self._routings = routings
        self._ways: dict[tuple[Kind, tuple[int, ...]], list[Way]] = {}
        self._loads: dict[int, ExactLoads] = {}

    def transfer_ns(self, kind: Kind, size_bytes: FloatArray, members: tuple[int, ...]) -> Any:
        """See :class:`railx.replay.graph_pricing.GroupNetwork`."""
        server = self._of(2).node_devices
        servers, places = np.unique(np.array(members) // server, return_inverse=True)
        chips = tuple((places * server + np.array(members) % server).tolist())
        if (kind, chips) not in self._ways:
            loads = self._of(max(2, len(servers)))
            self._ways[kind, chips] = loads.ways(np.array([chips]), kind)
        return _fastest(self._ways[kind, chips], size_bytes, 0.5 if kind == "send" else 1.0)

    def _of(self, servers: int) -> ExactLoads:
        if servers not in self._loads:
            alone = build_topology(self._alone(self._settings, servers, "ring"))
            self._loads[servers] = ExactLoads(alone, self._routings)
        return self._loads[servers]


def _fastest(ways: list[Way], size_bytes: FloatArray, ports: float = 1.0) -> Any:
    """Nanoseconds by the best way, with a share of the ports between nodes."""
    rates = [min(way.rates.between_gb_s * ports, way.rates.inside_gb_s) for way in ways]
    return np.min(
        [
            way.latency_ns + size_bytes * way.sent / gb_s
            for way, gb_s in zip(ways, rates, strict=True)
        ],
        axis=0,
    )


def _classes(graphs: RankGraphs) -> list[list[tuple[int, ...]]]:
    """The groups in use, those of a size that share no rank together."""
    used = np.unique(graphs.columns["group"][graphs.columns["group"] >= 0]).tolist()
    classes: list[tuple[list[tuple[int, ...]], set[int]]] = []
    for group in sorted({graphs.groups[number] for number in used}):
        for groups, members in classes:
            if len(groups[0]) == len(group) and members.isdisjoint(group):
                groups.append(group)
                members.update(group)
                break
        else:
            classes.append(([group], set(group)))
    return [groups for groups, _ in classes]


def _messages(graphs: RankGraphs) -> list[tuple[int, int]]:
    """Sender and receiver of all messages, without repeats."""
    columns = graphs.columns
    ends = [
        columns[names][columns["kind"] == NODE_KINDS.index(word)]
        for word, order in (("send", ("rank", "peer")), ("recv", ("peer", "rank")))
        for names in order
    ]
    pairs = np.concatenate([np.stack(ends[:2], axis=1), np.stack(ends[2:], axis=1)])
    return sorted({(low, high) for low, high in pairs.tolist()})
