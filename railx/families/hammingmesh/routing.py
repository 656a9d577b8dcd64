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

import numpy as np

from railx.families.hammingmesh.graph import (
    HammingMeshSettings,
    LineKind,
    line_switches,
    side_links,
)
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray
from railx.vocabulary.routing.groups import DestinationGroups, groups_by_coordinates
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
    row, column = _line(settings, "row"), _line(settings, "column")
    groups = _destination_groups(settings, row, column, destinations)
    builder = TableBuilder(
        topology, routing, destinations, groups, states=7 if adaptive else 3, virtual_channels=3
    )
    _fill_chips(builder, settings, row, column, groups)
    _fill_switches(builder, settings, row, groups.on_level(0))
    _fill_switches(builder, settings, column, groups.on_level(2))
    return builder.build()


def groups_of(settings: HammingMeshSettings, routing: str) -> int:
    """Columns of the table: for chip columns, for those of a board, and for chip rows.

    On a board those are apart by the destination's board row.
    """
    return settings.m * (settings.x_scale + 2 * settings.y_scale)


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

    kind: LineKind
    position: IntArray
    board: IntArray
    stride: int
    up: IntArray
    down: IntArray
    first_switch: int
    channel: int

    @property
    def place(self) -> IntArray:
        """The position of each chip in the whole line: int[chips]."""
        place: IntArray = self.board * (self.position.max() + 1) + self.position
        return place


def _line(settings: HammingMeshSettings, kind: LineKind) -> _Line:
    m, row = settings.m, kind == "row"
    board, local = np.divmod(np.arange(settings.chips), m**2)
    (board_y, board_x), (y, x) = np.divmod(board, settings.x_scale), np.divmod(local, m)
    position, beside, along, line = (x, y, board_x, board_y) if row else (y, x, board_y, board_x)
    # [line, beside, lane, board, way, end]
    ends = np.stack([side_links(settings, kind, 0), side_links(settings, kind, 1)], axis=-1)
    return _Line(
        kind=kind,
        position=position,
        board=along,
        stride=1 if row else m,
        up=np.swapaxes(ends[line, beside, :, along, 0, :], 1, 2),
        down=ends[..., 1, :].reshape(-1, ends.shape[3], 2),
        first_switch=int(line_switches(settings, kind).min()),
        channel=0 if row else 1,
    )


def _destination_groups(
    settings: HammingMeshSettings, row: _Line, column: _Line, destinations: Destinations
) -> DestinationGroups:
    """Groups by board column, then chip column, then chip row.

    Row switches lead to every chip column. A column switch has a chip column of its
    own.
    """
    m, of_row = settings.m, np.full(line_switches(settings, "row").size, -1)
    of_column = np.repeat(np.arange(settings.x_scale * m), settings.n)
    x, y = row.place, column.place
    to = slice(None) if destinations is None else destinations
    return groups_by_coordinates(
        len(x) + len(of_row) + len(of_column),
        [
            np.concatenate([row.board, of_row, of_column // m]),
            np.concatenate([x, of_row, of_column]),
        ],
        [row.board[to], x[to]],
        [x[to], row.position[to] * settings.y_scale + column.board[to], y[to]],
        (m * settings.x_scale, m * settings.y_scale, m * settings.y_scale),
    )


def _fill_chips(
    builder: TableBuilder,
    settings: HammingMeshSettings,
    row: _Line,
    column: _Line,
    groups: DestinationGroups,
) -> None:
    to_x, on_board, to_y = (
        builder.entry[:, : settings.chips, groups.on_level(i)] for i in range(3)
    )

    def walk(line: _Line, channel: int) -> Int32Array:
        pools = _walk_pools(builder, line, np.arange(settings.m), channel)
        return builder.single(pools, channel)

    for state, sets in _leave_sets(builder, settings, row).items():
        to_x[state] = sets[:, None]
    # A packet that needs no row switch starts on the channel behind it, unless it stays
    # on its board.
    position, board = np.divmod(np.arange(on_board.shape[2]), settings.y_scale)
    crosses = column.board[:, None] != board
    on_board[_ROW_DONE] = walk(row, _ROW_DONE)[:, position]
    on_board[_START] = np.where(crosses, on_board[_ROW_DONE], walk(row, _START)[:, position])
    board, position = np.divmod(np.arange(to_y.shape[2]), settings.m)
    crosses = column.board[:, None] != board
    for state in (_START, _ROW_DONE, _COLUMN_DONE):
        to_y[state] = np.where(crosses, -1, walk(column, state)[:, position])
    for state, sets in _leave_sets(builder, settings, column).items():
        to_y[state] = np.where(crosses, sets[:, None], to_y[state])
    to_y[_START] = np.where(crosses, to_y[_ROW_DONE], to_y[_START])


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
                channels = _switch_channels(builder, line)
                by_end.append([(builder.pool(rows, vc), line.channel + 1) for vc in channels])
            else:
                heading = _HEADING[line.kind][end] if adaptive else line.channel
                by_end.append([(int(walk[chip, end]), heading)])
        if adaptive:
            for heading, choices in zip(_HEADING[line.kind], by_end, strict=True):
                sets[heading].append(builder.choice_set(choices))
        counts = np.array([len(choices) for choices in by_end])
        ends = np.repeat([0, 1], counts)
        weights = np.array([minus, 1 - minus])[ends] / counts[ends]
        probes = [int(line.up[chip, end, 0]) for end in ends]
        choice_set = builder.choice_set(
            [*by_end[0], *by_end[1]],
            weights.tolist(),
            probes if adaptive else None,
            [delays[end] for end in ends] if adaptive else None,
        )
        sets[line.channel].append(choice_set)
    return {state: np.array(of_chips, dtype=np.int32) for state, of_chips in sets.items()}


def _fill_switches(
    builder: TableBuilder, settings: HammingMeshSettings, line: _Line, places: slice
) -> None:
    """From a switch to the end of the board line nearer to the destination.

    ``places``: the columns of the table for places in the line.
    """
    board, position = np.divmod(np.arange(places.stop - places.start), settings.m)
    distance = np.stack([position, settings.m - 1 - position], axis=1)
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
        builder.entry[line.channel + 1][switches, places.start + columns] = of_line[
            :, board[columns]
        ]


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
