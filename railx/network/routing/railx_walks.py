"""What the routers of all RailX settings share: walks inside the nodes towards an exit, and rails that raise the virtual channel.

A packet that heads for a rail walks inside its node, one dimension of the mesh first, and every rail that it takes raises its
virtual channel. Walks of one order cannot wait for each other in a circle inside a channel, and no channel waits for a lower one, so
that every such routing is free of deadlocks; D dimensions of nodes need D + 1 virtual channels (RailX simulator for D = 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.network.routing.railx_lines import WalkOrder, mesh_steps
from railx.network.routing.table import TableBuilder

__all__ = ["Exits", "exits", "split_sets", "walk_pools"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Exits:
    """One way out of its node for each chip and target: the next ``pool`` (int[chips, T]) and the ``state`` after that hop.

    ``rail``: the link row of the exit's rail, ``steps``: links inside the node before it.
    """

    def __init__(self, pool: IntArray, state: IntArray, rail: IntArray, steps: IntArray) -> None:
        self.pool, self.state, self.rail, self.steps = pool, state, rail, steps


def walk_pools(builder: TableBuilder, m: int, order: WalkOrder, vc: int) -> IntArray:
    """The pool of the next step from each chip to each local chip of its node (int[chips, m^2]), -1 where it stands there."""
    chip = np.arange(builder.topology.chips)
    local = chip % m**2
    pools: IntArray = builder.pools_between(chip[:, None], (chip - local)[:, None] + mesh_steps(m, order)[local], vc)
    return pools


def exits(builder: TableBuilder, walk: IntArray, rail: IntArray, *, vc: int, heading: int, after: int) -> Exits:
    """Ways to rails: ``rail`` (int[chips, T]) is the link row that each chip heads for on the way to each target, -1 for none.

    ``walk``: as from :func:`walk_pools`; ``vc``: the rail's virtual channel; ``heading`` and ``after``: the packet's state on the
    way to the rail and after it.
    """
    m = round(walk.shape[1] ** 0.5)
    chip = np.arange(len(walk))[:, None]
    leave = np.where(rail < 0, chip, builder.topology.links.src[rail])
    rows, where = np.unique(rail, return_inverse=True)
    rail_pool = np.array([-1 if row < 0 else builder.pool([row], vc) for row in rows.tolist()])[where].reshape(rail.shape)
    here = leave == chip
    local, target = np.divmod(chip % m**2, m), np.divmod(leave % m**2, m)
    return Exits(
        pool=np.where(here, rail_pool, walk[chip, leave % m**2]),
        state=np.where(here, after, heading),
        rail=rail,
        steps=np.abs(local[0] - target[0]) + np.abs(local[1] - target[1]),
    )


def split_sets(builder: TableBuilder, ways: list[Exits], shares: list[FloatArray]) -> NDArray[np.int32]:
    """Sets (int[chips, T]) that share the traffic among several ways; adaptive tables keep ways whose share is 0.

    A way's delay is that of its walk and rail without load, less that of the best way, in nanoseconds.
    """
    links = builder.topology.links
    inner = float(links.latency_ns[0])
    shape = ways[0].pool.shape
    weight = np.stack([np.broadcast_to(share, shape) for share in shares], axis=-1)
    weight = np.where(weight < 1e-12, 0.0, weight)
    weight = weight / np.maximum(weight.sum(axis=-1, keepdims=True), 1e-300)
    delay = np.stack([way.steps * inner + links.latency_ns[way.rail] for way in ways], axis=-1)
    delay = delay - delay.min(axis=-1, keepdims=True)
    pool, state, rail = (np.stack([getattr(way, name) for way in ways], axis=-1) for name in ("pool", "state", "rail"))
    sets = np.full(shape, -1, dtype=np.int32)
    for at in zip(*np.nonzero(rail[..., 0] >= 0), strict=True):
        choices = list(zip(pool[at].tolist(), state[at].tolist(), strict=True))
        if builder.selection == "adaptive":
            sets[at] = builder.choice_set(choices, weight[at].tolist(), rail[at].tolist(), delay[at].tolist())
        else:
            sets[at] = builder.choice_set(choices, weight[at].tolist())
    return sets
