"""Shared parts of the RailX routings: walks inside the nodes, and rails.

A packet walks to its rail inside its node, in one dimension of the mesh first, and
every rail raises its virtual channel. Walks of one order form no cycle inside a
channel, and no channel waits for a lower one, so every such routing is free of
deadlocks. D dimensions of nodes need D + 1 virtual channels (RailX simulator for D =
2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from railx.progress import counted
from railx.vocabulary.arrays import BoolArray, FloatArray, Int32Array, IntArray
from railx.vocabulary.grid import rail_of_links, rail_ports
from railx.vocabulary.routing.groups import DestinationGroups, groups_by_coordinates
from railx.vocabulary.routing.line_phases import (
    LineRouting,
    Phase,
    WalkOrder,
    by_node,
    mesh_distance,
    mesh_steps,
    uniform_flow,
    walk_orders,
)
from railx.vocabulary.routing.table import TableBuilder
from railx.vocabulary.topology import Topology

#: Shares below it are rounding.
_NO_SHARE = 1e-12
#: Shares of a block of chips that are divided at once.
_BLOCK = 1 << 17


@dataclass(frozen=True, eq=False)
class Exits:
    """A path out of its node for each chip and target.

    The next ``pool`` (int[chips, T], -1: none) and the ``state`` after that hop.
    ``rail``: the link row of the exit's rail. In 32 bits, as a routing has many.
    """

    pool: Int32Array
    state: Int32Array
    rail: Int32Array

    def sets(self, builder: TableBuilder) -> Int32Array:
        """The sets with this path alone."""
        return builder.single(self.pool, self.state)


def walk_pools(
    builder: TableBuilder, m: int, order: WalkOrder, vc: int, *, by_rail: bool = False
) -> Int32Array:
    """The pool of the next step from each chip to each local chip of its node.

    int32[lanes, chips, m^2], -1 at the goal. Neighbours are joined by n lanes, all in
    one pool (lanes = 1) or each in a separate pool (``by_rail``, lanes = n). With
    ``by_rail`` packets for rail i keep to lane i mod n, so that packets for one rail of
    an edge chip do not block those for another.
    """
    chip = np.arange(builder.topology.chips)
    local = chip % m**2
    if m == 1:
        return np.full((1, len(chip), 1), -1, dtype=np.int32)
    there = (chip - local)[:, None] + mesh_steps(m, order)[local]
    lanes = range(int(builder.topology.links.lanes[0])) if by_rail else (-1,)
    pools = [builder.pools_between(chip[:, None], there, vc, lane) for lane in lanes]
    return np.stack(pools, dtype=np.int32)


def exits(
    builder: TableBuilder,
    walk: Int32Array,
    rail: IntArray,
    vc: int | IntArray,
    heading: int,
    after: int = 0,
) -> Exits:
    """Paths to rails.

    ``rail`` (int[chips, T]): the link row to take from each chip for each target, -1
    for none. ``walk``: as from :func:`walk_pools`. ``vc``: the rail's virtual channel
    (int[T]: for each target). ``heading`` and ``after``: the packet's state before and
    after the rail.
    """
    lanes, chips, chips_per_node = walk.shape
    chip = np.arange(chips)[:, None]
    lane = rail_of_links(builder.topology)[rail] % lanes if lanes > 1 else 0
    leave = np.where(rail < 0, chip, builder.topology.links.src[rail])
    here, local = leave == chip, leave % chips_per_node
    pool = walk[lane, chip, local]
    pool[here] = builder.row_pools(rail[here], np.broadcast_to(vc, rail.shape)[here])
    return Exits(
        pool=pool,
        state=np.where(here, np.int32(after), np.int32(heading)),
        rail=rail.astype(np.int32),
    )


def split_sets(
    builder: TableBuilder,
    paths: Sequence[Exits],
    shares: FloatArray,
    repeats: int = 1,
    kind: IntArray | None = None,
) -> Int32Array:
    """Sets (int[chips, T]) that split traffic by ``shares`` (float[kinds, T, paths]).

    -1 where no path has a share. Each target of the paths is so many of T in a row.
    ``kind``: that of each chip; None: each has its own.
    """
    kind = np.arange(len(shares)) if kind is None else kind
    # Block by block of chips: most paths have no share, and all would fill the memory.
    chips = max(1, _BLOCK // max(1, shares[0].size))
    blocks = [slice(begin, begin + chips) for begin in range(0, len(kind), chips)]
    parts = [_split_paths(paths, shares[kind[block]], block, repeats) for block in blocks]
    pool, state, alone, split = (
        np.concatenate(part) for part in zip(*(part[:4] for part in parts), strict=True)
    )
    sets = np.full((len(kind), shares.shape[1]), -1, dtype=np.int32)
    sets[alone] = builder.single(pool[alone], state[alone])
    sets[split] = [number for part in parts for number in builder.choice_sets(*part[4:])]
    return sets


def _split_paths(
    paths: Sequence[Exits], shares: FloatArray, block: slice, repeats: int
) -> tuple[
    Int32Array, Int32Array, BoolArray, BoolArray, Int32Array, Int32Array, FloatArray, IntArray
]:
    """The sets of some chips: pool and state of the largest share, where it is alone
    and where there are several; pools, states and weights of these, and where each set
    ends.
    """
    pool, state = (
        np.stack([getattr(path, name)[block] for path in paths], axis=-1, dtype=np.int32)
        for name in ("pool", "state")
    )
    if repeats > 1:
        pool, state = (np.repeat(values, repeats, axis=1) for values in (pool, state))
    weight = np.where((pool < 0) | (shares < _NO_SHARE), 0, shares)
    total = weight.sum(axis=-1, keepdims=True)
    weight /= np.where(total > 0, total, 1)
    chosen = weight.argmax(axis=-1)[..., None]
    direct_pool, direct_state = (
        np.take_along_axis(values, chosen, axis=-1)[..., 0] for values in (pool, state)
    )
    alone = weight.max(axis=-1) > 1 - _NO_SHARE
    split = ~alone & (total[..., 0] > 0)
    # Only paths that have a share become objects of Python.
    pool, state, weight = pool[split], state[split], weight[split]
    used = weight > 0
    ends = np.cumsum(used.sum(axis=-1))
    return direct_pool, direct_state, alone, split, pool[used], state[used], weight[used], ends


def adaptive_sets(
    builder: TableBuilder,
    paths: Sequence[Exits],
    at: Sequence[tuple[IntArray, IntArray]],
    shares: FloatArray,
    onward: IntArray,
) -> Int32Array:
    """Adaptive sets of k packets (int[k]) that may take any of W paths.

    ``at``: for each path the packets' indices in its arrays (chip and target, int[k]
    each). ``shares`` (float[k, W]): the weights. ``onward`` (int[k, W]): steps inside
    the next node. A path is probed at its rail. Its delay is the time of flight of its
    walk, its rail and the steps onward, in nanoseconds beyond the best path.
    """
    links, latency = builder.topology.links, builder.topology.links.latency_ns
    pool, state, rail = (
        np.stack(
            [getattr(path, name)[index] for path, index in zip(paths, at, strict=True)], axis=-1
        )
        for name in ("pool", "state", "rail")
    )
    chip = np.stack([chips for chips, _ in at], axis=-1)
    leave = np.where(rail < 0, chip, links.src[rail])
    chips_per_node = builder.topology.chips // builder.topology.nodes
    distance = mesh_distance(round(chips_per_node**0.5))
    steps = distance[chip % chips_per_node, leave % chips_per_node]
    # The first link of the table is inside a node if any walk has a link.
    delay = np.round((steps + onward) * float(latency[0]) + latency[rail], 6)
    delay -= delay.min(axis=-1, keepdims=True)
    key = np.ascontiguousarray(np.concatenate([pool, state, rail, delay, shares], axis=-1))
    _, first, where = np.unique(
        key.view(f"V{key.shape[1] * 8}").ravel(), return_index=True, return_inverse=True
    )
    ids = [
        builder.choice_set(
            list(zip(pool[i].tolist(), state[i].tolist(), strict=True)),
            shares[i].tolist(),
            rail[i].tolist(),
            delay[i].tolist(),
        )
        for i in first.tolist()
    ]
    return np.array(ids, dtype=np.int32)[where]


def fill_ordered(builder: TableBuilder, phases: Sequence[Phase], routing: LineRouting) -> None:
    """Correct the coordinates in the order of the phases: phase d walks on channel d.

    ``min`` takes its rail on channel d + 1 and needs state 0 alone, since the nearest
    link stays the nearest on the way to it. ``balanced`` draws a link with the even
    shares when a phase starts: state 1 + k on the way to link k. A rail belongs to one
    phase, so all its channels lie between the walks of channel d and those of d + 1.
    ``balanced`` uses them all, by the packet's next direction, so that fewer packets
    wait behind others that turn elsewhere. The builder has :func:`ordered_groups`.
    """
    topology = builder.topology
    chips_per_node, m = phases[0].chips, phases[0].m
    node, local = np.divmod(np.arange(topology.chips), chips_per_node)
    orders = walk_orders(phases, routing)
    flows, _ = uniform_flow(phases, topology.nodes, routing)
    ports = rail_ports(topology).link
    onward = _onward(len(phases), routing)
    assert builder.groups is not None
    for d, (phase, flow) in enumerate(counted(zip(phases, flows, strict=True), "walks")):
        rows = np.repeat(phase.rail_rows(ports)[node], onward, axis=1)
        walk = walk_pools(builder, m, orders[d], d, by_rail=routing == "balanced")
        vc = np.tile(np.arange(onward), phase.length) if onward > 1 else d + 1
        paths = [
            exits(builder, walk, rows[..., k], vc, 0 if routing == "min" else 1 + k)
            for k in counted(range(phase.links), "links of a walk")
        ]
        shares = np.repeat(by_node(flow.shares, phase, topology.nodes)[node, local], onward, axis=1)
        columns = builder.groups.on_level(d)
        builder.entry[0][:, columns] = split_sets(builder, paths, shares)
        if routing == "balanced":
            for k, path in enumerate(paths):
                builder.entry[1 + k][:, columns] = path.sets(builder)
    walk = walk_pools(builder, m, orders[-1], len(phases))
    builder.entry[0][:, builder.groups.on_level(len(phases))] = builder.single(walk[0], 0)


def ordered_groups(
    topology: Topology,
    phases: Sequence[Phase],
    routing: LineRouting,
    destinations: Int32Array | None,
) -> DestinationGroups:
    """The groups of destinations that :func:`fill_ordered` fills.

    A group is the first coordinate that differs, else the chip in the node.
    ``balanced`` also distinguishes the channel of the rail.
    """
    chips_per_node = phases[0].chips
    chips = np.arange(topology.chips)
    to = chips if destinations is None else destinations.astype(np.int64)
    goal = [phase.coordinate(to // chips_per_node) for phase in phases]
    onward = _onward(len(phases), routing)
    after = [*goal[1:], to % chips_per_node]
    return groups_by_coordinates(
        topology.chips,
        [phase.coordinate(chips // chips_per_node) for phase in phases],
        goal,
        [
            *(first * onward + then % onward for first, then in zip(goal, after, strict=True)),
            to % chips_per_node,
        ],
        [*(phase.length * onward for phase in phases), chips_per_node],
    )


def ordered_columns(lengths: Sequence[int], chips_per_node: int, routing: str) -> int:
    """The groups in :func:`ordered_groups` of phases of these ``lengths``."""
    return sum(lengths) * _onward(len(lengths), routing) + chips_per_node


def _onward(phases: int, routing: str) -> int:
    """Channels of a rail that packets choose from by their next direction."""
    return phases + 1 if routing == "balanced" else 1


def fill_final(builder: TableBuilder, walk: Int32Array) -> None:
    """The walk to the destination inside its node from state 0, on all lanes.

    ``walk`` as from :func:`walk_pools`.
    """
    _, chips, chips_per_node = walk.shape
    node = np.arange(chips) // chips_per_node
    here = node[:, None] == builder.destinations // chips_per_node
    sets = builder.single(walk[0], 0)[:, builder.destinations % chips_per_node]
    builder.entry[0][here] = sets[here]
