"""Replays of graphs: nodes begin when what they depend on has ended.

The engine, the rules for circuits and the modes are those of programs
(:mod:`railx.replay.run`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from railx.errors import UserError
from railx.fabric.circuits import Configuration, Layout
from railx.fabric.settings import Mode
from railx.replay.graphs import COMPUTE, NODE_KINDS, RankGraphs
from railx.replay.kernels import state
from railx.replay.programs import DOES, Programs
from railx.replay.run import Dependencies, Prepared, covered_before, merged, prepare, run_graph
from railx.replay.wiring import CircuitModel
from railx.vocabulary.arrays import Array, IntArray

_ISSUE, _COMPUTE = DOES.index("issue"), DOES.index("compute")
_SEND, _RECV = NODE_KINDS.index("send"), NODE_KINDS.index("recv")


@dataclass(frozen=True, eq=False)
class PreparedGraph:
    """A graph with the times of its nodes, as the engine takes it."""

    graph: RankGraphs
    prepared: Prepared


@dataclass(frozen=True, eq=False)
class ReplayedGraph:
    """The results of a replay.

    ``started_ns``, ``ended_ns``: int64[nodes]. ``commands``: how many the switches were
    given, ``requests`` and ``reconfigurations`` of all ranks.
    """

    graph: RankGraphs
    started_ns: Array
    ended_ns: Array
    events: int
    commands: int
    requests: int
    reconfigurations: int
    stall_ns: int

    @property
    def step_ns(self) -> int:
        """When the last node ends."""
        return int(self.ended_ns.max(initial=0))

    @property
    def last_rank(self) -> int:
        """The rank that ends last; of several the first."""
        return int(self.graph.columns["rank"][np.argmax(self.ended_ns)])

    def compute_ns(self, rank: int) -> int:
        """Time in which a rank computes on any stream."""
        begins, ends = self._computing(rank)
        return int((ends - begins).sum())

    def exposed_ns(self, rank: int) -> dict[str, int]:
        """Time in which a rank communicates and computes nothing, by kind.

        Communication is under way once all members are there and circuits are up. Of
        several operations at once the time is that of the one that ends last.
        """
        begins, ends = self._computing(rank)
        rows = self._rows(rank, compute=False)
        rows = rows[np.argsort(-self.ended_ns[rows], kind="stable")]
        starts, stops = self.started_ns[rows], self.ended_ns[rows]
        covered_from = np.minimum.accumulate(np.append(np.iinfo(np.int64).max, starts))[:-1]
        stops = np.minimum(stops, covered_from)
        idle_ns = stops - covered_before(begins, ends, stops)
        idle_ns -= starts - covered_before(begins, ends, starts)
        exposed = np.where(stops > starts, idle_ns, 0)
        totals = np.bincount(self.graph.columns["kind"][rows], exposed, len(NODE_KINDS))
        return {NODE_KINDS[kind]: int(totals[kind]) for kind in np.flatnonzero(totals).tolist()}

    def _rows(self, rank: int, *, compute: bool) -> Array:
        columns = self.graph.columns
        return np.flatnonzero((columns["rank"] == rank) & ((columns["kind"] == COMPUTE) == compute))

    def _computing(self, rank: int) -> tuple[Array, Array]:
        rows = self._rows(rank, compute=True)
        return merged(self.started_ns[rows], self.ended_ns[rows])


def prepare_graph(
    graph: RankGraphs,
    lasts_ns: Array,
    model: CircuitModel | None = None,
    *,
    one_collective: bool = False,
) -> PreparedGraph:
    """The tables of a graph.

    ``lasts_ns``: int64[nodes], the time of each computation, and of each operation once
    all members are there; of a message the same for the send and the receive.
    ``model``: which circuits an operation needs; None: none. ``one_collective``: a rank
    carries out one collective at a time, else one of each group.

    Raises :class:`UserError` naming rank and node where members of a group disagree, or
    where a message has one end only.
    """
    channel, sequence, configurations = _operations(graph)
    columns = graph.columns
    computes = channel < 0
    programs = Programs.from_columns(
        {
            "rank": columns["rank"],
            "iteration": np.zeros(len(graph)),
            "does": np.where(computes, _COMPUTE, _ISSUE),
            "gap_ns": np.where(computes, lasts_ns, 0),
            "lasts_ns": np.where(computes, 0, lasts_ns),
            "channel": channel,
            "sequence": np.where(computes, -1, sequence),
            "configuration": channel,
            "kind": columns["kind"] - 1,
            "bytes": columns["bytes"],
            "alone": columns["kind"] == _SEND,
        },
        [str(number) for number in range(len(configurations))],
        configurations,
    )
    stream = _streams(graph, channel, one_collective=one_collective)
    dependencies = Dependencies(graph.offsets, graph.dependencies, stream)
    wiring = model or Layout(max(graph.ranks, 1))
    return PreparedGraph(graph, prepare(programs, wiring, dependencies))


def replay_graph(
    prepared: PreparedGraph, mode: Mode = "electrical", latency_ns: int = 0
) -> ReplayedGraph:
    """Carry out a graph from time 0; UserError names a node that never begins."""
    out = run_graph(prepared.prepared, mode, latency_ns)
    steps = out.steps
    if not steps["ended"].all():
        raise UserError(_stuck(prepared.graph, steps["ended"] > 0))
    sums = [state.R_REQUESTS, state.R_RECONFIGURATIONS, state.R_STALL]
    counts = *out.n[[state.EVENTS, state.COMMANDS]].tolist(), *out.results[:, sums].sum(0).tolist()
    times = steps["started_ns"].copy(), steps["ended_ns"].copy()
    return ReplayedGraph(prepared.graph, *times, *counts)


def _operations(graph: RankGraphs) -> tuple[Array, Array, list[Configuration]]:
    """The channel of each node (-1: none), its number there, and the channels'
    configurations.

    A group is a channel, and so are the messages of one tag from one rank to another. A
    group of one rank moves nothing.
    """
    columns = graph.columns
    kind, rank, peer = (columns[name].astype(np.int64) for name in ("kind", "rank", "peer"))
    channel = np.full(len(graph), -1, np.int64)
    messages = (kind == _SEND) | (kind == _RECV)
    sizes = np.array([len(group) for group in graph.groups], np.int64)
    collective = (kind != COMPUTE) & ~messages
    group = columns["group"].astype(np.int64)
    several = np.zeros(len(graph), bool)
    several[collective] = sizes[group[collective]] > 1
    used, channel[several] = np.unique(group[several], return_inverse=True)
    rings = [Configuration("ring", graph.groups[number]) for number in used.tolist()]
    sends = kind[messages] == _SEND
    here, there, tags = rank[messages], peer[messages], columns["tag"][messages]
    ends = np.stack([np.where(sends, here, there), np.where(sends, there, here), tags])
    pairs, number = np.unique(ends, axis=1, return_inverse=True)
    channel[messages] = len(rings) + number.ravel()
    two = [Configuration("pair", (int(a), int(b))) for a, b, _ in pairs.T]
    sequence = counted(rank, channel)
    _check_members(graph, several, channel, sequence, rings)
    _check_messages(graph, messages, channel, sequence)
    return channel, sequence, rings + two


def counted(rank: Array, channel: Array) -> Array:
    """How many nodes of the same rank and channel come before each."""
    key = channel * (int(rank.max(initial=0)) + 1) + rank
    order = np.argsort(key, kind="stable")
    new = np.append(True, np.diff(key[order]) != 0)[: len(key)]
    first = np.maximum.accumulate(np.where(new, np.arange(len(key)), 0))
    counted = np.empty(len(key), np.int64)
    counted[order] = np.arange(len(key)) - first
    return counted


def _check_members(
    graph: RankGraphs, rows: Array, channel: Array, sequence: Array, rings: list[Configuration]
) -> None:
    """Every member has the n-th collective of a group, of the same kind."""
    columns = graph.columns
    at = np.flatnonzero(rows)
    first, inverse, count = _alike(channel[at], sequence[at])
    kind = columns["kind"][at]
    unlike = at[kind != kind[first][inverse]]
    if len(unlike):
        raise UserError(
            f"{_node(graph, unlike[0])}: got {NODE_KINDS[columns['kind'][unlike[0]]]} where other"
            " members of the group have another kind; allowed: the same on all members"
        )
    members = np.array([len(ring.members) for ring in rings])
    lacking = count != members[channel[at][first]]
    if lacking.any():
        which = int(np.flatnonzero(lacking)[0])
        ring = rings[channel[at][first][which]].members
        there = columns["rank"][at[inverse == which]].tolist()
        missing = sorted(set(ring) - set(there))
        raise UserError(
            f"{_node(graph, at[first][which])}: collective {sequence[at][first][which]} of the"
            f" group {list(ring)} is missing on ranks {missing}; allowed: on all members"
        )


def _alike(channel: Array, sequence: Array) -> tuple[Array, Array, Array]:
    """The first node of each operation, the operation of each node, and their nodes."""
    key = channel * (int(sequence.max(initial=0)) + 1) + sequence
    return np.unique(key, return_index=True, return_inverse=True, return_counts=True)[1:]


def _check_messages(graph: RankGraphs, rows: Array, channel: Array, sequence: Array) -> None:
    """Every send meets a receive."""
    at = np.flatnonzero(rows)
    first, _, count = _alike(channel[at], sequence[at])
    if (count != 2).any():
        row = at[first[np.flatnonzero(count != 2)[0]]]
        kind, peer = graph.columns["kind"][row], graph.columns["peer"][row]
        other = NODE_KINDS[_RECV if kind == _SEND else _SEND]
        raise UserError(
            f"{_node(graph, row)}: {NODE_KINDS[kind]} of tag {graph.columns['tag'][row]} has no"
            f" {other} on rank {peer}; allowed: one of the same tag"
        )


def _streams(graph: RankGraphs, channel: Array, *, one_collective: bool) -> Array:
    """The stream of each node: computations', then collectives of groups of one (a
    stream for each node), then, if asked for, one for the collectives of each rank.
    """
    columns = graph.columns
    rank, kind = columns["rank"].astype(np.int64), columns["kind"]
    stream = np.full(len(graph), -1, np.int64)
    computes = kind == COMPUTE
    names = columns["stream"][computes].astype(np.int64) * graph.ranks + rank[computes]
    used, stream[computes] = np.unique(names, return_inverse=True)
    nothing = ~computes & (channel < 0)
    stream[nothing] = len(used) + np.arange(int(nothing.sum()))
    if one_collective:
        collectives = (channel >= 0) & (kind != _SEND) & (kind != _RECV)
        stream[collectives] = len(used) + int(nothing.sum()) + rank[collectives]
    return stream


def _node(graph: RankGraphs, row: int) -> str:
    columns = graph.columns
    name = f" ({graph.names[row]})" if graph.names else ""
    return f"rank {columns['rank'][row]}, node {columns['number'][row]}{name}"


def _stuck(graph: RankGraphs, ended: Array) -> str:
    """Which node never ends, and why."""
    rows = np.flatnonzero(~ended)
    # The first that waits for no node of its rank: a member or the lane is missing.
    for row in rows.tolist():
        before = graph.dependencies[graph.offsets[row] : graph.offsets[row + 1]]
        if ended[before].all():
            kind = NODE_KINDS[graph.columns["kind"][row]]
            return (
                f"{_node(graph, row)}: {kind} never ends, as other ranks wait for each other; "
                "allowed: the same order of a group's collectives on all members"
            )
    return f"{_node(graph, int(rows[0]))}: depends on itself; allowed: no circle of dependencies"


def in_order_of_start(
    graphs: RankGraphs, node_ns: IntArray, *, one_collective: bool
) -> tuple[RankGraphs, IntArray]:
    """The graphs with nodes in the order of start, all circuits up, and their times."""
    alone = prepare_graph(_without_lanes(graphs), node_ns, one_collective=one_collective)
    starts, ranks = replay_graph(alone).started_ns, graphs.columns["rank"]
    order = np.lexsort((np.arange(len(graphs)), starts, ranks))
    return reordered(graphs, order), node_ns[order]


def reordered(graphs: RankGraphs, order: IntArray) -> RankGraphs:
    """The same graphs with the nodes in another order: int[nodes], old positions."""
    counts = np.diff(graphs.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    starts = np.repeat(graphs.offsets[order] - offsets[:-1], counts)
    dependencies = graphs.dependencies[starts + np.arange(len(graphs.dependencies))]
    return replace(
        graphs,
        columns={name: values[order] for name, values in graphs.columns.items()},
        offsets=offsets,
        dependencies=np.argsort(order)[dependencies],
        names=tuple(graphs.names[node] for node in order.tolist()) if graphs.names else (),
    )


def _without_lanes(graphs: RankGraphs) -> RankGraphs:
    """The graphs with a group for each collective and a tag for each message."""
    columns = dict(graphs.columns)
    rank, peer, group = (columns[name].astype(np.int64) for name in ("rank", "peer", "group"))
    collective = (columns["kind"] != COMPUTE) & (group >= 0)
    number = counted(rank, np.where(collective, group, -1))
    keys = np.stack([group, number], axis=1)[collective]
    operations, of_node = np.unique(keys, axis=0, return_inverse=True)
    columns["group"] = columns["group"].copy()
    columns["group"][collective] = of_node.ravel()
    messages = np.flatnonzero(peer >= 0)
    lanes = np.stack([columns["kind"], peer, columns["tag"]], axis=1)[messages]
    lane = np.unique(lanes, axis=0, return_inverse=True)[1]
    turn = counted(rank[messages], lane.ravel())
    # Numbers of the tags, as the sums of tags of any size may have no int64.
    columns["tag"] = np.unique(columns["tag"], return_inverse=True)[1].ravel()
    columns["tag"][messages] += (turn + 1) * (int(columns["tag"].max(initial=0)) + 2)
    return replace(
        graphs,
        columns=columns,
        groups=tuple(graphs.groups[group] for group in operations[:, 0].tolist()),
    )
