"""Routing on a HammingMesh: along the chip row, then along the chip column.

A packet turns at the destination's chip column. A packet for another board of the row
leaves at the nearer end of its chip row (RailX simulator). The rest of the path is not
published. Here it enters the other board at the end nearer to the destination's chip
column and walks to that column before it turns, so that all chip rows and chip columns
carry the same uniform traffic. A path passes the fewest switches, and has the fewest
links among such paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from railx.families.hammingmesh.graph import (
    HammingMeshSettings,
    column_switches,
    row_switches,
    side_links,
)
from railx.vocabulary.arrays import BoolArray, FloatArray, Int32Array, IntArray
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

#: States: switches passed or no longer needed, then (``adaptive``) on the way to the
#: chosen end of row or column.
_START, _ROW_DONE, _COLUMN_DONE = 0, 1, 2
_HEADING = {"row": (3, 4), "column": (5, 6)}


def route(
    settings: HammingMeshSettings,
    topology: Topology,
    routing: str,
    destinations: Destinations = None,
) -> RoutingTable:
    """Row first, then column; each switch raises the virtual channel by one.

    Walks stay on their channel.

    * ``min`` (RailX simulator): at equal distance to both ends the minus side, out and
      in. The links to and from a switch are on the channel of the walk behind it.
    * ``balanced``: splits equal distances evenly (even m has none) and draws one of the
      three channels for the links to and from a switch. Only one phase of a path uses
      those, so this closes no cycle of waiting packets, and fewer packets wait behind
      one that needs another output of the switch.
    * ``adaptive``: as ``balanced``, but compares both ends when a packet starts for the
      row and for the column, by the queues at the ports there and the time of flight.
    """
    adaptive = routing == "adaptive"
    builder = TableBuilder(
        topology,
        routing,
        states=7 if adaptive else 3,
        virtual_channels=3,
        destinations=destinations,
    )
    row, column = _line(settings, "row"), _line(settings, "column")
    _fill_chips(builder, settings, row, column)
    for line in (row, column):
        _fill_switches(builder, settings, line)
    return builder.build()


@dataclass(frozen=True, eq=False)
class _Line:
    """One dimension: positions of the chips, and the links to its switches.

    * ``position`` and ``board`` (int[chips]): position in the board, and of the board
      in its line. ``stride``: from chip to chip.
    * ``up`` (int[chips, 2, n]): link rows from both ends of a chip's line to the
      switches.
    * ``down`` (int[switches, boards, 2]): from a switch to both ends of its line in
      each board. ``first_switch``: the first of these switches.
    * ``channel``: virtual channel of the walks before the switch, one below its links.
    """

    kind: Literal["row", "column"]
    position: IntArray
    board: IntArray
    stride: int
    up: IntArray
    down: IntArray
    first_switch: int
    channel: int


def _line(settings: HammingMeshSettings, kind: Literal["row", "column"]) -> _Line:
    m, row = settings.m, kind == "row"
    board, local = np.divmod(np.arange(settings.chips), m**2)
    x, y, board_x, board_y = (
        local % m,
        local // m,
        board % settings.x_scale,
        board // settings.x_scale,
    )
    position, beside, along, line = (x, y, board_x, board_y) if row else (y, x, board_y, board_x)
    ends = np.stack(
        [side_links(settings, kind, 0), side_links(settings, kind, 1)], axis=-1
    )  # [line, beside, lane, board, way, end]
    return _Line(
        kind=kind,
        position=position,
        board=along,
        stride=1 if row else m,
        up=np.swapaxes(ends[line, beside, :, along, 0, :], 1, 2),
        down=ends[..., 1, :].reshape(-1, ends.shape[3], 2),
        first_switch=int((row_switches if row else column_switches)(settings).min()),
        channel=0 if row else 1,
    )


def _fill_chips(
    builder: TableBuilder, settings: HammingMeshSettings, row: _Line, column: _Line
) -> None:
    to = builder.destinations.astype(np.int64)
    chips = slice(0, settings.chips)
    crosses_x, crosses_y = (
        row.board[:, None] != row.board[to],
        column.board[:, None] != column.board[to],
    )
    walks_x = ~crosses_x & (row.position[:, None] != row.position[to])
    walks_y = ~crosses_y & (column.position[:, None] != column.position[to])
    at_x = ~crosses_x & ~walks_x

    def walk(line: _Line, channel: int) -> Int32Array:
        goal = np.arange(settings.m)
        return builder.single(_walk_pools(builder, line, goal, channel), channel)[
            :, line.position[to]
        ]

    def put(state: int, where: BoolArray, sets: Int32Array) -> None:
        builder.entry[state][chips][where] = np.broadcast_to(sets, where.shape)[where]

    for state, sets in _leave_sets(builder, settings, row).items():
        put(state, crosses_x, sets[:, None])
    for state, sets in _leave_sets(builder, settings, column).items():
        put(state, at_x & crosses_y, sets[:, None])
    put(_ROW_DONE, walks_x, walk(row, _ROW_DONE))
    put(_ROW_DONE, at_x & walks_y, walk(column, _ROW_DONE))
    put(_COLUMN_DONE, at_x & walks_y, walk(column, _COLUMN_DONE))
    # A packet that needs no row switch starts on the channel behind it, unless it stays
    # on its board.
    put(_START, ~crosses_x & crosses_y, builder.entry[_ROW_DONE][chips])
    put(_START, walks_x & ~crosses_y, walk(row, _START))
    put(_START, at_x & walks_y, walk(column, _START))


def _leave_sets(
    builder: TableBuilder, settings: HammingMeshSettings, line: _Line
) -> dict[int, Int32Array]:
    """Sets (int32[chips]) of packets leaving their board along this line, by state."""
    last, adaptive = settings.m - 1, builder.selection == "adaptive"
    distance = np.stack([line.position, last - line.position], axis=1)
    share = _minus_share(builder, distance)
    walk = _walk_pools(builder, line, np.array([0, last]), line.channel)
    sets: dict[int, list[int]] = {line.channel: []}
    sets |= {heading: [] for heading in _HEADING[line.kind]} if adaptive else {}
    for chip, (minus, delays) in enumerate(
        zip(share.tolist(), (distance * settings.internal_latency_ns).tolist(), strict=True)
    ):
        by_end = []
        for end, rows in enumerate(line.up[chip].tolist()):
            if distance[chip, end] == 0:
                by_end.append(
                    [
                        (builder.pool(rows, vc), line.channel + 1)
                        for vc in _switch_channels(builder, line)
                    ]
                )
            else:
                by_end.append(
                    [(int(walk[chip, end]), _HEADING[line.kind][end] if adaptive else line.channel)]
                )
        if adaptive:
            for heading, choices in zip(_HEADING[line.kind], by_end, strict=True):
                sets[heading].append(builder.choice_set(choices))
        ends = np.repeat([0, 1], [len(choices) for choices in by_end])
        weights = (
            np.array([minus, 1 - minus])[ends]
            / np.array([len(choices) for choices in by_end])[ends]
        )
        probes = [int(line.up[chip, end, 0]) for end in ends]
        choice_set = builder.choice_set(
            [*by_end[0], *by_end[1]],
            weights.tolist(),
            probes if adaptive else None,
            [delays[end] for end in ends] if adaptive else None,
        )
        sets[line.channel].append(choice_set)
    return {state: np.array(of_chips, dtype=np.int32) for state, of_chips in sets.items()}


def _fill_switches(builder: TableBuilder, settings: HammingMeshSettings, line: _Line) -> None:
    """From a switch to the end of the board line nearer to the destination."""
    to = builder.destinations.astype(np.int64)
    distance = np.stack([line.position[to], settings.m - 1 - line.position[to]], axis=1)
    share = _minus_share(builder, distance)
    channels = _switch_channels(builder, line)
    sets = np.array(
        [
            builder.choice_set([(builder.pool([row], vc), line.channel + 1) for vc in channels])
            for row in line.down.ravel().tolist()
        ]
    ).reshape(line.down.shape)
    by_share = {1.0: sets[..., 0], 0.0: sets[..., 1]}
    if (share == 0.5).any():
        by_share[0.5] = builder.merge(sets[..., 0], sets[..., 1])
    switches = slice(line.first_switch, line.first_switch + len(line.down))
    for value, of_line in by_share.items():
        columns = np.flatnonzero(share == value)
        builder.entry[line.channel + 1][switches, columns] = of_line[:, line.board[to[columns]]]


def _switch_channels(builder: TableBuilder, line: _Line) -> Sequence[int]:
    """Virtual channels of the links to and from the switches of a line."""
    return (line.channel + 1,) if builder.routing == "min" else range(builder.virtual_channels)


def _minus_share(builder: TableBuilder, distance: IntArray) -> FloatArray:
    """Share of the traffic to the minus end, by both distances (int[chips, 2])."""
    tie = 1.0 if builder.routing == "min" else 0.5
    return np.where(
        distance[:, 0] == distance[:, 1], tie, (distance[:, 0] < distance[:, 1]).astype(np.float64)
    )


def _walk_pools(builder: TableBuilder, line: _Line, goal: IntArray, channel: int) -> IntArray:
    """The pool of the next link to each position of a board line: int[chips, goals].

    -1 where the chip is there.
    """
    chip = np.arange(len(line.position))[:, None]
    step = np.sign(goal - line.position[:, None])
    return builder.pools_between(chip, chip + step * line.stride, channel)
