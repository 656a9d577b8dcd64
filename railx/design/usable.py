"""The largest job that failed servers leave, as a share of a network's chips."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from railx.families import JobGrid, family_named
from railx.tenancy.largest import largest_product
from railx.vocabulary.arrays import BoolArray
from railx.vocabulary.topology import FamilySettings

__all__ = ["Usable", "largest_box", "usable_share"]


class Usable(NamedTuple):
    """Mean share of the chips in the largest job, and how it was got: the shape of jobs
    (drawn failures), or ``closed form`` where a job takes any nodes.
    """

    share: float
    basis: str


def usable_share(
    settings: FamilySettings,
    chips: int,
    chips_per_node: int,
    server_chips: int,
    faults: float,
    samples: int,
    seed: int,
) -> Usable:
    """The share of chips in the largest job with a share ``faults`` of servers failed.

    A server has ``server_chips``; a node with a failed server fails, and so does a unit
    of the family's grid. Servers fail independently.
    """
    grid = _nodes(settings, chips, chips_per_node)
    unit = chips_per_node if grid is None else grid.chips
    if grid is None or grid.shape == "any":
        return Usable((1 - faults) ** max(1, -(-unit // server_chips)), "closed form")
    servers, units = -(-chips // server_chips), math.prod(grid.sides)
    rng, shares = np.random.default_rng(seed), []
    for _ in range(samples):
        failed = np.flatnonzero(rng.random(servers) < faults)
        healthy = np.ones(units, dtype=np.bool_)
        for chip in range(server_chips):
            healthy[np.minimum((failed * server_chips + chip) // unit, units - 1)] = False
        # The first dimension runs fastest.
        at = healthy.reshape(grid.sides[::-1])
        largest = largest_product(at).nodes if grid.shape == "lines" else largest_box(at)
        shares.append(largest / units)
    return Usable(float(np.mean(shares)), grid.shape)


def _nodes(settings: FamilySettings, chips: int, chips_per_node: int) -> JobGrid | None:
    """The grid of jobs, with nodes that ``node`` adds to single chips as its units."""
    family = family_named(settings.family)
    if family.job_grid is None:
        return None
    grid: JobGrid = family.job_grid(settings)
    if math.prod(grid.sides) * grid.chips != chips:
        return None
    if settings.node is None or family.has_nodes or family.node_order is None:
        return grid
    block = family.node_order(settings, chips_per_node).shape
    sides = tuple(side // length for side, length in zip(grid.sides, block, strict=True))
    return JobGrid(sides, grid.chips * math.prod(block), grid.shape)


def largest_box(healthy: BoolArray) -> int:
    """Units of the largest box without a failed one; sides wrap round."""
    sides = healthy.shape
    # Sums up to each corner over two periods, so that boxes may wrap round.
    count = np.pad((~healthy).astype(np.int64), [(0, side) for side in sides], mode="wrap")
    for axis in range(count.ndim):
        count = count.cumsum(axis=axis)
    count = np.pad(count, [(1, 0)] * count.ndim)
    boxes = [tuple(length + 1 for length in box) for box in np.ndindex(*sides)]
    for box in sorted(boxes, key=lambda box: -math.prod(box)):
        failures = np.zeros(sides, dtype=np.int64)
        for corner in np.ndindex(*(2,) * len(sides)):
            at = tuple(
                slice(length, length + side) if up else slice(0, side)
                for up, length, side in zip(corner, box, sides, strict=True)
            )
            failures += (-1) ** (len(sides) - sum(corner)) * count[at]
        if failures.min() == 0:
            return math.prod(box)
    return 0
