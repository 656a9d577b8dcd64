"""Where the ranks of a job stand: the chips of each axis, and the groups that
communicate.

The ranks of a job form a box: chips of a node (mesh) x nodes of a row (x) x nodes of a
column (y). Families without nodes on a grid get the nearest equivalent: blocks of a
torus, runs of chips below the same switch of a switched network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from railx.mapping.settings import LayoutSettings
from railx.settings import SettingsError
from railx.vocabulary.topology import Topology

__all__ = ["Placement", "group_levels", "group_members", "place_ranks", "snake"]

IntArray = NDArray[np.int64]
Sizes = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Placement:
    """The chip of each rank (int64[mesh, x, y]) and how they were found.

    ``kind``: ``grid`` (nodes of a row are neighbours in a row of the network, and
    likewise for columns), ``snake`` (the network's grid has another shape: nodes follow
    each other along a snake through its rows, x fastest) or ``runs`` (nodes of
    consecutive chips, cut across as few switches as leave room for the job).
    """

    chips: IntArray
    kind: str


def place_ranks(topology: Topology, sizes: Sizes) -> Placement:
    """Place a job of chips of a node x nodes of a row x nodes of a column;
    SettingsError("layout") where there is no room for it.

    Within a node ranks follow a snake, so that neighbours in rank are neighbours in the
    mesh and the last closes the ring where a side is even.
    """
    settings = topology.settings
    if topology.family in ("torus_2d", "mesh_2d"):
        return _place_blocks(topology, sizes, (settings["x_scale"], settings["y_scale"]))
    if topology.family == "torus_3d":
        return _place_blocks(
            topology, sizes, (settings["x_scale"], settings["y_scale"], settings["z_scale"])
        )
    if topology.family.startswith("railx") or topology.family == "hammingmesh":
        return _place_nodes(topology, sizes)
    return _place_runs(topology, sizes)


def group_members(layout: LayoutSettings, chips: IntArray, parallelisms: Sequence[str]) -> IntArray:
    """The groups that span ``parallelisms``: int[groups, members], members in rank
    order from the innermost axis out.

    Ranks belong to one group where they agree in every other parallelism.
    """
    return _groups(
        layout, chips, [i for i, (name, _) in enumerate(_degrees(layout)) if name in parallelisms]
    )


def group_levels(
    layout: LayoutSettings, chips: IntArray, parallelisms: Sequence[str]
) -> list[IntArray]:
    """The same taken apart: the groups along each axis and parallelism of more than one
    member, from the innermost axis out.
    """
    degrees = _degrees(layout)
    return [
        _groups(layout, chips, [i])
        for i, (name, degree) in enumerate(degrees)
        if name in parallelisms and degree > 1
    ]


def _degrees(layout: LayoutSettings) -> list[tuple[str, int]]:
    return [
        (name, degree)
        for axis in (layout.mesh, layout.x, layout.y)
        for name, degree in axis.items()
    ]


def _groups(layout: LayoutSettings, chips: IntArray, inside: Sequence[int]) -> IntArray:
    degrees = [degree for _, degree in _degrees(layout)]
    # Rank box: the first name of an axis varies fastest, the axes follow each other
    # from the mesh outwards.
    box = np.transpose(chips, (2, 1, 0)).reshape(degrees[::-1]).transpose(range(len(degrees))[::-1])
    outside = [i for i in range(len(degrees)) if i not in inside]
    # Innermost axis last in memory order, so that it varies fastest among the members.
    ordered = box.transpose([*outside, *reversed(inside)])
    return np.ascontiguousarray(ordered).reshape(-1, math.prod(degrees[i] for i in inside))


def snake(columns: int, rows: int) -> IntArray:
    """Places (y * columns + x) of a mesh along a way of neighbours; a ring where the
    columns or rows are even and more than one.

    Up column 0 and snaking back through the others.
    """
    if rows % 2 and columns % 2 == 0 and rows > 1:
        y, x = np.divmod(snake(rows, columns), rows)
        return x * columns + y
    way = [row * columns for row in range(rows)]
    for step, row in enumerate(range(rows - 1, -1, -1)):
        places = range(1, columns) if step % 2 == 0 else range(columns - 1, 0, -1)
        way += [row * columns + place for place in places]
    return np.array(way, dtype=np.int64)


# Families whose nodes are meshes of chips


def _place_nodes(topology: Topology, sizes: Sizes) -> Placement:
    """On the grid of nodes, along a snake through it where it has another shape, or by
    node number where there is no grid.
    """
    mesh, x, y = sizes
    per_node = topology.chips // topology.nodes
    grid = _node_grid(topology)
    if mesh > per_node or x * y > topology.nodes:
        raise _no_room(topology, sizes, (per_node, *(grid or (topology.nodes, 1))))
    side = math.isqrt(per_node)
    local = snake(side, side)[:mesh]
    if grid is not None and x <= grid[0] and y <= grid[1]:
        kind, node = "grid", np.arange(y)[None, :] * grid[0] + np.arange(x)[:, None]
    else:
        order = np.arange(topology.nodes) if grid is None else _rows_snake(*grid)
        kind, node = (
            "runs" if grid is None else "snake",
            order[np.arange(y)[None, :] * x + np.arange(x)[:, None]],
        )
    return Placement((local[:, None, None] + node[None] * per_node).astype(np.int64), kind)


def _node_grid(topology: Topology) -> tuple[int, int] | None:
    """Columns and rows of nodes, for families whose nodes stand on a grid (node (X, Y)
    is number Y * columns + X).
    """
    settings = topology.settings
    if topology.family == "railx_hyperx":
        side = settings["m"] * settings["n"] + 1
        return side, side
    if "x_scale" in settings and "y_scale" in settings:
        return settings["x_scale"], settings["y_scale"]
    return None


def _rows_snake(columns: int, rows: int) -> IntArray:
    """Nodes row by row, every other row backwards."""
    node = np.arange(columns * rows).reshape(rows, columns)
    node[1::2] = node[1::2, ::-1]
    return node.ravel()


# Tori of single chips


def _place_blocks(topology: Topology, sizes: Sizes, scales: tuple[int, ...]) -> Placement:
    """Blocks as nodes, those with the smallest surface that leave room; in three
    dimensions the first two make the row.
    """
    mesh, x, y = sizes
    rooms = {block: _block_room(scales, block) for block in _blocks_of(mesh, len(scales))}
    fitting = [block for block, room in rooms.items() if x <= room[0] and y <= room[1]]
    if not fitting:
        best = max(rooms.values(), key=lambda room: (min(room[0], x) * min(room[1], y), room))
        raise _no_room(topology, sizes, (mesh, *best))
    block = min(fitting, key=lambda block: (_surface(block), [-side for side in block]))
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


def _block_room(scales: Sequence[int], block: Sequence[int]) -> tuple[int, int]:
    counts = [scale // side for scale, side in zip(scales, block, strict=True)]
    return math.prod(counts[:-1]), counts[-1]


def _blocks_of(volume: int, dimensions: int) -> Iterator[tuple[int, ...]]:
    """All boxes of ``volume`` chips."""
    if dimensions == 1:
        yield (volume,)
        return
    for side in range(1, volume + 1):
        if volume % side == 0:
            for rest in _blocks_of(volume // side, dimensions - 1):
                yield (side, *rest)


def _surface(block: Sequence[int]) -> float:
    return sum(math.prod(block) / side for side in block)


def _walk(block: Sequence[int]) -> IntArray:
    """Places of a box (int[places, dimensions]) along a way of neighbours, a ring in
    layers of an even side.
    """
    layer = np.stack(np.divmod(snake(block[0], block[1]), block[0])[::-1], axis=1)
    if len(block) == 2:
        return layer
    # Every other layer backwards: the way enters a layer where it left the one below.
    layers = [layer[:: 1 if z % 2 == 0 else -1] for z in range(block[2])]
    return np.concatenate(
        [np.column_stack([own, np.full(len(own), z)]) for z, own in enumerate(layers)]
    )


# Switched networks


def _place_runs(topology: Topology, sizes: Sizes) -> Placement:
    """Nodes of consecutive chips, cut into as few equal parts (each below one switch or
    in one server) as leave room.
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
    """Chips of a server, or below the first switch of chip 0 (chips below a switch are
    numbered in a row).
    """
    per_node = topology.chips // topology.nodes
    if per_node > 1:
        return per_node
    links = topology.links
    switch = int(links.dst[links.src == 0].min())
    below = np.unique(links.src[(links.dst == switch) & (links.src < topology.chips)])
    return len(below)


def _no_room(topology: Topology, sizes: Sizes, room: Sizes | None) -> SettingsError:
    """``room``: the most that each axis may take; None: only their product counts."""
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
