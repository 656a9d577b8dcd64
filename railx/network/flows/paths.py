"""The sparse matrix of flows and links under a routing: shares on each link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from railx.families import build_routing
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray
from railx.vocabulary.routing.analysis import routing_graph, spread_options
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

#: Entries per state of a routing table made at once: about 0.5 GiB with temporaries.
_BLOCK_ENTRIES = 8_000_000


@dataclass(frozen=True, eq=False)
class FlowPaths:
    """The links of flows, with the share of the flow's rate on each.

    Flow f uses the link rows ``link[start[f]:start[f + 1]]`` (all lanes of a row
    together), with ``share`` on each. A flow that splits has shares below 1; no link
    appears twice in a flow. ``latency_ns`` (float64[flows]): time of flight along the
    longest path that the flow uses.
    """

    start: IntArray
    link: Int32Array
    share: FloatArray
    latency_ns: FloatArray

    def __len__(self) -> int:
        return len(self.latency_ns)


def spread_flows(
    topology: Topology, table: RoutingTable, src: ArrayLike, dst: ArrayLike
) -> FlowPaths:
    """Spread flows from chips ``src`` to chips ``dst`` over the paths of a table.

    They split in its weights; lanes of a pool share evenly. A flow from a chip to
    itself uses no link. ValueError names an invalid chip, a destination outside the
    table or a place where the routing ends early.
    """
    table = table.over_pairs()
    source, target = _ends(topology, src, dst)
    order = np.argsort(table.destinations, kind="stable")
    at = np.minimum(np.searchsorted(table.destinations[order], target), len(order) - 1)
    column = order[at]
    missing = table.destinations[column] != target
    if missing.any():
        raise ValueError(
            f"dst: got chip {target[missing][0]}; allowed: the {len(order)} destinations of the"
            " table"
        )
    options = spread_options(topology, table)
    start, latency = np.zeros(len(source) + 1, dtype=np.int64), np.zeros(len(source))
    stuck = np.zeros(3, dtype=np.int64)
    link, share = kernels().spread(
        routing_graph(topology, options, table.entry, table.destinations),
        topology.links.latency_ns,
        source,
        column,
        stuck,
        start,
        latency,
    )
    if stuck[0]:
        state, vertex = divmod(int(stuck[1]), topology.vertices)
        what = "has nowhere to go" if stuck[0] == 1 else "goes round for ever"
        raise ValueError(
            f"{table.routing} on {topology.family}: a flow to chip {target[stuck[2]]} in state"
            f" {state} at {vertex} {what}"
        )
    return FlowPaths(start, link, share, latency)


def route_flows(
    topology: Topology, routing: str | RoutingTable, src: ArrayLike, dst: ArrayLike
) -> FlowPaths:
    """:func:`spread_flows` by a routing's name, a block of destinations at a time.

    Tables are vertices x destinations; in blocks 10,000 chips need less than 2 GiB.
    """
    if isinstance(routing, RoutingTable):
        return spread_flows(topology, routing, src, dst)
    source, target = _ends(topology, src, dst)
    targets = np.unique(target).astype(np.int32)
    block = max(1, _BLOCK_ENTRIES // topology.vertices)
    parts, order = [], []
    for first in range(0, max(len(targets), 1), block):
        destinations = targets[first : first + block]
        rows = np.flatnonzero(np.isin(target, destinations))
        parts.append(
            spread_flows(
                topology, build_routing(topology, routing, destinations), source[rows], target[rows]
            )
        )
        order.append(rows)
    return _reorder(join_paths(parts), np.argsort(np.concatenate(order), kind="stable"))


def fixed_paths(topology: Topology, flow: IntArray, link: IntArray, flows: int) -> FlowPaths:
    """Flows along given paths.

    All traffic of flow ``flow[k]`` crosses link row ``link[k]``. ``flow`` is ascending;
    a row crossed twice counts twice.
    """
    key, count = np.unique(flow.astype(np.int64) * len(topology.links) + link, return_counts=True)
    owner = key // len(topology.links)
    rows = (key % len(topology.links)).astype(np.int32)
    latency = np.bincount(owner, weights=topology.links.latency_ns[rows] * count, minlength=flows)
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=flows))]).astype(np.int64)
    return FlowPaths(start, rows, count.astype(np.float64), latency.astype(np.float64))


def join_paths(parts: list[FlowPaths]) -> FlowPaths:
    """The flows of several sets one after another."""
    offsets = np.concatenate([[0], np.cumsum([part.start[-1] for part in parts])])
    starts = [part.start[:-1] + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
    return FlowPaths(
        start=np.concatenate([*starts, offsets[-1:]]).astype(np.int64),
        link=np.concatenate([part.link for part in parts]),
        share=np.concatenate([part.share for part in parts]),
        latency_ns=np.concatenate([part.latency_ns for part in parts]),
    )


def path_loads(topology: Topology, paths: FlowPaths, rate: FloatArray) -> FloatArray:
    """Load of each link row (float64[links]) by a rate a flow (float64[flows])."""
    amount = paths.share * np.repeat(rate, np.diff(paths.start))
    return np.bincount(paths.link, weights=amount, minlength=len(topology.links)).astype(np.float64)


@cache
def kernels() -> ModuleType:
    """The compiled loops; imported on first use, as Numba takes a second to load."""
    from railx.network.flows import kernels as compiled

    return compiled


def _ends(topology: Topology, src: ArrayLike, dst: ArrayLike) -> tuple[IntArray, IntArray]:
    source, target = _chips(topology, "src", src), _chips(topology, "dst", dst)
    if len(source) != len(target):
        raise ValueError(
            f"dst: got {len(target)} chips; allowed: {len(source)}, one for each of src"
        )
    return source, target


def _chips(topology: Topology, key: str, chips: ArrayLike) -> IntArray:
    values: Any = np.asarray(chips)
    if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
        raise ValueError(
            f"{key}: got an array of shape {values.shape} and type {values.dtype}; allowed: a list"
            " of chip numbers"
        )
    wrong = (values < 0) | (values >= topology.chips)
    if wrong.any():
        raise ValueError(f"{key}: got chip {values[wrong][0]}; allowed: 0 to {topology.chips - 1}")
    numbers: IntArray = values.astype(np.int64)
    return numbers


def _reorder(paths: FlowPaths, order: IntArray) -> FlowPaths:
    sizes = np.diff(paths.start)[order]
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    entry = np.repeat(paths.start[:-1][order] - start[:-1], sizes) + np.arange(start[-1])
    return FlowPaths(start, paths.link[entry], paths.share[entry], paths.latency_ns[order])
