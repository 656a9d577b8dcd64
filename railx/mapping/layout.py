"""Where the ranks of a job stand: the chips of each axis, and the groups that communicate.

The ranks of a job form a box: chips of a node (mesh) x nodes of a row (x) x nodes of a column (y). Families without nodes on a
grid get the nearest equivalent: blocks of a torus, runs of consecutive chips of a switched network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from railx.mapping.settings import LayoutSettings
from railx.topology import Topology

__all__ = ["axes_chips", "group_members"]

IntArray = NDArray[np.int64]


def axes_chips(topology: Topology, sizes: tuple[int, int, int]) -> IntArray:
    """The chip of each rank: int[mesh, x, y]. ValueError where the topology has no room for such a box.

    Within a node ranks follow a snake, so that neighbours in rank are neighbours in the mesh and the last closes the ring where the
    side is even.
    """
    mesh, x, y = sizes
    settings = topology.settings
    if topology.family in ("torus_2d", "mesh_2d"):
        side = math.isqrt(mesh)
        _fits(topology, sizes, (side * side, settings["x_scale"] // side, settings["y_scale"] // side))
        return _blocks((settings["x_scale"], settings["y_scale"]), (side, side), (x, y))
    if topology.family == "torus_3d":
        scales = (settings["x_scale"], settings["y_scale"], settings["z_scale"])
        block = _block_3d(mesh)
        room = (mesh, (scales[0] // block[0]) * (scales[1] // block[1]), scales[2] // block[2])
        _fits(topology, sizes, room)
        return _blocks(scales, block, (x, y))
    per_node = topology.chips // topology.nodes
    side = math.isqrt(per_node)
    grid = node_grid(topology)
    if grid is not None and side * side == per_node:
        _fits(topology, sizes, (per_node, *grid))
        node = np.arange(y)[None, :] * grid[0] + np.arange(x)[:, None]
        return snake((side, side))[:mesh, None, None] + node[None] * per_node
    _fits(topology, sizes, (mesh, x, topology.chips // (mesh * x)))
    run = np.arange(mesh)[:, None, None] + mesh * (np.arange(x)[None, :, None] + x * np.arange(y)[None, None, :])
    return run.astype(np.int64)


def node_grid(topology: Topology) -> tuple[int, int] | None:
    """Columns and rows of nodes, for families whose nodes stand on a grid (node (X, Y) is number Y * columns + X)."""
    settings = topology.settings
    if topology.family == "railx_hyperx":
        side = settings["m"] * settings["n"] + 1
        return side, side
    for columns, rows in (("x_scale", "y_scale"), ("columns", "rows"), ("boards_x", "boards_y")):
        if columns in settings and rows in settings:
            return settings[columns], settings[rows]
    return None


def group_members(layout: LayoutSettings, chips: IntArray, parallelisms: Sequence[str]) -> IntArray:
    """The groups that span ``parallelisms``: int[groups, members], members in rank order from the innermost axis out.

    Ranks belong to one group where they agree in every other parallelism.
    """
    shape = [(name, degree) for axis in (layout.mesh, layout.x, layout.y) for name, degree in axis.items()]
    degrees = [degree for _, degree in shape]
    # Rank box: the first name of an axis varies fastest, the axes follow each other from the mesh outwards.
    box = np.transpose(chips, (2, 1, 0)).reshape(degrees[::-1]).transpose(range(len(degrees))[::-1])
    inside = [i for i, (name, _) in enumerate(shape) if name in parallelisms]
    outside = [i for i in range(len(shape)) if i not in inside]
    members = math.prod(degrees[i] for i in inside)
    # Innermost axis last in memory order, so that it varies fastest among the members.
    ordered = box.transpose(outside + inside[::-1])
    return np.ascontiguousarray(ordered).reshape(-1, members)


def snake(shape: tuple[int, int]) -> IntArray:
    """Local chips (y * side + x) of a square mesh along a ring that closes where the side is even: up column 0, snaking back."""
    side = shape[0]
    if side == 1:
        return np.zeros(1, dtype=np.int64)
    ring = [y * side for y in range(side)]
    for step, y in enumerate(range(side - 1, -1, -1)):
        places = range(1, side) if step % 2 == 0 else range(side - 1, 0, -1)
        ring += [y * side + x for x in places]
    return np.array(ring, dtype=np.int64)


def _blocks(scales: Sequence[int], block: Sequence[int], grid: tuple[int, int]) -> IntArray:
    """Blocks of a mesh or torus as nodes; in three dimensions the first two count as the row, the third as the column."""
    local = _box(block) if len(block) == 3 else np.stack(np.divmod(snake((block[0], block[1])), block[0])[::-1], axis=1)
    chip_stride = np.cumprod([1, *scales[:-1]])
    x, y = grid
    chips = np.empty((len(local), x, y), dtype=np.int64)
    for i in range(x):
        along = [i, 0] if len(scales) == 2 else [i % (scales[0] // block[0]), i // (scales[0] // block[0]), 0]
        for j in range(y):
            corner = [*along[:-1], j]
            places = local + np.array(corner) * np.array(block)
            chips[:, i, j] = places @ chip_stride
    return chips


def _box(block: Sequence[int]) -> IntArray:
    """Places of a small box along a boustrophedon walk: int[places, 3]."""
    places = []
    for z in range(block[2]):
        ys = range(block[1]) if z % 2 == 0 else range(block[1] - 1, -1, -1)
        for turn, y in enumerate(ys):
            xs = range(block[0]) if (turn + z * block[1]) % 2 == 0 else range(block[0] - 1, -1, -1)
            places += [(x, y, z) for x in xs]
    return np.array(places, dtype=np.int64)


def _block_3d(mesh: int) -> tuple[int, int, int]:
    """The box of ``mesh`` chips with the smallest surface."""
    boxes = [(a, b, mesh // (a * b)) for a in range(1, mesh + 1) for b in range(1, mesh + 1) if mesh % (a * b) == 0]
    return min(boxes, key=lambda box: (box[0] * box[1] + box[1] * box[2] + box[0] * box[2], [-side for side in box]))


def _fits(topology: Topology, sizes: tuple[int, int, int], room: tuple[int, int, int]) -> None:
    if any(size > most for size, most in zip(sizes, room, strict=True)):
        raise ValueError(
            f"layout: {' x '.join(map(str, sizes))} (chips of a node x nodes of a row x nodes of a column) on {topology.family} of "
            f"{topology.chips} chips; allowed: at most {' x '.join(map(str, room))}"
        )
