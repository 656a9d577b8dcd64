"""RailX set to a 2a x a twisted torus: column wraps are shifted by half a row.

Going up from row a - 1 of column X leads to row 0 of column X + a (Camara, Moreto,
Vallejo, Beivide, Miguel-Alonso, Martinez and Navaridas, "Twisted Torus Topologies for
Enhanced Interconnection Networks", IEEE TPDS 2010; RailX simulator, its 2D twisted
torus). Rows are rings of 2a nodes as in the plain torus.

Cabling. A switch joins ports of its line only, and in the plain layout of RailX a Y
switch serves one column, so no circuit can change the column. Columns X and X + a
always close one ring of 2a nodes together, and no smaller set of columns is closed
under the wrap. So this setting assumes that **the columns X and X + a are cabled to the
same Y switches**: a grid of a x a crossings with two nodes each. A Y switch then has 2
ports x 2a nodes = 4a, as many as the X switch of a row of 2a nodes, and there are a r
of each kind. The abstract of RailX does not describe the cabling.

Nodes: (X, Y) is number Y * 2a + X, chips and rails as in :mod:`railx.vocabulary.grid`;
all r rails of a line carry the same ring. On the line of the column pair c (0 <= c < a)
position p is node (c, p) for p < a and node (c + a, p - a) for p >= a. ``wrap:
straight`` closes every column on the same cabling instead: the plain 2a x a torus, to
compare with and to reconfigure from.

Routing is minimal, x first, then y. A path takes the wrap of the columns if that is
shorter. A path over the wrap arrives half a row further, so the target column in x
depends on that decision, which the source makes (Camara et al. 2010: the nearest image
of the destination).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.family import check_radix
from railx.families.node_grids import (
    RailXSettings,
    best_grid,
    grid_hop_count,
    grid_ports,
    in_node_lanes_per_chip,
    longest_line,
    node_grid_family,
    ring_bisection_ports,
    ring_ports,
)
from railx.families.railx_torus import chip_grid
from railx.settings import AtLeast, SettingsError
from railx.vocabulary.arrays import BoolArray, FloatArray, Int32Array, IntArray
from railx.vocabulary.circuit_checks import check_ports
from railx.vocabulary.counts import Bill, Ports
from railx.vocabulary.grid import build_lines, grid_halves, ring_arcs, successor_arcs
from railx.vocabulary.routing.line_phases import LineRouting
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.routing.uniform_loads import along_lane_loads
from railx.vocabulary.topology import Circuits, Topology

__all__ = ["FAMILY", "RailXTwistedTorusSettings"]


@dataclass(frozen=True)
class RailXTwistedTorusSettings(RailXSettings):
    """RailX set to a twisted torus, with rows twice as long as columns."""

    family: Literal["railx_twisted_torus"]

    x_scale: Annotated[int, AtLeast(4)] = 8
    """Nodes of a row, 2 y_scale."""
    y_scale: Annotated[int, AtLeast(2)] = 4
    """Nodes of a column."""
    wrap: Literal["twisted", "straight"] = "twisted"
    """How a column closes: twisted by y_scale columns, or straight (a plain torus on
    the same cabling)."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.x_scale, self.y_scale

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.x_scale != 2 * self.y_scale:
            near = sorted({self.y_scale, self.x_scale // 2, -(-self.x_scale // 2)})
            raise SettingsError(
                "x_scale",
                f"got {self.x_scale} with y_scale = {self.y_scale}; allowed: x_scale = 2 y_scale;"
                f" the nearest are {' and '.join(f'{2 * y} x {y}' for y in near)}",
            )
        most = (self.ocs_radix or 0) // 4
        fit = f"or {2 * most} x {most} nodes for this radix"
        fit = fit if most >= 2 else "no size fits this radix"
        check_radix(self.ocs_radix, self.x_scale, "nodes of a row or of a pair of columns", fit)


# Graph


def wrap_shift(settings: RailXTwistedTorusSettings) -> int:
    """Columns of nodes by which a column wrap is shifted: half of x_scale."""
    return settings.y_scale if settings.wrap == "twisted" else 0


def _chip_shift(settings: RailXTwistedTorusSettings) -> int:
    return settings.m * wrap_shift(settings)


def build(settings: RailXTwistedTorusSettings) -> Topology:
    """Build the topology; all rails of a line carry the same ring or rings."""
    grid = settings.grid
    a = settings.y_scale
    up = (np.arange(2 * a) + 1) % (2 * a)
    if settings.wrap == "straight":
        up[[a - 1, 2 * a - 1]] = 0, a
    ring_x = np.tile(np.arange(grid.columns), (grid.rails, 1))
    arcs_y = successor_arcs(np.broadcast_to(up, (a, grid.rails, 2 * a)))
    return build_lines(settings, grid, ring_arcs(ring_x, grid.rows), arcs_y, paired_columns=True)


def bisection_ports(settings: RailXTwistedTorusSettings) -> int:
    """Ports in one direction across the middle of the rows.

    r rails at both boundaries of a rows and, twisted, at the wrap of 2a columns.
    """
    return 2 * settings.rails * (settings.y_scale + wrap_shift(settings))


def node_hop_counts(settings: RailXTwistedTorusSettings) -> IntArray:
    """Ordered pairs of chips that are h inter-node hops apart (index h).

    By symmetry the paths from node 0 suffice. A node at (dx, dy) has the images (dx + k
    shift, dy - k rows). The shortest path leads to the best of them for k = -1, 0 and
    1, by the shorter way round its row.
    """
    columns, rows = settings.x_scale, settings.y_scale
    dx, dy = np.meshgrid(np.arange(columns), np.arange(rows))
    k = np.array([-1, 0, 1])[:, None, None]
    x = (dx + k * wrap_shift(settings)) % columns
    hops = (np.minimum(x, columns - x) + abs(dy - k * rows)).min(axis=0)
    return np.bincount(hops.ravel()) * columns * rows * settings.m**4


def check_circuits(settings: RailXTwistedTorusSettings, circuits: Circuits) -> None:
    """Check the circuits of the rings; ValueError names the first fault.

    Every port belongs to its node. The neighbours of each row, and up each column with
    the shifted wrap, are joined r times.
    """
    check_ports(circuits, settings.grid, paired=True)
    columns, rows = settings.x_scale, settings.y_scale
    x, y = circuits.node_a % columns, circuits.node_a // columns
    over = y == rows - 1
    along_x = y * columns + (x + 1) % columns
    along_y = (y + 1) % rows * columns + (x + np.where(over, wrap_shift(settings), 0)) % columns
    wrong = np.flatnonzero(circuits.node_b != np.where(circuits.dimension == 0, along_x, along_y))
    if len(wrong):
        k = int(wrong[0])
        raise ValueError(
            f"circuits: nodes {circuits.node_a[k]} and {circuits.node_b[k]} are joined, which are"
            " no neighbours"
        )
    expected = 2 * settings.rails * columns * rows
    if len(circuits) != expected:
        raise ValueError(
            f"circuits: {len(circuits)} circuits; allowed: {expected}, each rail of each node in"
            " both dimensions"
        )


def uniform_loads(
    settings: RailXTwistedTorusSettings, topology: Topology, routing: LineRouting
) -> FloatArray:
    """Shortest paths x first, equally short ones in equal shares.

    A shift of all chips is a symmetry, so one source represents all. All routings load
    the links alike. A path to (x, y) crosses the wrap of the columns -1, 0 or 1 times,
    each time half a row further, and goes one way round in x.
    """
    rows, columns = settings.m * settings.y_scale, settings.m * settings.x_scale
    y, x = np.indices((rows, columns))
    crossings = np.array([-1, 0, 1])[:, None, None]
    ahead = (x + crossings * _chip_shift(settings)) % columns
    # Up, down; both the same at 0.
    x_steps = np.stack([ahead, np.where(ahead > 0, columns - ahead, 4 * columns)])
    y_steps = np.broadcast_to(np.abs(y + crossings * rows), x_steps.shape)
    length = x_steps + y_steps
    share = (length == length.min(axis=(0, 1))).astype(np.float64)
    share /= share.sum(axis=(0, 1))
    # Steps of a chip's traffic over the two directions and n lanes of its links.
    per_lane = [
        float((share * steps).sum()) / (topology.chips - 1) / (2 * settings.n)
        for steps in (x_steps, y_steps)
    ]
    return along_lane_loads(topology, *per_lane)


# Routing


#: States: 0 at the source; along x for a path without a column wrap, or with one (up,
#: up after the wrap of the row, down, down after it); along y without a wrap, after the
#: wrap, and about to go along y without a wrap; up to the wrap, down to the wrap. Those
#: along y have numbers of states along x, which no packet is in that has come to its
#: column.
_X = {False: 1, True: 5}
_Y, _Y_AFTER, _Y_START, _Y_UP, _Y_DOWN = 1, 2, 3, 5, 6
_STATES = 9


def route(
    settings: RailXTwistedTorusSettings,
    topology: Topology,
    routing: str,
    destinations: Destinations = None,
) -> RoutingTable:
    """The shortest of all paths x first, in equal shares on a tie.

    Both routings load the links alike. A packet is on virtual channel 1 until it takes
    a wrap link and on 0 after it, in x and again in y. Two columns joined by their
    wraps form a ring with two wraps. No packet crosses both, so the channels of that
    ring close no cycle either. Under ``balanced`` a packet without a wrap in a
    dimension draws one of the two channels where it enters that dimension.
    """
    builder = TableBuilder(topology, routing, destinations, states=_STATES, virtual_channels=2)
    router = _Router(builder, settings)
    for crosses in (False, True):
        router.fill_x(crosses)
    router.fill_y()
    router.fill_source()
    return builder.build()


class _Router:
    def __init__(self, builder: TableBuilder, settings: RailXTwistedTorusSettings) -> None:
        self.builder = builder
        self.grid = chip_grid(settings.m, *settings.shape)
        self.rows, self.columns = self.grid.shape
        self.shift = _chip_shift(settings)
        # 32 bits: arrays of all pairs of chips take half the memory.
        self.y, self.x = np.empty((2, self.grid.size), dtype=np.int32)
        at = np.divmod(np.arange(self.grid.size), self.columns)
        self.y[self.grid.ravel()], self.x[self.grid.ravel()] = at
        self.to_x, self.to_y = self.x[builder.destinations], self.y[builder.destinations]
        self.chip = np.arange(self.grid.size)

    def fill_x(self, crosses: bool) -> None:
        """Along x to the column of the destination, or of a wrap that leads there.

        A chip does the same for all destinations of a column, but for those below it
        and the others where the path takes a wrap.
        """
        along_y = np.array([_Y_DOWN, _Y_UP] if crosses else [_Y_START])
        below = self.to_y < np.arange(self.rows)[:, None] * crosses
        group = self.to_x * len(along_y) + below
        asked = np.zeros((self.rows, self.columns * len(along_y)), dtype=np.bool_)
        asked[np.arange(self.rows)[:, None], group] = True
        x, y = self.x[:, None], self.y
        target = (np.arange(self.columns) + self.shift * crosses) % self.columns
        target = target.repeat(len(along_y))
        for step, first in ((1, _X[crosses]), (-1, _X[crosses] + 2)):
            after = (x + step) % self.columns
            near = self.grid[y[:, None], after]
            wraps = after != x + step
            pools = [self.builder.pools_between(self.chip[:, None], near, vc) for vc in (1, 0)]
            here = asked[y] & (x != target)
            for state, late in ((first, wraps), (first + 1, np.ones_like(wraps))):
                then = np.where(after == target, np.tile(along_y, self.columns), first + late)
                sets = self.builder.single(np.where(here, np.where(late, *pools[::-1]), -1), then)
                for row in range(self.rows):
                    chips = self.grid[row]
                    self.builder.entry[state][chips] = sets[chips][:, group[row]]

    def fill_y(self) -> None:
        entry, single = self.builder.entry, self.builder.single
        up, down = (self._pools_y(step) for step in (1, -1))
        chip, to = np.nonzero(self.x[:, None] == self.to_x)
        step = self.to_y[to] - self.y[chip]
        for state, vc in ((_Y, 1), (_Y_AFTER, 0)):
            pool = np.where(step > 0, up[vc][chip], np.where(step < 0, down[vc][chip], -1))
            entry[state][chip, to] = single(pool, state)
        right = chip, to
        chip, to = np.nonzero((self.x[:, None] + self.shift) % self.columns == self.to_x)
        for state, pools, last in ((_Y_UP, up, self.rows - 1), (_Y_DOWN, down, 0)):
            wraps = self.y[chip] == last
            pool = np.where(wraps, pools[0][chip], pools[1][chip])
            entry[state][chip, to] = single(pool, np.where(wraps, _Y_AFTER, state))
        start, after_wrap = entry[_Y][right], entry[_Y_AFTER][right]
        if self.builder.routing == "balanced":
            start = self._drawn(start, after_wrap, start >= 0)
        entry[_Y_START][right] = start

    def _drawn(
        self, before_wrap: Int32Array, after_wrap: Int32Array, stays: BoolArray
    ) -> Int32Array:
        """The sets where packets enter a dimension; off its wraps they may draw."""
        sets = before_wrap.copy()
        sets[stays] = self.builder.merge(before_wrap[stays], after_wrap[stays])
        return sets

    def _pools_y(self, step: int) -> list[IntArray]:
        """The pools of each chip a step along y (int[chips]), by channel."""
        after = self.y + step
        wraps = (after < 0) | (after >= self.rows)
        near = self.grid[
            after % self.rows, np.where(wraps, self.x + self.shift, self.x) % self.columns
        ]
        return [self.builder.pools_between(self.chip, near, vc) for vc in (0, 1)]

    def _stays(self, crosses: bool, first: int) -> BoolArray:
        """Where the path along x in direction ``first`` takes no row wrap."""
        ahead = (self.to_x + self.shift * crosses) % self.columns - self.x[:, None]
        stays: BoolArray = ahead > 0 if first == _X[crosses] else ahead < 0
        return stays

    def fill_source(self) -> None:
        """The shortest paths in equal shares, by column wraps crossed and direction
        round the row.

        Which are the shortest depends on the offset of the destination alone.
        """
        entry = self.builder.entry
        rows, columns = np.indices((2 * self.rows - 1, self.columns))
        rows -= self.rows - 1
        plans: list[tuple[IntArray, IntArray, Int32Array, Int32Array]] = []
        for crossings, along_y in ((0, _Y_START), (1, _Y_UP), (-1, _Y_DOWN)):
            crosses = crossings != 0
            up_x = (columns + self.shift * crosses) % self.columns
            y_steps = np.abs(rows + crossings * self.rows)
            # A path with x ahead needs the direction in y that fill_x took for it.
            fits = (crossings == 0) | (up_x == 0) | ((rows < 0) == (crossings == 1))
            down_x = (self.columns - up_x) % self.columns
            for x_steps, first in ((up_x, _X[crosses]), (down_x, _X[crosses] + 2)):
                # No path round at all: one path, not two.
                again = (up_x == 0) & (first != _X[crosses])
                along_x = entry[first]
                if self.builder.routing == "balanced":
                    stays = self._stays(crosses, first)
                    along_x = self._drawn(along_x, entry[first + 1], stays)
                length = np.where(fits & ~again, x_steps + y_steps, 4 * self.columns)
                plans.append((length, up_x, along_x, entry[along_y]))
        shortest = np.min([length for length, *_ in plans], axis=0)
        elsewhere = (rows != 0) | (columns != 0)
        # Bit i: plan i is one of the shortest.
        chosen = np.zeros(shortest.shape, dtype=np.uint8)
        for plan, (length, *_) in enumerate(plans):
            chosen |= ((length == shortest) & elsewhere).astype(np.uint8) << plan
        offset = (self.to_y - self.y[:, None] + self.rows - 1) * self.columns
        offset += (self.to_x - self.x[:, None]) % self.columns
        of_pairs = chosen.ravel()[offset.ravel()]
        merged = entry[0].reshape(-1)
        for plan, (_, up_x, along_x, straight) in enumerate(plans):
            for bits in np.unique(chosen[chosen >> plan & 1 == 1]).tolist():
                at = np.flatnonzero(of_pairs == bits)
                ahead = up_x.ravel()[offset.ravel()[at]] > 0
                sets = np.where(ahead, along_x.ravel()[at], straight.ravel()[at])
                before = (bits & ((1 << plan) - 1)).bit_count()
                if before:
                    sets = self.builder.merge(merged[at], sets, before / (before + 1))
                merged[at] = sets


# Bill of materials


def ports(settings: RailXTwistedTorusSettings) -> Ports:
    """Components of the grid, and its bandwidths in ports per chip.

    The twist makes every wrap link of the short dimension cross the cut.
    """
    grid = settings.grid
    if settings.wrap == "straight":
        return ring_ports(settings)
    return grid_ports(
        grid,
        all_to_all=min(
            4 * grid.n / grid_hop_count(grid, _chip_shift(settings)),
            16 * grid.n * (1 - 1 / grid.chips) / (grid.m * grid.columns),
        ),
        bisection=ring_bisection_ports(grid, 4),
    )


def resize(settings: RailXTwistedTorusSettings, chips: int) -> RailXTwistedTorusSettings:
    """The torus of :func:`railx.families.node_grids.best_grid`."""
    return best_grid(
        settings,
        chips,
        [(2 * y * y, y) for y in range(2, longest_line(settings) // 2 + 1)],
        lambda y: replace(settings, x_scale=2 * y, y_scale=y),
        ports,
    )


FAMILY = node_grid_family(
    "railx_twisted_torus",
    RailXTwistedTorusSettings,
    build=build,
    # Columns 0..a-1 and a..2a-1.
    halves=lambda settings: grid_halves(settings.grid, 0),
    bisection_ports=bisection_ports,
    route=route,
    same_loads=("balanced",),
    node_hop_counts=node_hop_counts,
    # A shift of all nodes is a symmetry.
    symmetric_sources=lambda settings: np.array([0]),
    check_circuits=check_circuits,
    loads=uniform_loads,
    bill=Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip),
)
