"""Minimal routing on RailX set to a twisted torus: x first, then y.

A path takes the wrap of the columns or not, whichever is shorter. One that crosses it
arrives half a row further, so that the column to go to in x depends on that decision,
which is made at the source (Camara et al. 2010: the shortest of the images of the
destination).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.railx_torus.routing import chip_grid
from railx.families.railx_twisted_torus.graph import wrap_shift
from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology

__all__ = ["ROUTINGS", "route"]

ROUTINGS = ("min", "balanced")

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: States: 0 at the source; along x with the plan to cross no wrap of a column, or one
#: (up, up after the wrap of the row, down, down after it); along y without a wrap, up
#: to the wrap, down to the wrap, after the wrap, and about to go along y without a
#: wrap.
_X = {False: 1, True: 5}
_Y, _Y_UP, _Y_DOWN, _Y_AFTER, _Y_START = 9, 10, 11, 12, 13
_STATES = 14


def route(
    topology: Topology, routing: str, destinations: NDArray[np.int32] | None = None
) -> RoutingTable:
    """The shortest of all paths x first, in equal shares where several are.

    Both routings load the links alike. A packet is on virtual channel 1 until it takes
    a wrap link and on 0 from there on, in x and again in y. Two columns that their
    wraps join form one ring with two wraps. No packet crosses both, so that the
    channels of that ring cannot close a circle either. Under ``balanced`` a packet that
    takes no wrap in x, or none in y, draws one of the two channels where it enters that
    dimension.
    """
    settings = topology.settings
    assert isinstance(settings, RailXTwistedTorusSettings)
    builder = TableBuilder(
        topology, routing, states=_STATES, virtual_channels=2, destinations=destinations
    )
    _Router(builder, settings).fill()
    return builder.build()


class _Router:
    def __init__(self, builder: TableBuilder, settings: RailXTwistedTorusSettings) -> None:
        self.builder = builder
        self.grid = chip_grid(settings.m, settings.x_scale, settings.y_scale)
        self.rows, self.columns = self.grid.shape
        self.shift = settings.m * wrap_shift(settings)
        y, x = np.empty((2, self.grid.size), dtype=np.int64)
        y[self.grid.ravel()], x[self.grid.ravel()] = np.divmod(
            np.arange(self.grid.size), self.columns
        )
        to = builder.destinations
        self.x, self.y, self.to_x, self.to_y = (
            x[:, None],
            y[:, None],
            x[to][None, :],
            y[to][None, :],
        )
        self.chip = np.arange(self.grid.size)[:, None]

    def fill(self) -> None:
        for crosses in (False, True):
            self.fill_x(crosses)
        self.fill_y()
        self.fill_source()

    def fill_x(self, crosses: bool) -> None:
        """Along x to the column of the destination, or to the one whose wrap leads
        there.
        """
        target = (self.to_x + self.shift * crosses) % self.columns
        along_y = np.where(crosses, np.where(self.to_y < self.y, _Y_UP, _Y_DOWN), _Y_START)
        for step, first in ((1, _X[crosses]), (-1, _X[crosses] + 2)):
            after = (self.x + step) % self.columns
            near = self.grid[self.y, after]
            wraps = after != self.x + step
            high, low = (self.builder.pools_between(self.chip, near, vc) for vc in (1, 0))
            ends = after == target
            here = self.x != target
            for state, before in ((first, True), (first + 1, False)):
                pool = np.where(wraps | (not before), low, high)
                then = np.where(ends, along_y, np.where(wraps | (not before), first + 1, first))
                self.builder.entry[state] = self.builder.single(np.where(here, pool, -1), then)

    def fill_y(self) -> None:
        step = np.sign(self.to_y - self.y)
        right = self.x == self.to_x
        crossing = (self.x + self.shift) % self.columns == self.to_x
        up, down = (self._pools_y(step) for step in (1, -1))
        for state, vc in ((_Y, 1), (_Y_AFTER, 0)):
            pool = np.where(step > 0, up[vc], np.where(step < 0, down[vc], -1))
            self.builder.entry[state] = self.builder.single(np.where(right, pool, -1), state)
        for state, pools, last in ((_Y_UP, up, self.rows - 1), (_Y_DOWN, down, 0)):
            wraps = self.y == last
            pool = np.where(crossing, np.where(wraps, pools[0], pools[1]), -1)
            self.builder.entry[state] = self.builder.single(pool, np.where(wraps, _Y_AFTER, state))
        stays = self.builder.entry[_Y], self.builder.entry[_Y_AFTER]
        self.builder.entry[_Y_START] = self._drawn(*stays, stays[0] >= 0)

    def _drawn(
        self, before_wrap: NDArray[np.int32], after_wrap: NDArray[np.int32], stays: BoolArray
    ) -> NDArray[np.int32]:
        """The sets of packets that enter a dimension.

        Those that stay off its wraps may draw their channel.
        """
        sets = before_wrap.copy()
        if self.builder.routing == "balanced":
            sets[stays] = self.builder.merge(before_wrap[stays], after_wrap[stays])
        return sets

    def _pools_y(self, step: int) -> list[IntArray]:
        """The pools of each chip (int[chips, 1]) one step along y.

        On channels 0 and 1.
        """
        after = self.y + step
        wraps = (after < 0) | (after >= self.rows)
        near = self.grid[
            after % self.rows, np.where(wraps, self.x + self.shift, self.x) % self.columns
        ]
        return [self.builder.pools_between(self.chip, near, vc) for vc in (0, 1)]

    def _stays(self, crosses: bool, first: int) -> BoolArray:
        """Where the path along x takes no wrap of the row.

        It goes in the direction of state ``first``.
        """
        ahead = (self.to_x + self.shift * crosses) % self.columns - self.x
        stays: BoolArray = ahead > 0 if first == _X[crosses] else ahead < 0
        return stays

    def fill_source(self) -> None:
        """The plans of least length in equal shares.

        A plan is the signed crossings of the wrap of a column, and the direction round
        the row.
        """
        plans: list[tuple[IntArray, IntArray]] = []  # length, sets
        entry = self.builder.entry
        for crossings, along_y in ((0, _Y_START), (1, _Y_UP), (-1, _Y_DOWN)):
            crosses = crossings != 0
            up_x = (self.to_x + self.shift * crosses - self.x) % self.columns
            y_steps = np.abs(self.to_y - self.y + crossings * self.rows)
            # A plan with x ahead needs the direction in y that fill_x took for it.
            fits = (crossings == 0) | (up_x == 0) | ((self.to_y < self.y) == (crossings == 1))
            for x_steps, first in (
                (up_x, _X[crosses]),
                ((self.columns - up_x) % self.columns, _X[crosses] + 2),
            ):
                again = (up_x == 0) & (
                    first != _X[crosses]
                )  # no path round at all: one plan, not two
                along_x = self._drawn(entry[first], entry[first + 1], self._stays(crosses, first))
                sets = np.where(up_x == 0, entry[along_y], along_x)
                length = np.where(fits & ~again & (sets >= 0), x_steps + y_steps, 4 * self.columns)
                plans.append((length, sets))
        least = np.min([length for length, _ in plans], axis=0)
        chosen = np.zeros(least.shape, dtype=np.int64)
        merged = np.full(least.shape, -1, dtype=np.int32)
        for length, sets in plans:
            here = (length == least) & (self.chip != self.builder.destinations[None, :])
            chosen += here
            fresh = here & (chosen == 1)
            merged[fresh] = sets[fresh]
            for count in range(2, len(plans) + 1):
                more = here & (chosen == count)
                if more.any():
                    merged[more] = self.builder.merge(merged[more], sets[more], 1 - 1 / count)
        entry[0] = merged
