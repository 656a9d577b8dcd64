"""What the times of replayed graphs say: the step, and how much of it is exposed.

An operation is under way for as long as it takes, up to its end; the wait for other
members or for circuits before it is no communication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from railx.replay.graphs import COMPUTE, NODE_KINDS, RankGraphs

__all__ = ["StepTimes", "length_ns", "step_times", "window_count"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StepTimes:
    """The step of the rank that ends last.

    ``compute_ns``: while it computes; ``exposed_ns``: by kind, while such operations
    are under way and it does not compute; ``waiting_ns``: the rest. Kinds that overlap
    each other count both, so that the parts may add up to more than ``step_ns``.
    """

    rank: int
    step_ns: int
    compute_ns: int
    exposed_ns: dict[str, int]
    waiting_ns: int


def step_times(graphs: RankGraphs, node_ns: IntArray, ended_ns: IntArray) -> StepTimes:
    """The times of a replay whose nodes took ``node_ns`` and ended at ``ended_ns``."""
    last = int(np.argmax(ended_ns))
    rank = int(graphs.columns["rank"][last])
    rows = np.flatnonzero(graphs.columns["rank"] == rank)
    kinds, ends = graphs.columns["kind"][rows], ended_ns[rows]
    starts = ends - node_ns[rows]
    computes = kinds == COMPUTE
    compute_ns = length_ns(starts[computes], ends[computes])
    exposed_ns = {}
    for kind in np.unique(kinds[~computes]).tolist():
        chosen = computes | (kinds == kind)
        exposed_ns[NODE_KINDS[kind]] = length_ns(starts[chosen], ends[chosen]) - compute_ns
    step_ns = int(ended_ns[last])
    return StepTimes(rank, step_ns, compute_ns, exposed_ns, step_ns - length_ns(starts, ends))


def length_ns(starts: IntArray, ends: IntArray) -> int:
    """How long at least one of the spans lasts."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    begins, reached = starts[order], np.maximum.accumulate(ends[order])
    # A span adds what lies beyond all spans that began before it.
    before = np.concatenate([begins[:1], reached[:-1]])
    return int(np.maximum(reached - np.maximum(begins, before), 0).sum())


def window_count(
    graphs: RankGraphs, ended_ns: IntArray, rank: int, inside: Callable[[Iterable[Any]], bool]
) -> int:
    """How often a rank goes from one group or peer to another, of operations that leave
    a server (``inside``: whether ranks share one).
    """
    columns = graphs.columns
    rows = np.flatnonzero((columns["rank"] == rank) & (columns["kind"] != COMPUTE))
    rows = rows[np.argsort(ended_ns[rows], kind="stable")]
    partners = [
        frozenset(graphs.groups[group] if group >= 0 else (rank, peer))
        for group, peer in zip(
            columns["group"][rows].tolist(), columns["peer"][rows].tolist(), strict=True
        )
    ]
    leaving = [members for members in partners if not inside(members)]
    return sum(now != before for before, now in pairwise(leaving))
