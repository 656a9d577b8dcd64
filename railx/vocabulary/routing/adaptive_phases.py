"""Adaptive minimal routing on all-to-all settings of RailX.

A packet may take any link of any coordinate that still differs. At its source, and
after every rail, it compares the rails that correct a coordinate by the traffic queued
for each in this node and the distance to it. It chooses one and keeps it until it has
taken that rail. The number of coordinates left gives the virtual channel, which a rail
raises by one whatever its dimension, so D + 1 channels serve any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from railx.vocabulary.arrays import BoolArray, IntArray
from railx.vocabulary.grid import rail_ports
from railx.vocabulary.routing.line_phases import Phase, even_shares, mesh_distance
from railx.vocabulary.routing.node_walks import Exits, adaptive_sets, exits, fill_final, walk_pools
from railx.vocabulary.routing.table import TableBuilder


def adaptive_states(phases: Sequence[Phase]) -> int:
    """States of a packet: 0 undecided, then one per link of each coordinate."""
    return 1 + sum(int(phase.links) for phase in phases)


def fill_adaptive(builder: TableBuilder, phases: Sequence[Phase]) -> None:
    """Fill the entries of a builder with ``adaptive_states`` states.

    The builder has one virtual channel more than there are phases. Static analyses use
    the weights: equal for the coordinates left, and for their links the even shares of
    uniform sources.
    """
    router = _Adaptive(builder, phases)
    for left in product((False, True), repeat=len(phases)):
        if sum(left) == 1:
            router.fill_last(left.index(True))
        elif any(left):
            router.fill_several([d for d, to_correct in enumerate(left) if to_correct])
    fill_final(builder, walk_pools(builder, phases[0].m, "xy", len(phases)))


class _Adaptive:
    """Inputs of the entries.

    ``paths[d][vc]``: the exits to each link of phase d for a packet on a channel.
    """

    def __init__(self, builder: TableBuilder, phases: Sequence[Phase]) -> None:
        self.builder, self.phases = builder, phases
        self.chips = phases[0].chips
        self.node, self.local = np.divmod(np.arange(builder.topology.chips), self.chips)
        self.to_node = builder.destinations.astype(np.int64) // self.chips
        ports = rail_ports(builder.topology).link
        walks = [
            walk_pools(builder, phases[0].m, "xy", vc, by_rail=True) for vc in range(len(phases))
        ]
        self.paths: list[list[list[Exits]]] = []
        self.heading: list[int] = []
        state = 1
        for phase in phases:
            rows = phase.rail_rows(ports)[self.node]
            self.heading.append(state)
            links = range(phase.links)
            self.paths.append(
                [
                    [exits(builder, walk, rows[..., k], vc, state + k) for k in links]
                    for vc, walk in enumerate(walks, 1)
                ]
            )
            state += phase.links
        self.shares = [
            even_shares(np.ones((1, phase.length, self.chips)), phase.distance)[0]
            for phase in phases
        ]

    def differs(self, to_node: IntArray, left: Sequence[int]) -> BoolArray:
        """Whether nodes differ from a chip's in ``left`` alone: bool[chips, nodes]."""
        here = np.ones((len(self.node), len(to_node)), dtype=np.bool_)
        for d, phase in enumerate(self.phases):
            differs = phase.coordinate(self.node)[:, None] != phase.coordinate(to_node)
            here &= differs == (d in left)
        return here

    def fill_heading(self, left: Sequence[int], here: BoolArray) -> None:
        vc = len(self.phases) - len(left)
        for d in left:
            target = self.phases[d].coordinate(self.to_node)
            for state, path in enumerate(self.paths[d][vc], self.heading[d]):
                sets = path.sets(self.builder)[:, target]
                self.builder.entry[state][here] = sets[here]

    def fill_last(self, d: int) -> None:
        """Fill the sets with one coordinate left; behind the rail is the chip."""
        phase, here = self.phases[d], self.differs(self.to_node, [d])
        self.fill_heading([d], here)
        chip, index = np.nonzero(here)
        a, b = phase.coordinate(self.node[chip]), phase.coordinate(self.to_node[index])
        goal = self.builder.destinations[index] % self.chips
        onward = mesh_distance(phase.m)[phase.enter[a, b], goal[:, None]]
        shares = self.shares[d][a, self.local[chip], b]
        paths = self.paths[d][len(self.phases) - 1]
        self.builder.entry[0][here] = adaptive_sets(
            self.builder, paths, [(chip, b)] * len(paths), shares, onward
        )

    def fill_several(self, left: Sequence[int]) -> None:
        """Fill the sets with several coordinates left.

        The steps after the rail are those to the nearest rail of another coordinate.
        """
        here = self.differs(self.to_node, left)
        self.fill_heading(left, here)
        nodes = np.unique(self.to_node)
        # All chips of a node have the same sets here.
        chip, index = np.nonzero(self.differs(nodes, left))
        paths: list[Exits] = []
        at: list[tuple[IntArray, IntArray]] = []
        shares, onward = [], []
        for d in left:
            phase = self.phases[d]
            a, b = phase.coordinate(self.node[chip]), phase.coordinate(nodes[index])
            others = [self.phases[other] for other in left if other != d]
            for k, path in enumerate(self.paths[d][len(self.phases) - len(left)]):
                paths.append(path)
                at.append((chip, b))
                shares.append(self.shares[d][a, self.local[chip], b, k] / len(left))
                onward.append(
                    _nearest_rail(others, phase.enter[a, b, k], self.node[chip], nodes[index])
                )
        sets = np.full((len(self.node), len(nodes)), -1, dtype=np.int32)
        sets[chip, index] = adaptive_sets(
            self.builder, paths, at, np.stack(shares, axis=-1), np.stack(onward, axis=-1)
        )
        self.builder.entry[0][here] = sets[:, np.searchsorted(nodes, self.to_node)][here]


def _nearest_rail(
    phases: Sequence[Phase], local: IntArray, node: IntArray, to_node: IntArray
) -> IntArray:
    """Steps (int[k]) from a local chip to the nearest rail of the coordinates."""
    distance = [
        phase.distance[phase.coordinate(node), local, phase.coordinate(to_node)].min(axis=-1)
        for phase in phases
    ]
    nearest: IntArray = np.min(distance, axis=0)
    return nearest
