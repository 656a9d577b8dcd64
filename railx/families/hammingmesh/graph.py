"""HammingMesh: boards of m x m chips, joined by switches in rows and columns.

Every row and every column of chips has a switched network (Hoefler 2022). Boards stand
on a grid. The ports at the left and right ends of chip row y of all boards of a board
row meet in the row network of that chip row, one switch for each of the n parallel
lanes; columns alike. Source of the layout: the HammingMesh that the RailX simulator
compares with.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from railx.families.hammingmesh.settings import HammingMeshSettings
from railx.settings import SettingsError
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.grid import mesh_links
from railx.vocabulary.topology import Links, Topology, check_size, chip_nodes, join_links

__all__ = [
    "bisection_ports",
    "build",
    "check",
    "column_switches",
    "halves",
    "node_hop_counts",
    "ports_per_chip",
    "row_switches",
    "side_links",
]

IntArray = NDArray[np.int64]


def check(settings: HammingMeshSettings) -> None:
    """Refuse lines longer than a switch, and more links than fit in memory."""
    longest = max(settings.x_scale, settings.y_scale)
    if settings.switch_radix < 2 * longest:
        raise SettingsError(
            "switch_radix",
            f"got {settings.switch_radix}; allowed: at least {2 * longest}, two ports for each of"
            f" {longest} boards of a line (or x_scale and y_scale of at most"
            f" {settings.switch_radix // 2} for this radix)",
        )
    node = 4 * settings.m * (settings.m - 1) + 8 * settings.m * settings.n
    check_size("x_scale", settings.boards * node)


def build(settings: HammingMeshSettings) -> Topology:
    """Build the network. Row switches follow the chips, then column switches."""
    rows, columns = row_switches(settings), column_switches(settings)
    return Topology(
        settings=settings,
        chips=settings.chips,
        nodes=settings.boards,
        switches=rows.size + columns.size,
        chip_node=chip_nodes(settings.chips, settings.m**2),
        links=join_links(
            [
                _internal(settings),
                *_lines(settings, "row", rows),
                *_lines(settings, "column", columns),
            ]
        ),
        circuits=None,
    )


def row_switches(settings: HammingMeshSettings) -> IntArray:
    """The vertex of each row switch: int[y_scale, m, n].

    By board row, chip row and lane.
    """
    shape = (settings.y_scale, settings.m, settings.n)
    return settings.chips + np.arange(np.prod(shape)).reshape(shape)


def column_switches(settings: HammingMeshSettings) -> IntArray:
    """The vertex of each column switch: int[x_scale, m, n].

    By board column, chip column and lane.
    """
    shape = (settings.x_scale, settings.m, settings.n)
    return (
        settings.chips
        + settings.y_scale * settings.m * settings.n
        + np.arange(np.prod(shape)).reshape(shape)
    )


def side_links(
    settings: HammingMeshSettings, kind: Literal["row", "column"], end: Literal[0, 1]
) -> IntArray:
    """Rows of the link table that join one side of the boards to switches of one kind.

    The side is minus (``end`` 0) or plus (1). int[lines, m, n, boards of the line, 2]:
    by line, chip line, lane, board, and up to the switch (0) or down from it (1).
    """
    lines, boards = (
        (settings.y_scale, settings.x_scale)
        if kind == "row"
        else (settings.x_scale, settings.y_scale)
    )
    shape = (lines, settings.m, settings.n, boards, 2)
    internal = settings.boards * 4 * settings.m * (settings.m - 1)
    tables_before = 2 * (kind == "column") + end
    rows: IntArray = (
        internal + tables_before * int(np.prod(shape)) + np.arange(np.prod(shape)).reshape(shape)
    )
    return rows


def halves(settings: HammingMeshSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the longer dimension of the grid is cut.

    The cut is in the middle of the boards, half 0 is the smaller one. The switches of
    the lines that are cut go with the larger half, so that the ports of the smaller
    half are what crosses.
    """
    cut_rows = settings.x_scale >= settings.y_scale
    length = max(settings.x_scale, settings.y_scale)
    board = np.arange(settings.boards)
    position = board % settings.x_scale if cut_rows else board // settings.x_scale
    along = np.repeat(np.arange(length) >= length // 2, settings.m * settings.n)
    across = np.ones(
        min(settings.x_scale, settings.y_scale) * settings.m * settings.n, dtype=np.bool_
    )
    switches = (across, along) if cut_rows else (along, across)
    return np.concatenate([np.repeat(position >= length // 2, settings.m**2), *switches]).astype(
        np.int8
    )


def bisection_ports(settings: HammingMeshSettings) -> int:
    """Ports in one direction across that cut.

    They are both ends of every chip row and lane of the smaller half's boards.
    """
    shorter, longer = sorted((settings.x_scale, settings.y_scale))
    return 2 * settings.m * settings.n * shorter * (longer // 2)


def ports_per_chip(settings: HammingMeshSettings) -> int:
    """Ports of a chip: n on each of its 4 sides."""
    return 4 * settings.n


def node_hop_counts(settings: HammingMeshSettings) -> IntArray:
    """How many ordered pairs of chips have h links between boards (index h).

    Two links for each dimension that differs.
    """
    counts = np.array([settings.m**4], dtype=np.int64)
    for length in (settings.x_scale, settings.y_scale):
        counts = np.convolve(counts, [length, 0, length * (length - 1)])
    return counts


def _internal(settings: HammingMeshSettings) -> Links:
    mesh = mesh_links(settings.m)
    near_first = mesh[: len(mesh) // 2]  # the second half are the same links back
    board = np.arange(settings.boards)[:, None] * settings.m**2
    return duplex_links(
        board + near_first[:, 0],
        board + near_first[:, 1],
        "internal",
        gbps=settings.port_gbps * settings.internal_width,
        latency_ns=settings.internal_latency_ns,
        lanes=settings.n,
    )


def _lines(
    settings: HammingMeshSettings, kind: Literal["row", "column"], switches: IntArray
) -> list[Links]:
    """The links of all boards to the switches of one kind, minus side then plus side.

    By (line, chip line, lane, board).
    """
    m, n = settings.m, settings.n
    boards = np.arange(settings.boards).reshape(settings.y_scale, settings.x_scale)
    board = (boards if kind == "row" else boards.T)[:, None, None, :] * m**2
    beside = np.arange(m)[None, :, None, None]
    rail = beside * n + np.arange(n)[None, None, :, None]
    tables = []
    for end in (0, m - 1):
        local = beside * m + end if kind == "row" else end * m + beside
        chip, switch, index = np.broadcast_arrays(board + local, switches[..., None], rail)
        tables.append(
            duplex_links(
                chip,
                switch,
                kind,
                gbps=settings.port_gbps,
                latency_ns=settings.external_latency_ns,
                rail=index,
            )
        )
    return tables
