"""Graphs replayed on networks, by mode and reconfiguration latency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np

from railx.errors import UserError
from railx.fabric.circuits import Layout
from railx.fabric.settings import Mode
from railx.families import build_topology, family_of, static_routing_names
from railx.performance.networks import Kind, Network, TwoLevelRing
from railx.performance.topologies import ExactLoads, Way, chips_of
from railx.replay.graph_pricing import Counts, DeviceRates, node_ns
from railx.replay.graph_run import (
    ReplayedGraph,
    in_order_of_start,
    prepare_graph,
    reordered,
    replay_graph,
)
from railx.replay.graphs import COMPUTE, NODE_KINDS, RankGraphs
from railx.replay.recording import Price
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.topology import FamilySettings


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
        by_distance: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for low, high in _messages(graphs):
            by_distance[high - low].append((low, high))
        self._groups = {group: np.array(groups) for groups in alike for group in groups}
        self._pairs: dict[tuple[int, ...], IntArray] = {
            pair: np.array(pairs) for pairs in by_distance.values() for pair in pairs
        }
        self._ways: dict[tuple[Kind, int, bytes], list[Way]] = {}

    def transfer_ns(self, kind: Kind, size_bytes: FloatArray, members: tuple[int, ...]) -> Any:
        """See :class:`railx.replay.graph_pricing.GroupNetwork`."""
        ranks = (self._pairs if kind == "send" else self._groups)[members]
        # Groups of two sizes may have the same ranks in the same order.
        key = kind, len(members), ranks.tobytes()
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
    pairs = zip(ways, rates, strict=True)
    return np.min([way.latency_ns + size_bytes * way.sent / gb_s for way, gb_s in pairs], axis=0)


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
    rank, peer, kind = (graphs.columns[name] for name in ("rank", "peer", "kind"))
    pairs: set[tuple[int, int]] = set()
    for word, *ends in (("send", rank, peer), ("recv", peer, rank)):
        here = kind == NODE_KINDS.index(word)
        pairs.update(zip(*(values[here].tolist() for values in ends), strict=True))
    return sorted(pairs)


#: Prices of the operations of graphs whose ranks fill servers in order.
PricedNetwork: TypeAlias = GroupsAlone | LoadedGroups | OwnRings


@dataclass(frozen=True)
class TwoRates:
    """Rings at one rate inside servers and at another between them, GB/s of a rank in
    one direction; ``latency_ns``: of each hop of a ring.
    """

    name: str
    ranks_per_server: int
    scale_up_gb_s: float
    scale_out_gb_s: float
    latency_ns: float = 0.0
    switched = True

    def server(self, ranks: int) -> int:
        """Ranks of a server."""
        return self.ranks_per_server

    def chips(self, ranks: int) -> int:
        """As many as there are ranks."""
        return ranks

    def priced(self, graphs: RankGraphs) -> PricedNetwork:
        """Groups alone."""
        latency_s = self.latency_ns * 1e-9
        rates = self.scale_up_gb_s, self.scale_out_gb_s
        return GroupsAlone(
            TwoLevelRing(self.ranks_per_server, *rates, latency_s, latency_s, 1.0, 1.0)
        )


@dataclass(frozen=True)
class FamilyNetwork:
    """A network family, with as many chips as there are ranks or more.

    Where ``settings`` have fewer, the family's next larger network takes their place,
    or the smallest of ``others`` that has enough.

    Rails with one kind of line are switched in the step: every operation has circuits
    to itself. Other networks, RailX among them, keep the circuits of the whole job.
    """

    name: str
    settings: FamilySettings
    others: tuple[FamilySettings, ...] = ()

    @property
    def switched(self) -> bool:
        """Whether circuits can be switched in the step."""
        family = family_of(self.settings)
        return family.switched and family.lines is not None and len(family.lines.axes) == 1

    def sized(self, ranks: int) -> FamilySettings:
        """The settings, of a larger network where there are more ranks than chips."""
        chips, family = chips_of(self.settings), family_of(self.settings)
        bill = family.bill
        if ranks <= chips:
            return self.settings
        if self.switched and family.lines is not None:
            servers = family.lines.nodes(self.settings)
            return family.lines.alone(self.settings, -(-ranks * servers // chips), "ring")
        if bill is not None:
            with suppress(SettingsError):
                return bill.resize(self.settings, ranks)
        larger = [other for other in self.others if chips_of(other) >= ranks]
        if not larger:
            raise UserError(
                f"--network: got {self.name} of {chips} chips for {ranks} ranks; allowed: a network"
                " of as many chips"
            )
        return min(larger, key=chips_of)

    def server(self, ranks: int) -> int:
        """Chips of a node."""
        topology = build_topology(self.sized(ranks))
        return topology.chips // topology.nodes

    def chips(self, ranks: int) -> int:
        """Chips of the network."""
        return chips_of(self.sized(ranks))

    def priced(self, graphs: RankGraphs) -> PricedNetwork:
        """Exact loads of all groups at once; of rails those of each ring.

        Of the routings that do not depend on queues, each operation takes the best.
        """
        settings = self.sized(graphs.ranks)
        offered = family_of(settings).routings
        routings = tuple(name for name in offered if name in static_routing_names())
        if self.switched:
            return OwnRings(settings, routings)
        loads = ExactLoads(build_topology(settings), routings, graphs.ranks)
        return LoadedGroups(loads, graphs)


ReplayedNetwork: TypeAlias = TwoRates | FamilyNetwork


@dataclass(frozen=True, eq=False)
class GraphRow:
    """One replay. ``replayed`` has ranks by their places in servers; ``rank_of``: the
    rank of the trace at each place.
    """

    network: str
    chips: int
    mode: Mode
    latency_ms: float
    windows: int
    contention: str
    replayed: ReplayedGraph
    rank_of: IntArray
    placement: str

    def as_dict(self) -> dict[str, Any]:
        """The figures, times in ms; ``waiting_ms``: neither computation nor exposed
        communication.
        """
        rank, step_ns = self.replayed.last_rank, self.replayed.step_ns
        compute_ns, exposed_ns = self.replayed.compute_ns(rank), self.replayed.exposed_ns(rank)
        return {
            **{name: getattr(self, name) for name in ("network", "chips", "mode", "latency_ms")},
            "step_ms": step_ns / 1e6,
            "compute_ms": compute_ns / 1e6,
            "exposed_ms": {kind: ns / 1e6 for kind, ns in exposed_ns.items()},
            "waiting_ms": (step_ns - compute_ns - sum(exposed_ns.values())) / 1e6,
            "rank": int(self.rank_of[rank]),
            "switches": self.replayed.commands,
            **{name: getattr(self, name) for name in ("windows", "contention", "placement")},
            "fidelity": "replay",
        }


def graph_rows(
    graphs: RankGraphs,
    networks: Sequence[ReplayedNetwork],
    modes: Sequence[Mode],
    latencies_ms: Sequence[float],
    *,
    device: DeviceRates,
    counts: Counts,
    server: int | None = None,
    by_traffic: bool = False,
    one_collective: bool = True,
    issued: bool = False,
) -> Iterator[GraphRow]:
    """A row for each network, mode and latency.

    A network whose circuits are not switched in the step has one row, in mode
    ``electrical``; that mode has no latency. ``by_traffic``: ranks are placed so that
    the busiest groups lie in servers; ``server``: ranks of one where a network has
    nodes of one chip. ``one_collective``: a rank carries out one collective at a time,
    else one of each group. ``issued``: nodes are in the order in which ranks issue
    them; else in any that their dependencies allow.
    """
    for network in networks:
        alone = network.server(graphs.ranks)
        places = np.arange(graphs.ranks)
        if by_traffic:
            places = places_by_traffic(graphs, alone if alone > 1 else server or 1)
        moved = placed(graphs, places)
        priced = network.priced(moved)
        layout = Layout(alone if alone > 1 else server or 1)
        taken_ns = node_ns(moved, device, priced, counts)
        with _explained(one_collective):
            if not issued:
                moved, taken_ns = in_order_of_start(moved, taken_ns, one_collective=one_collective)
            prepared = prepare_graph(moved, taken_ns, layout, one_collective=one_collective)
        for mode, latency_ms in _settings(network, modes, latencies_ms):
            with _explained(one_collective):
                replayed = replay_graph(prepared, mode, round(latency_ms * 1e6))
            yield GraphRow(
                network.name,
                network.chips(graphs.ranks),
                mode,
                latency_ms,
                _window_count(replayed, layout.is_scale_up),
                priced.contention,
                replayed,
                np.argsort(places),
                "traffic" if by_traffic else "consecutive",
            )


@contextmanager
def _explained(one_collective: bool) -> Iterator[None]:
    """Name the option that ranks need whose collectives wait for each other."""
    try:
        yield
    except UserError as error:
        if not one_collective:
            raise
        raise UserError(f"{error}, or --collectives one_of_each_group") from None


def _settings(
    network: ReplayedNetwork, modes: Sequence[Mode], latencies_ms: Sequence[float]
) -> list[tuple[Mode, float]]:
    if not network.switched:
        return [("electrical", 0.0)]
    pairs = product(modes, latencies_ms)
    return list(dict.fromkeys((m, 0.0 if m == "electrical" else ms) for m, ms in pairs))


def _window_count(replayed: ReplayedGraph, inside: Callable[[Iterable[Any]], bool]) -> int:
    """How often the rank that ends last goes from one group or peer to another.

    Operations that leave a server count (``inside``: whether ranks share one).
    """
    graphs, rank = replayed.graph, replayed.last_rank
    columns = graphs.columns
    rows = np.flatnonzero((columns["rank"] == rank) & (columns["kind"] != COMPUTE))
    rows = rows[np.argsort(replayed.started_ns[rows], kind="stable")]
    ends = zip(columns["group"][rows].tolist(), columns["peer"][rows].tolist(), strict=True)
    partners = [
        frozenset(graphs.groups[group] if group >= 0 else (rank, peer)) for group, peer in ends
    ]
    leaving = [members for members in partners if not inside(members)]
    return sum(now != before for before, now in pairwise(leaving))
