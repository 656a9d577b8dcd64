"""The order in which ranks issue the nodes of a graph that only dependencies order.

A program issues the operations of a group one after another; a graph need not say in
which order. Then it is that of an executor: each operation begins once all of its
members are there, whatever else its group has to do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from railx.replay.graph_run import counted, prepare_graph, replay_graph
from railx.replay.graphs import COMPUTE, RankGraphs

__all__ = ["in_order_of_start", "reordered"]

IntArray = npt.NDArray[np.int64]


def in_order_of_start(
    graphs: RankGraphs, node_ns: IntArray, *, one_collective: bool
) -> tuple[RankGraphs, IntArray]:
    """The graphs with nodes in the order in which they start, and their times.

    ``node_ns``: how long each node takes. Circuits are always up.
    """
    free = replay_graph(
        prepare_graph(_without_lanes(graphs), node_ns, one_collective=one_collective)
    )
    starts, ranks = free.started_ns, graphs.columns["rank"]
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
    columns["tag"] = columns["tag"].copy()
    columns["tag"][messages] += (turn + 1) * (int(columns["tag"].max(initial=0)) + 2)
    return replace(
        graphs,
        columns=columns,
        groups=tuple(graphs.groups[group] for group in operations[:, 0].tolist()),
    )
