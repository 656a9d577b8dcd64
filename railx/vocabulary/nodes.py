"""Nodes of chips: the links inside, and their composition with any network.

A network whose chips stand alone becomes a network of nodes by more links: a mesh
between the chips of a node, or one switch. Packets within a node take these links
alone, packets between nodes the network's routing alone, on its own links. So no
channel of a node waits for a channel of the network, and deadlock freedom carries over:
a mesh in dimension order and a switch have no circle of waiting packets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Links, NodeSettings, Topology, duplex_links, join_rows


@dataclass(frozen=True, eq=False)
class NodeOrder:
    """Which chips are in which node: int64[nodes, chips of a node].

    ``shape``: sides of a mesh of the chips of a node, the first running fastest.
    ``grid``: columns and rows of nodes that are neighbours, node (X, Y) number Y *
    columns + X; None: nodes in a row.
    """

    chips: IntArray
    shape: tuple[int, ...]
    grid: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Chips of a node."""
        return int(self.chips.shape[1])

    @cached_property
    def chip_node(self) -> Int32Array:
        """The node of each chip."""
        node = np.empty(self.chips.size, dtype=np.int32)
        node[self.chips] = np.arange(len(self.chips), dtype=np.int32)[:, None]
        return node

    @cached_property
    def place(self) -> IntArray:
        """The place of each chip in its node."""
        place = np.empty(self.chips.size, dtype=np.int64)
        place[self.chips] = np.arange(self.size)
        return place

    @cached_property
    def coordinates(self) -> IntArray:
        """Coordinates of the places of a node: int64[places, dimensions]."""
        place, axes = np.arange(self.size), []
        for length in self.shape:
            place, at = np.divmod(place, length)
            axes.append(at)
        return np.stack(axes, axis=1)

    def pairs(self) -> IntArray:
        """Neighbours in the mesh of a node, by place: int64[pairs, 2]."""
        stride, joined = 1, []
        for dimension, length in enumerate(self.shape):
            low = np.flatnonzero(self.coordinates[:, dimension] < length - 1)
            joined.append(np.stack([low, low + stride], axis=1))
            stride *= length
        return np.concatenate(joined)

    def next_places(self) -> IntArray:
        """The next place on the way from each place to each other, in dimension order.

        int64[from, to]; a place itself where both are equal.
        """
        here = np.arange(self.size)
        step = self.coordinates[None] - self.coordinates[:, None]
        first = (step != 0).argmax(axis=2)
        stride = np.cumprod([1, *self.shape[:-1]])[first]
        sign = np.sign(np.take_along_axis(step, first[..., None], axis=2))[..., 0]
        places: IntArray = here[:, None] + stride * sign
        return places


def check_divides(chips: int, node: NodeSettings) -> None:
    """Refuse chips that nodes do not divide."""
    if chips % node.chips:
        fits = [size for size in range(2, chips + 1) if chips % size == 0]
        near = min(fits, key=lambda size: (abs(size - node.chips), size))
        raise SettingsError(
            "node.chips",
            f"got {node.chips} on {chips} chips; allowed: a divisor of them; the nearest is"
            f" {near}, or a network of {chips // node.chips * node.chips} or"
            f" {-(-chips // node.chips) * node.chips} chips",
        )


def run_order(chips: int, size: int) -> NodeOrder:
    """Runs of consecutive chips, their mesh as near to a square as divides them."""
    side = next(side for side in range(math.isqrt(size), 0, -1) if size % side == 0)
    shape = (size // side, side) if side > 1 else (size,)
    return NodeOrder(np.arange(chips).reshape(-1, size), shape)


def block_order(scales: tuple[int, ...], size: int) -> NodeOrder:
    """Blocks of a grid of chips with the smallest surface that divide it.

    The chip at (x, y, z) has number (z * scales[1] + y) * scales[0] + x. Raises
    SettingsError("node.chips") with the nearest size of which blocks do.
    """
    dividing = list(blocks(scales, size))
    if not dividing:
        most = math.prod(scales)
        fits = [other for other in range(2, most + 1) if any(blocks(scales, other))]
        near = min(fits, key=lambda other: (abs(other - size), other))
        raise SettingsError(
            "node.chips",
            f"got {size} on a grid of {' x '.join(map(str, scales))} chips; allowed: blocks that"
            f" divide it; the nearest is {near}",
        )
    block = smallest_surface(dividing)
    counts = [scale // side for scale, side in zip(scales, block, strict=True)]
    chip = np.arange(math.prod(scales)).reshape(scales[::-1])
    split: list[int] = []
    for count, side in zip(counts[::-1], block[::-1], strict=True):
        split += [count, side]
    axes = range(len(split))
    chips = chip.reshape(split).transpose([*axes[::2], *axes[1::2]]).reshape(-1, size)
    return NodeOrder(chips, block, (math.prod(counts[:-1]), counts[-1]))


def blocks(scales: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    """All blocks of so many chips whose sides divide those of the grid."""
    if not scales:
        if size == 1:
            yield ()
        return
    for side in range(1, min(scales[0], size) + 1):
        if scales[0] % side == 0 and size % side == 0:
            for rest in blocks(scales[1:], size // side):
                yield (side, *rest)


def smallest_surface(blocks: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The one with the smallest surface among blocks of as many chips."""
    size = math.prod(blocks[0])
    return min(blocks, key=lambda sides: (sum(size / side for side in sides), [-s for s in sides]))


def _node_links(order: NodeOrder, node: NodeSettings, vertices: int) -> Links:
    """The links of all nodes, node by node; ``vertices``: the first switch."""
    if node.links == "switch":
        a, gb_s = order.chips, node.gb_s
        b = vertices + np.arange(len(order.chips))[:, None]
    else:
        low, high = order.pairs().T
        a, b = order.chips[:, low], order.chips[:, high]
        gb_s = node.gb_s * order.size / (2 * len(low))
    return duplex_links(a, b, "internal", 8 * gb_s, node.latency_ns)


def with_nodes(topology: Topology, order: NodeOrder, node: NodeSettings) -> Topology:
    """The network with the links of its nodes, whose switches follow its own."""
    links = _node_links(order, node, topology.vertices)
    return dataclasses.replace(
        topology,
        nodes=len(order.chips),
        switches=topology.switches + (len(order.chips) if node.links == "switch" else 0),
        chip_node=order.chip_node,
        links=join_rows([topology.links, links]),
    )


def without_nodes(topology: Topology, order: NodeOrder, node: NodeSettings) -> Topology:
    """The network without the links that :func:`with_nodes` has added."""
    rows = len(topology.links) - _rows(order, node)
    columns = {name: getattr(topology.links, name)[:rows] for name in Links.__dataclass_fields__}
    return dataclasses.replace(
        topology,
        nodes=topology.chips,
        switches=topology.switches - (len(order.chips) if node.links == "switch" else 0),
        chip_node=np.arange(topology.chips, dtype=np.int32),
        links=Links(**columns),
    )


def loads_inside(
    order: NodeOrder, node: NodeSettings, src: IntArray, dst: IntArray, amount: FloatArray
) -> tuple[FloatArray, float]:
    """The load of each link of the nodes, as they follow those of the network, and the
    longest flight in nanoseconds, of pairs of chips of one node each.
    """
    home, at, goal = order.chip_node[src].astype(np.int64), order.place[src], order.place[dst]
    if node.links == "switch":
        up, down = 2 * (home * order.size + at), 2 * (home * order.size + goal) + 1
        load = _summed(np.concatenate([up, down]), np.tile(amount, 2), _rows(order, node))
        return load, 2 * node.latency_ns if len(src) else 0.0
    row, following = _mesh_rows(order), order.next_places()
    load, hops = np.zeros(_rows(order, node)), 0
    while len(at):
        near = following[at, goal]
        link = home * 2 * len(order.pairs()) + row[at, near]
        load += _summed(link, amount, len(load))
        on = near != goal
        home, at, goal, amount = home[on], near[on], goal[on], amount[on]
        hops += 1
    return load, hops * node.latency_ns


def _summed(link: IntArray, amount: FloatArray, links: int) -> FloatArray:
    sums: FloatArray = np.bincount(link, amount, links).astype(np.float64)
    return sums


def _mesh_rows(order: NodeOrder) -> IntArray:
    """The link between neighbours in a mesh among those of a node: int64[from, to]."""
    pairs = order.pairs()
    row = np.zeros((order.size, order.size), dtype=np.int64)
    row[pairs[:, 0], pairs[:, 1]] = 2 * np.arange(len(pairs))
    row[pairs[:, 1], pairs[:, 0]] = 2 * np.arange(len(pairs)) + 1
    return row


def _rows(order: NodeOrder, node: NodeSettings) -> int:
    pairs = order.size if node.links == "switch" else len(order.pairs())
    return 2 * len(order.chips) * pairs


def route_nodes(
    topology: Topology, table: RoutingTable, order: NodeOrder, node: NodeSettings
) -> RoutingTable:
    """A table of the network without nodes, and packets within nodes on their links.

    The table's states follow state 0, in which a packet starts and walks its node.
    """
    table = table.over_pairs()
    rows = np.arange(len(topology.links) - _rows(order, node), len(topology.links))
    sets, to = len(table.set_start) - 1, table.destinations.astype(np.int64)
    entry = np.full((table.states + 1, topology.vertices, len(to)), -1, dtype=np.int32)
    entry[1:, : table.entry.shape[1]] = table.entry
    chips = topology.chips
    entry[0, :chips] = entry[1, :chips]
    home, column = order.chip_node[to], np.arange(len(to))
    here = order.chips[home]
    places, goal = np.arange(order.size), order.place[to]
    if node.links == "switch":
        # Row 2 i goes up from chip i of all nodes in order, row 2 i + 1 down to it.
        entry[0, here, column[:, None]] = sets + 2 * (home[:, None] * order.size + places)
        switch = topology.vertices - len(order.chips) + home
        entry[0, switch, column] = sets + 2 * (home * order.size + goal) + 1
    else:
        pairs = order.pairs()
        hop = _mesh_rows(order)[places[:, None], order.next_places()]
        entry[0, here, column[:, None]] = sets + 2 * len(pairs) * home[:, None] + hop[:, goal].T
    # A packet to its own chip never starts.
    entry[0, to, column] = table.entry[0, to, column]

    def added(start: Int32Array) -> Int32Array:
        return np.concatenate([start, start[-1] + 1 + np.arange(len(rows))]).astype(np.int32)

    def appended(column: Int32Array, value: int) -> Int32Array:
        return np.concatenate([column, np.full(len(rows), value)]).astype(column.dtype)

    pools = len(table.pool_start) - 1
    return dataclasses.replace(
        table,
        entry=entry,
        set_start=added(table.set_start),
        choice_pool=np.concatenate([table.choice_pool, pools + np.arange(len(rows))]).astype(
            np.int32
        ),
        choice_state=appended(table.choice_state + 1, 0),
        choice_weight=np.concatenate([table.choice_weight, np.ones(len(rows))]),
        choice_probe=appended(table.choice_probe, -1),
        choice_delay_ns=np.concatenate([table.choice_delay_ns, np.zeros(len(rows))]),
        pool_start=added(table.pool_start),
        pool_link=np.concatenate([table.pool_link, rows]).astype(np.int32),
        pool_class=appended(table.pool_class, 0),
        pool_lane=appended(table.pool_lane, -1),
    )
