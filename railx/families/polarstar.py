"""PolarStar: a star product of PolarFly with small graphs, diameter 3 (2302.07217).

Every router of PolarFly's graph over GF(q) becomes a small graph of 2 d + 2 routers and
degree d, with an involution f on its routers. A link of PolarFly joins router i of one
copy to router f(i) of the other, for every i; a point that is orthogonal to itself
joins i to f(i) inside its copy. The degree is q + 1 + d at every router.

The diameter is 3 where any router i of a copy has {i, f(i)}, its neighbours and the
images of f(i)'s neighbours as all routers of the copy (the paper's property R*). The
copies here are built from that property, not read from the paper: routers form d + 1
pairs (i, f(i)); of two pairs one has a router that joins both of the other. This is a
tournament of pairs in which all win an even number, half of it for either router, so d
is 0 or 3 mod 4. Sizes are those of the paper's Inductive-Quad graphs; its Paley graphs
are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.families.polarfly import orthogonal
from railx.families.routers import RouterGraph, RouterSettings, next_field, router_family
from railx.settings import AtLeast, NonNegative, SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.finite_fields import check_order

__all__ = ["FAMILY", "PolarStarSettings", "copy_pairs"]

_MOST_Q = 32


@dataclass(frozen=True)
class PolarStarSettings(RouterSettings):
    """Copies of a small graph on the points of a projective plane."""

    family: Literal["polarstar"]

    q: Annotated[int, AtLeast(2)] = 5
    """Order of the field, a power of a prime."""
    copy_degree: Annotated[int, NonNegative()] = 3
    """Degree of the small graph, 0 or 3 mod 4."""
    chips_per_router: Annotated[int, AtLeast(1)] | None = None
    """Chips on a router; null: a third of the network degree, as published."""

    def __post_init__(self) -> None:
        check_order("q", self.q, _MOST_Q)
        if self.copy_degree % 4 in (1, 2):
            below = self.copy_degree // 4 * 4
            raise SettingsError(
                "copy_degree",
                f"got {self.copy_degree}; allowed: 0 or 3 mod 4; the nearest are {below} and"
                f" {below + 3}",
            )

    @property
    def degree(self) -> int:
        """Ports of a router to others."""
        return self.q + 1 + self.copy_degree

    @property
    def copy_routers(self) -> int:
        """Routers of a copy."""
        return 2 * self.copy_degree + 2

    @property
    def chips_on_router(self) -> int:
        third = max(1, self.degree // 3)
        return third if self.chips_per_router is None else self.chips_per_router

    @property
    def routers(self) -> int:
        return (self.q**2 + self.q + 1) * self.copy_routers

    @property
    def links(self) -> int:
        return self.routers * self.degree // 2


def copy_pairs(degree: int) -> IntArray:
    """The links of a copy, int[links, 2]; f swaps routers 2 i and 2 i + 1."""
    pairs = degree + 1
    # An odd number of pairs wins in a circle; one more pair loses against all.
    ring = pairs - (pairs + 1) % 2
    wins = [[(pair + step) % ring for step in range(1, (ring + 1) // 2)] for pair in range(ring)]
    if ring < pairs:
        wins = [[*beaten, ring] for beaten in wins]
    links = [
        (2 * pair + half, 2 * loser + end)
        for pair, beaten in enumerate(wins)
        for half, losers in enumerate((beaten[::2], beaten[1::2]))
        for loser in losers
        for end in range(2)
    ]
    return np.array(links, dtype=np.int64).reshape(-1, 2)


def graph(settings: PolarStarSettings) -> RouterGraph:
    """Copy after copy in the order of PolarFly's points."""
    size, i = settings.copy_routers, np.arange(settings.copy_routers)
    near = orthogonal(settings.q)
    between = np.argwhere(np.triu(near, 1))
    loops, even = np.flatnonzero(near.diagonal()), i[::2]
    inside = copy_pairs(settings.copy_degree)
    first = np.arange(len(near))[:, None, None] * size
    parts = [
        np.stack([between[:, :1] * size + i, between[:, 1:] * size + (i ^ 1)], axis=-1),
        np.stack([loops[:, None] * size + even, loops[:, None] * size + even + 1], axis=-1),
        first + inside,
    ]
    pairs = np.concatenate([part.reshape(-1, 2) for part in parts])
    return RouterGraph(pairs, np.repeat(np.arange(settings.routers), settings.chips_on_router))


FAMILY = router_family("polarstar", PolarStarSettings, graph, next_field(_MOST_Q))
