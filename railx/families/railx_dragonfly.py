"""Network family ``railx_dragonfly``: RailX set to a Dragonfly.

In a Dragonfly the routers of a group share the links to the other groups (Kim, Dally,
Scott and Abts, ISCA 2008). Here a row of nodes is a group, all-to-all on its X rails,
and its nodes share the links: the Y rails of column 0 join each row to some other rows,
those of column 1 to others, and all columns together join every pair of rows. A packet
goes along its row to a column that leads to the destination's row, up or down that
column, and along the other row: at most 3 inter-node hops. With r rails per side and C
columns there are C r Y rails with 2 ports per node, which join up to 2 C r + 1 rows,
where the plain all-to-all of a column ends at r + 1. The mapping is this project's;
RailX's abstract names only the flexibility. Its price: a Y rail need not be one ring
over the full column.

Design of the columns. A Y rail shifts every row by a difference d (row y to row y + d
modulo the number of rows G), a union of gcd(G, d) rings, so that one switch can close
it. The differences are 1, 2, ..., floor(G/2), then G - 1, G - 2, ... down to the half.
The rails of column 0 take them in turn, then those of column 1, and so on, starting
again after G - 1. After floor(G/2) rails every pair of rows is joined. Since d and -d
are the same links, the links between two rows differ by at most one over all pairs (d =
G/2 joins its pairs twice at once). A shift of all rows is a symmetry of the network.

Layout: nodes (X, Y) = Y * columns + X, chips and rails as in
:mod:`railx.vocabulary.grid`.

Routing: a path has at most three rails, one of them along a column, and four virtual
channels: a walk or a rail of phase p is on channel p or p + 1, and packets that need
fewer rails start in a later phase. By the symmetry everything depends only on the
difference of the rows, and one row represents all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.family import check_radix, size_check
from railx.families.node_grids import (
    AllToAllSettings,
    all_rail_lines,
    best_grid,
    grid_ports,
    in_node_lanes_per_chip,
    longest_line,
    node_grid_family,
)
from railx.settings import AtLeast, SettingsError
from railx.vocabulary.arrays import BoolArray, FloatArray, Int32Array, IntArray, true_indices
from railx.vocabulary.circuit_checks import check_part, check_ports
from railx.vocabulary.counts import Bill, Ports, dragonfly_hops
from railx.vocabulary.grid import build_lines, port_chip, rail_ports, successor_arcs
from railx.vocabulary.line_parts import (
    LinePart,
    check_rails,
    check_rings,
    line_successors,
    part_wiring,
)
from railx.vocabulary.placement import node_placement
from railx.vocabulary.routing.groups import DestinationGroups, groups_by_coordinates
from railx.vocabulary.routing.line_phases import Phase, WalkOrder, link_shares, mesh_distance
from railx.vocabulary.routing.node_walks import Exits, exits, split_sets, walk_pools
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Circuits, Topology, two_nearest

__all__ = ["FAMILY", "RailXDragonflySettings"]


#: Walks to the rail of the row, of the column, of the second row, and to the chip.
_ORDERS: tuple[WalkOrder, ...] = ("yx", "xy", "yx", "xy")


@dataclass(frozen=True)
class RailXDragonflySettings(AllToAllSettings):
    """RailX set to a Dragonfly: every row of nodes is a group."""

    family: Literal["railx_dragonfly"]

    columns: Annotated[int, AtLeast(2)] = 5
    """Nodes of a group; columns - 1 divides r = m * n, for r / (columns - 1) copies of
    the all-to-all of a row."""
    rows: Annotated[int, AtLeast(2)] = 13
    """Groups, at most 2 m n columns + 1."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.columns, self.rows

    def __post_init__(self) -> None:
        super().__post_init__()
        rails = self.rails
        check_rails(rails)
        if rails % (self.columns - 1):
            sizes = (d + 1 for d in range(1, rails + 1) if rails % d == 0)
            raise SettingsError(
                "columns",
                f"got {self.columns}; allowed: a number whose columns - 1 divides m * n = {rails}"
                f" rails; the nearest are {two_nearest(self.columns, sizes)}",
            )
        check_rings("columns", (row_part(self),), self.rings)
        most = 2 * rails * self.columns + 1
        if self.rows > most:
            raise SettingsError(
                "rows",
                f"got {self.rows}; allowed: at most {most}, {self.columns} columns of {rails} rails"
                f" cannot join more; the nearest are {most - 1} and {most}",
            )
        check_radix(self.ocs_radix, max(self.shape))


def row_part(settings: RailXDragonflySettings) -> LinePart:
    """The all-to-all of a row as a part with all its rails."""
    return LinePart("all_to_all", settings.rails, settings.columns, 1)


# Graph


def row_differences(settings: RailXDragonflySettings) -> IntArray:
    """Rows that the Y rails of each column go up by: (columns, r), 1 to rows - 1."""
    rows, rails = settings.rows, settings.rails
    half = rows // 2
    order = np.concatenate([np.arange(1, half + 1), np.arange(rows - 1, half, -1)])
    return order[np.arange(settings.columns * rails) % (rows - 1)].reshape(settings.columns, rails)


def build(settings: RailXDragonflySettings) -> Topology:
    """Build the topology.

    Columns of a row are joined twice per copy, every pair of rows in at least one
    column.
    """
    grid = settings.grid
    next_x = line_successors((row_part(settings),), grid.columns, settings.rings)
    next_y = (np.arange(grid.rows) + row_differences(settings)[:, :, None]) % grid.rows
    arcs_x = successor_arcs(np.broadcast_to(next_x, (grid.rows, *next_x.shape)))
    return build_lines(settings, grid, arcs_x, successor_arcs(next_y))


def bisection_ports(settings: RailXDragonflySettings) -> int:
    """Ports in one direction across that cut.

    2 min(d, G - d) for each Y rail of difference d, or the row's pairs across.
    """
    if settings.columns >= settings.rows:
        half = settings.columns // 2
        return 2 * row_part(settings).copies * half * (settings.columns - half) * settings.rows
    d = row_differences(settings)
    return int(2 * np.minimum(d, settings.rows - d).sum())


def node_hop_counts(settings: RailXDragonflySettings) -> IntArray:
    """Ordered pairs of chips that are h inter-node hops apart (index h).

    Shifts of all rows are symmetries, so the sources of row 0 suffice. Within a row: 1
    hop. To a row d further within a column: 1 hop where that column has difference d or
    -d, 2 where two of its differences make d. Else 2 hops where the source's or the
    destination's column has it, else 3.
    """
    rows, columns = settings.rows, settings.columns
    joins: BoolArray = np.zeros((columns, rows), dtype=np.bool_)
    d = row_differences(settings)
    column = np.arange(columns)[:, None]
    joins[column, d] = joins[column, rows - d] = True
    source, target = joins[:, None, 1:], joins[None, :, 1:]
    hops = np.where(source | target, 2, 3)
    # later[d, e]: the difference that remains of d after e
    later = (np.arange(rows)[:, None] - np.arange(rows)) % rows
    twice: BoolArray = np.zeros_like(joins)
    np.logical_and(joins[:, None, :], joins[:, later]).any(axis=2, out=twice)
    hops[column[:, 0], column[:, 0]] = np.where(joins[:, 1:], 1, 3 - twice[:, 1:].astype(np.int64))
    counts = np.bincount(hops.ravel(), minlength=4)
    counts[:2] += columns, columns * (columns - 1)
    return counts[: int(counts.nonzero()[0].max()) + 1] * rows * settings.m**4


def check_circuits(settings: RailXDragonflySettings, circuits: Circuits) -> None:
    """Check the circuits of the groups; ValueError names the first fault.

    Every port belongs to its node. Every pair of columns of a row is joined, and every
    pair of rows in some column.
    """
    check_ports(circuits, settings.grid, paired=False)
    check_part(circuits, 0, row_part(settings), directed=settings.rings == "directed")
    in_columns = circuits.dimension == 1
    joined = np.eye(settings.rows, dtype=np.bool_)
    a, b = (port[in_columns] // 2 for port in (circuits.port_a, circuits.port_b))
    joined[a, b] = joined[b, a] = True
    if not joined.all():
        row_a, row_b = np.argwhere(~joined)[0].tolist()
        raise ValueError(
            f"circuits: no column joins rows {row_a} and {row_b}; allowed: every pair of rows in at"
            " least one column"
        )


# Bill of materials


def ports(settings: RailXDragonflySettings) -> Ports:
    """Components of the grid, and its bandwidths in ports per chip."""
    grid = settings.grid
    groups = grid.rows
    bisection = 4 * grid.rails * (groups // 2) * (groups - groups // 2) / (groups * (groups - 1))
    mean_hops = dragonfly_hops(grid.columns, groups, grid.m**2)
    return grid_ports(
        grid,
        all_to_all=min(2 * grid.n / grid.m / hops for hops in mean_hops),
        bisection=bisection / grid.m**2,
    )


def resize(settings: RailXDragonflySettings, chips: int) -> RailXDragonflySettings:
    """The Dragonfly of ``node_grids.best_grid``, on every rail of a row."""
    rails, longest = settings.rails, longest_line(settings)
    return best_grid(
        settings,
        chips,
        [
            (columns * rows, (columns, rows))
            for columns in all_rail_lines(rails, longest)
            for rows in range(2, min(longest, 2 * rails * columns + 1) + 1)
        ],
        lambda shape: _shaped(settings, *shape),
        ports,
    )


def _shaped(settings: RailXDragonflySettings, columns: int, rows: int) -> RailXDragonflySettings:
    rings = "undirected" if columns in (4, 6) else settings.rings
    return replace(settings, columns=columns, rows=rows, rings=rings)


def route(
    settings: RailXDragonflySettings,
    topology: Topology,
    routing: str,
    destinations: Destinations = None,
) -> RoutingTable:
    """``min`` goes through a column that needs the fewest rails by the nearest link,
    ``balanced`` through any column, by all links evenly under uniform traffic.

    Equal columns are taken in proportion to their rails to the destination's row.
    States: 0 at the source and on the last row, 1 in the column where the
    packet changes rows, then those on the way to a link: of the row by column and link,
    of the column. On the last row a packet is in the row of its destination, on the
    first one it is not, so that both have the same states.
    """
    plan = _Plan(settings, routing)
    groups = _groups(settings, topology, destinations)
    builder = TableBuilder(
        topology, routing, destinations, groups, states=plan.states, virtual_channels=4
    )
    _fill(builder, plan)
    return builder.build()


def _groups(
    settings: RailXDragonflySettings, topology: Topology, destinations: Destinations
) -> DestinationGroups:
    """A vertex sees the node of a destination in another row, the column of one in its
    row, and the chip of one in its node.
    """
    chips, columns = settings.m**2, settings.columns
    node = np.arange(topology.chips) // chips
    to = np.arange(topology.chips) if destinations is None else destinations.astype(np.int64)
    to_node = to // chips
    return groups_by_coordinates(
        topology.chips,
        [node // columns, node % columns],
        [to_node // columns, to_node % columns],
        [to_node, to_node % columns, to % chips],
        [columns * settings.rows, columns, chips],
    )


class _Plan:
    """The columns and links of packets, by difference of rows, column and chip.

    There are G differences, C columns and c chips.

    * ``ports`` (int[G, C, Q]): the Y ports (2 rail + side) of each column that lead to
      a difference of rows, -1 for none.
    * ``candidates`` (int[G, J]): the columns with such ports.
    * ``itself`` (int[G, C]): the index of each column among these, J where it is none.
    * ``by_column`` (float[C, C, G, C]): from column a to column b, the share that
      changes rows in each column.
    * ``first`` (float[C, c, C, k]), ``across`` (float[C, c, G, Q]) and ``last``
      (float[C, c, C, k]): the shares of the links on the first row, in the column, on
      the last row.
    """

    def __init__(self, settings: RailXDragonflySettings, routing: str) -> None:
        self.settings, self.routing = settings, routing
        self.rows, self.columns, self.chips = settings.rows, settings.columns, settings.m**2
        wiring = part_wiring(row_part(settings), settings.rings)
        self.row = Phase(wiring, m=settings.m, n=settings.n, dimension=0, stride=1)
        self.ports = _row_ports(settings)
        count = (self.ports >= 0).sum(axis=2)
        joined = count > 0
        self.candidates = true_indices(joined)
        self.itself = np.where(joined, joined.cumsum(axis=1) - 1, self.candidates.shape[1])
        self.by_column = _columns_taken(count, spread=routing == "balanced")
        uniform = np.ones((1, self.columns, self.chips))
        self.first = link_shares(uniform, self.row.distance, routing)[0]
        self._share_column_and_last_row()

    @property
    def states(self) -> int:
        return self.column_state(self.ports.shape[2])

    @property
    def others(self) -> int:
        """The most candidates but for one's own column."""
        joined = (self.candidates >= 0).sum(axis=1, keepdims=True)
        return int((joined - (self.itself < joined)).max())

    def row_state(self, other: int, link: int) -> int:
        return int(2 + other * self.row.links + link)

    def column_state(self, port: int) -> int:
        return self.row_state(self.others, port)

    def _share_column_and_last_row(self) -> None:
        """Follow uniform traffic from every chip to every other node to a column."""
        distance = mesh_distance(self.settings.m)
        rail, side = np.divmod(np.maximum(self.ports, 0), 2)
        leave, enter = (
            port_chip(rail, side == plus, self.settings.m, self.settings.n, 1) for plus in (1, 0)
        )
        self.across = np.zeros((self.columns, self.chips, *self.ports.shape[::2]))
        last_source = np.ones((self.columns, self.chips, self.columns))
        # Load of the links of the first row for a share of 1 of a column.
        per_link = self.first.sum(axis=1)
        for column in range(self.columns):
            arrived = np.zeros((self.chips, self.columns, self.rows))  # [chip, b, difference]
            arrived += self.by_column[column, :, :, column]
            for a in range(self.columns):
                for k in range(self.row.links if a != column else 0):
                    arrived[self.row.enter[a, column, k]] += (
                        per_link[a, column, k] * self.by_column[a, :, :, column]
                    )
            for rows in range(1, self.rows):
                used = np.flatnonzero(self.ports[rows, column] >= 0)
                if len(used):
                    source = arrived[:, :, rows].sum(axis=1)
                    steps = distance[:, leave[rows, column, used]][None, :, None]
                    to = link_shares(source[None, None], steps, self.routing)
                    self.across[column][:, rows, used] = to[0, 0, :, 0]
                    for q in used.tolist():
                        last_source[column, enter[rows, column, q]] += (
                            self.across[column, :, rows, q] @ arrived[:, :, rows]
                        )
        self.last = link_shares(last_source[None], self.row.distance, self.routing)[0]


def _fill(builder: TableBuilder, plan: _Plan) -> None:
    assert builder.groups is not None
    other_row, other_column, inside = map(builder.groups.on_level, range(3))
    node, local = np.divmod(np.arange(builder.topology.chips), plan.chips)
    x, y = node % plan.columns, node // plan.columns
    kind = x * plan.chips + local

    def split(paths: Sequence[Exits], shares: FloatArray, repeats: int = 1) -> Int32Array:
        """Sets by shares of a column and local chip: float[C, c, T, paths]."""
        by_kind = shares.reshape(plan.columns * plan.chips, -1, len(paths))
        return split_sets(builder, paths, by_kind, repeats, kind)

    rows_up = (np.arange(plan.rows) - y[:, None]) % plan.rows  # [chip, row]
    by_rail = plan.routing == "balanced"
    walks = [
        walk_pools(builder, plan.settings.m, order, vc, by_rail=by_rail and vc < 3)
        for vc, order in enumerate(_ORDERS)
    ]
    first, across, last = _paths(builder, plan, walks, node, x)

    def fill_rows(state: int, sets: Int32Array) -> None:
        """Sets by chip and difference of rows, the same for all columns of a row."""
        by_row = np.take_along_axis(sets, rows_up, axis=1)
        builder.entry[state][:, other_row] = np.repeat(by_row, plan.columns, axis=1)

    builder.entry[0][:, other_column] = split(last, plan.last)
    fill_rows(1, split(across, plan.across))
    for (j, k), path in first.items():
        fill_rows(plan.row_state(j, k), path.sets(builder))
    for q, path in enumerate(across):
        fill_rows(plan.column_state(q), path.sets(builder))
    for k, path in enumerate(last):
        builder.entry[plan.row_state(0, k)][:, other_column] = path.sets(builder)
    # At the source: any link to a suitable column, or a link of this column.
    to_column = _candidate_paths(plan, first, x)
    paths = [*to_column.values(), *across]
    weight = np.empty((*plan.first.shape[:2], plan.rows, plan.columns, len(paths)))
    for number, (j, k) in enumerate(to_column):
        column = plan.candidates[:, j]
        taken = plan.by_column[:, :, np.arange(plan.rows), column]
        by_column = taken.transpose(0, 2, 1)  # [column, difference, b]
        weight[..., number] = by_column[:, None] * plan.first[:, :, column, k][..., None]
    here = np.arange(plan.columns)
    stays = plan.by_column[here, :, :, here].transpose(0, 2, 1)
    for q in range(len(across)):
        weight[..., len(to_column) + q] = stays[:, None] * plan.across[..., q][..., None]
    at_source = split(paths, weight, plan.columns).reshape(len(node), plan.rows, -1)
    by_node = np.take_along_axis(at_source, rows_up[:, :, None], axis=1)
    builder.entry[0][:, other_row] = by_node.reshape(len(node), -1)
    builder.entry[0][:, inside] = builder.single(walks[3][0], 0)


def _paths(
    builder: TableBuilder, plan: _Plan, walks: list[Int32Array], node: IntArray, x: IntArray
) -> tuple[dict[tuple[int, int], Exits], list[Exits], list[Exits]]:
    """The paths along the first row, in the column and on the last row.

    Those of the first row are by other column and link; they and those in the column
    are by difference of rows.
    """
    ports = rail_ports(builder.topology).link
    along = plan.row.rail_rows(ports)[node]  # [chip, column, link]
    chip, itself = np.arange(len(node))[:, None], plan.itself[:, x].T
    candidates = np.pad(plan.candidates, ((0, 0), (0, 1)), constant_values=-1)
    first = {}
    for j in range(plan.others):
        column = candidates[np.arange(plan.rows), j + (itself <= j)]  # [chip, difference]
        for k in range(plan.row.links):
            link = np.where(column < 0, -1, along[chip, column, k])
            first[j, k] = exits(builder, walks[0], link, 1, plan.row_state(j, k), after=1)
    across = []
    for q in range(plan.ports.shape[2]):
        port = plan.ports[:, x, q].T  # [chip, difference]
        rail, side = np.divmod(np.maximum(port, 0), 2)
        link = np.where(port < 0, -1, ports[1][node[:, None], rail, side])
        across.append(exits(builder, walks[1], link, 2, plan.column_state(q)))
    last = [
        exits(builder, walks[2], along[..., k], 3, plan.row_state(0, k))
        for k in range(plan.row.links)
    ]
    return first, across, last


def _candidate_paths(
    plan: _Plan, first: dict[tuple[int, int], Exits], x: IntArray
) -> dict[tuple[int, int], Exits]:
    """The paths along the first row by candidate column and link, from those by other
    column; a column has none to itself.
    """
    itself = plan.itself[:, x].T
    result = {}
    for j in range(plan.candidates.shape[1]):
        before, behind = itself < j, (itself > j) & (j < plan.others)
        for k in range(plan.row.links):
            path, other = first[min(j, plan.others - 1), k], first[max(j - 1, 0), k]
            pool = np.where(behind, path.pool, np.where(before, other.pool, np.int32(-1)))
            result[j, k] = replace(path, pool=pool, state=np.where(before, other.state, path.state))
    return result


def _row_ports(settings: RailXDragonflySettings) -> IntArray:
    """The Y ports (2 rail + side, plus is 1) to each row difference: int[G, C, Q]."""
    up = row_differences(settings)
    goes = np.stack([settings.rows - up, up], axis=-1)  # [column, rail, side]
    rows = np.arange(settings.rows)[:, None, None]
    return true_indices(goes.reshape(settings.columns, -1) == rows)


def _columns_taken(count: IntArray, *, spread: bool) -> FloatArray:
    """Shares of the columns with the fewest rails: float[C, C, G, C].

    In proportion to their ports (int[G, C]). With ``spread`` a packet that changes
    columns takes any, also one that needs two rails of rows.
    """
    other = 1 - np.eye(count.shape[1], dtype=np.int64)
    rails = other[:, None] + other  # [a, b, column]
    if spread:
        rails = np.minimum(rails, 1)
    hops = np.where(count > 0, rails[:, :, None, :], 9)
    weight = np.where(hops == hops.min(axis=-1, keepdims=True), count, 0).astype(np.float64)
    weight[:, :, 0] = 0
    shares: FloatArray = weight / np.maximum(weight.sum(axis=-1, keepdims=True), 1)
    return shares


FAMILY = node_grid_family(
    "railx_dragonfly",
    RailXDragonflySettings,
    build=build,
    check=size_check("rows", lambda of: of.grid.link_rows),
    bisection_ports=bisection_ports,
    route=route,
    grouped_routings=("min", "balanced"),
    # Nodes, columns of a row, chips of a node.
    groups=lambda of, routing: of.columns * of.rows + of.columns + of.m**2,
    node_hop_counts=node_hop_counts,
    # The nodes of the first group represent all, as the groups are alike.
    symmetric_sources=lambda of: np.arange(of.columns),
    check_circuits=check_circuits,
    placement=lambda settings, topology, sizes: node_placement(topology, sizes),
    bill=Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip),
)
