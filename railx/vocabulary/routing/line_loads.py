"""Exact loads of routings that correct coordinate after coordinate, without a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.topology import Topology

#: ``ordered``: along the dimensions in order; ``any_order``: in random order;
#: ``valiant``: in order, along each by way of a router of the line drawn evenly.
LineOrder: TypeAlias = Literal["ordered", "any_order", "valiant"]


class _Dimension(NamedTuple):
    """A dimension of the grid of routers.

    ``row`` (int[routers, length]): the link row from each router to each position of
    its line; that to itself is unused.
    """

    stride: int
    length: int
    row: IntArray

    def position(self, router: IntArray) -> IntArray:
        return router // self.stride % self.length


class LineLoads:
    """Exact loads on chips on a grid whose lines are all-to-alls.

    ``shape``: chips along each dimension, the first running fastest. All links have one
    time of flight.
    """

    def __init__(self, topology: Topology, shape: tuple[int, ...], order: LineOrder) -> None:
        self._topology, self._order = topology, order
        self._dimensions: list[_Dimension] = []
        src, dst, stride = topology.links.src, topology.links.dst, 1
        for length in shape:
            row = np.full((math.prod(shape), length), -1, dtype=np.int64)
            position = dst // stride % length
            along = np.flatnonzero(position != src // stride % length)
            row[src[along], position[along]] = along
            self._dimensions.append(_Dimension(stride, length, row))
            stride *= length

    def __call__(
        self, src: IntArray, dst: IntArray, amount: FloatArray
    ) -> tuple[FloatArray, float]:
        """As :func:`railx.vocabulary.routing.analysis.pair_loads`."""
        links = self._topology.links
        load = np.zeros(len(links))
        for row, part in self._parts(src, dst, amount):
            load += np.bincount(row, part, len(load))
        hops = sum(
            (dimension.position(src) != dimension.position(dst))
            * (2 if self._order == "valiant" and dimension.length > 2 else 1)
            for dimension in self._dimensions
        )
        flight_ns = float(np.max(hops, initial=0)) * float(links.latency_ns.max())
        return np.repeat(load / links.lanes, links.lanes), flight_ns

    def _parts(
        self, at: IntArray, to: IntArray, amount: FloatArray
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Links and the traffic on them, part by part."""
        if self._order == "any_order":
            yield from self._any_order(at, to, amount)
            return
        for dimension in self._dimensions:
            here, goal = dimension.position(at), dimension.position(to)
            if self._order == "valiant":
                yield self._by_way_of_all(dimension, at, goal, amount)
            else:
                moves = here != goal
                yield dimension.row[at[moves], goal[moves]], amount[moves]
            at = at + (goal - here) * dimension.stride

    def _any_order(
        self, at: IntArray, to: IntArray, amount: FloatArray
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """All orders of the dimensions are equally likely.

        A packet comes by the router that has the destination's coordinates in some
        dimensions with the share of the orders that begin with these.
        """
        count = len(self._dimensions)
        steps = [
            (dimension.position(to) - dimension.position(at)) * dimension.stride
            for dimension in self._dimensions
        ]
        for done in range(2**count - 1):
            inside = [number for number in range(count) if done >> number & 1]
            router = sum((steps[number] for number in inside), at)
            size = len(inside)
            share = math.factorial(size) * math.factorial(count - 1 - size) / math.factorial(count)
            for number, dimension in enumerate(self._dimensions):
                if number not in inside:
                    moves = steps[number] != 0
                    goal = dimension.position(to)[moves]
                    yield dimension.row[router[moves], goal], share * amount[moves]

    @staticmethod
    def _by_way_of_all(
        dimension: _Dimension, at: IntArray, goal: IntArray, amount: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """From a to c of a line of n goes 1/n of what a sends to the line (c is drawn,
        or a is drawn and c the goal), and of what others send to c (a is drawn).
        """
        length, routers = dimension.length, np.arange(len(dimension.row))
        sent = np.bincount(at * length + goal, amount, dimension.row.size)
        sent = sent.reshape(-1, length).astype(np.float64)
        here = dimension.position(routers)
        sent[routers, here] = 0.0
        line = routers - here * dimension.stride
        to_line = np.zeros(sent.shape)
        np.add.at(to_line, line, sent)
        part = (sent.sum(axis=1)[:, None] + to_line[line]) / length
        other = here[:, None] != np.arange(length)
        return dimension.row[other], part[other]
