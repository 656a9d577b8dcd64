"""Placement of the ranks of a job on the chips of a network.

The ranks form a box: chips of a node (mesh) x nodes of a row (x) x nodes of a column
(y). Networks without nodes on a grid get the nearest equivalent: blocks of a torus,
runs of chips below a switch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from railx.settings import SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.nodes import NodeOrder, blocks, smallest_surface
from railx.vocabulary.topology import Topology

#: Chips of a node, nodes of a row, nodes of a column.
Sizes: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Placement:
    """The chips of the ranks (int64[mesh, x, y]) and their kind of placement.

    * ``grid``: nodes of a row are neighbours in a row of the network, columns alike.
    * ``snake``: the network's grid has another shape, so nodes follow each other along
      a snake through its rows, x fastest.
    * ``runs``: nodes of consecutive chips, cut across as few switches as possible.
    """

    chips: IntArray
    kind: str


def snake(columns: int, rows: int) -> IntArray:
    """Positions (y * columns + x) of a mesh along a path of neighbours.

    The path goes up column 0 and snakes back through the others. It is a ring where the
    columns or rows are even and more than one.
    """
    if rows % 2 and columns % 2 == 0 and rows > 1:
        y, x = np.divmod(snake(rows, columns), rows)
        return x * columns + y
    path = [row * columns for row in range(rows)]
    for step, row in enumerate(range(rows - 1, -1, -1)):
        back = range(1, columns) if step % 2 == 0 else range(columns - 1, 0, -1)
        path += [row * columns + column for column in back]
    return np.array(path, dtype=np.int64)


# Nodes that are meshes of chips


def node_placement(
    topology: Topology, sizes: Sizes, grid: tuple[int, int] | None = None
) -> Placement:
    """Nodes on the grid, or along a snake where the grid has another shape.

    Without a grid, nodes follow their numbers. ``grid``: columns and rows of nodes;
    node (X, Y) is number Y * columns + X. Within a node ranks follow a snake, so that
    neighbours in rank are neighbours in the mesh and the last closes the ring where a
    side is even. Raises SettingsError("layout") where the job does not fit.
    """
    mesh, x, y = sizes
    per_node = topology.chips // topology.nodes
    if mesh > per_node or x * y > topology.nodes:
        raise _no_room(topology, sizes, (per_node, *(grid or (topology.nodes, 1))))
    side = math.isqrt(per_node)
    local = snake(side, side)[:mesh]
    if grid is not None and x <= grid[0] and y <= grid[1]:
        kind, node = "grid", np.arange(y) * grid[0] + np.arange(x)[:, None]
    else:
        order = np.arange(topology.nodes) if grid is None else _rows_snake(*grid)
        kind = "runs" if grid is None else "snake"
        node = order[np.arange(y) * x + np.arange(x)[:, None]]
    return Placement((local[:, None, None] + node[None] * per_node).astype(np.int64), kind)


def _rows_snake(columns: int, rows: int) -> IntArray:
    """Nodes row by row, every other row backwards."""
    node = np.arange(columns * rows).reshape(rows, columns)
    node[1::2] = node[1::2, ::-1]
    return node.ravel()


def order_placement(topology: Topology, sizes: Sizes, order: NodeOrder) -> Placement:
    """Ranks of the mesh in one node each, in the order of a :class:`NodeOrder`.

    As :func:`node_placement`; nodes that are larger than the mesh hold several of them
    where there are too few. Raises SettingsError("layout") where the job does not fit.
    """
    mesh, x, y = sizes
    grid, nodes = order.grid, len(order.chips)
    walk = _walk(order.shape) @ np.cumprod([1, *order.shape[:-1]])
    parts = order.size // mesh
    if mesh > order.size or x * y > nodes * parts:
        raise _no_room(topology, sizes, (order.size, nodes * parts, 1))
    number = np.arange(y) * x + np.arange(x)[:, None]
    if grid is not None and x <= grid[0] and y <= grid[1]:
        kind, node = "grid", np.arange(y) * grid[0] + np.arange(x)[:, None]
        part = np.zeros_like(node)
    else:
        in_row = np.arange(nodes) if grid is None else _rows_snake(*grid)
        parts = 1 if x * y <= nodes else parts
        kind, node, part = "runs", in_row[number // parts], number % parts
    local = walk[part[..., None] * mesh + np.arange(mesh)]
    chips = np.take_along_axis(order.chips[node], local, axis=2)
    return Placement(chips.transpose(2, 0, 1).astype(np.int64), kind)


# Tori of single chips


def block_placement(topology: Topology, sizes: Sizes, scales: tuple[int, ...]) -> Placement:
    """Blocks as nodes: those with the smallest surface of which enough fit.

    In three dimensions the first two make the row.
    """
    mesh, x, y = sizes
    rooms = {}
    for block in blocks((mesh,) * len(scales), mesh):
        counts = [scale // side for scale, side in zip(scales, block, strict=True)]
        rooms[block] = math.prod(counts[:-1]), counts[-1]
    fitting = [block for block, room in rooms.items() if x <= room[0] and y <= room[1]]
    if not fitting:
        best = max(rooms.values(), key=lambda room: (min(room[0], x) * min(room[1], y), room))
        raise _no_room(topology, sizes, (mesh, *best))
    block = smallest_surface(fitting)
    local = _walk(block)
    across = scales[0] // block[0]
    stride = np.cumprod([1, *scales[:-1]])
    corner = np.empty((x, y, len(scales)), dtype=np.int64)
    i, j = np.arange(x), np.arange(y)
    corner[..., -1] = j[None, :]
    corner[..., 0] = (i if len(scales) == 2 else i % across)[:, None]
    if len(scales) == 3:
        corner[..., 1] = (i // across)[:, None]
    return Placement((local @ stride)[:, None, None] + (corner * np.array(block)) @ stride, "grid")


def _walk(block: Sequence[int]) -> IntArray:
    """Positions of a box along a path of neighbours, a ring in layers of an even side.

    int[positions, dimensions].
    """
    if len(block) == 1:
        return np.arange(block[0])[:, None]
    layer = np.stack(np.divmod(snake(block[0], block[1]), block[0])[::-1], axis=1)
    if len(block) == 2:
        return layer
    # Every other layer backwards: the path enters a layer where it left the one below.
    layers = [layer[:: 1 if z % 2 == 0 else -1] for z in range(block[2])]
    return np.concatenate(
        [np.column_stack([xy, np.full(len(xy), z)]) for z, xy in enumerate(layers)]
    )


# Switched networks


def run_placement(topology: Topology, sizes: Sizes) -> Placement:
    """Nodes of consecutive chips, cut into as few equal parts as fit.

    Each part is below one switch or in one server.
    """
    mesh, x, y = sizes
    total = mesh * x * y
    if total > topology.chips:
        raise _no_room(topology, sizes, None)
    unit = _chips_below_a_switch(topology)
    fitting = [
        part
        for part in range(1, mesh + 1)
        if mesh % part == 0 and topology.chips // unit * (unit // part) * part >= total
    ]
    part = max(fitting, default=1)
    parts = unit // part
    slot = np.arange(total // part)
    first = slot // parts * unit + slot % parts * part
    run = (first[:, None] + np.arange(part)).reshape(y, x, mesh)
    return Placement(run.transpose(2, 1, 0).astype(np.int64), "runs")


def _chips_below_a_switch(topology: Topology) -> int:
    """Chips of a server, or consecutive chips below the first switch of chip 0."""
    per_node = topology.chips // topology.nodes
    if per_node > 1:
        return per_node
    links = topology.links
    switch = int(links.dst[links.src == 0].min())
    below = np.unique(links.src[(links.dst == switch) & (links.src < topology.chips)])
    return len(below)


def _no_room(topology: Topology, sizes: Sizes, room: Sizes | None) -> SettingsError:
    """The error; ``room``: the limit of each axis, None: only their product counts."""
    got = f"got {_times(sizes)} (chips of a node x nodes of a row x nodes of a column)"
    allowed = f"allowed on {topology.family} of {topology.chips} chips: at most"
    if room is not None:
        nearest = _times(min(size, most) for size, most in zip(sizes, room, strict=True))
        return SettingsError("layout", f"{got}; {allowed} {_times(room)}; the nearest is {nearest}")
    mesh, x, _ = sizes
    most = topology.chips // (mesh * x)
    nearest = f"; the nearest is {_times((mesh, x, most))}" if most else ""
    return SettingsError("layout", f"{got}; {allowed} so many in all{nearest}")


def _times(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes))
