"""PolarFly: q^2 + q + 1 routers of diameter 2 (Lakhotia et al., SC'22, 2208.01695).

Routers are the points of the projective plane over GF(q); two are joined where their
scalar product is 0 (the polarity graph of Erdos and Renyi). The degree is q + 1, or q
at the q + 1 points that are orthogonal to themselves. Two routers have one path of at
most two hops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.families.routers import RouterGraph, RouterSettings, next_field, router_family
from railx.settings import AtLeast
from railx.vocabulary.arrays import BoolArray
from railx.vocabulary.finite_fields import check_order, field

__all__ = ["FAMILY", "PolarFlySettings", "orthogonal"]

_MOST_Q = 64


@dataclass(frozen=True)
class PolarFlySettings(RouterSettings):
    """Routers on the points of a projective plane."""

    family: Literal["polarfly"]

    q: Annotated[int, AtLeast(2)] = 7
    """Order of the field, a power of a prime."""
    chips_per_router: Annotated[int, AtLeast(1)] | None = None
    """Chips on a router; null: half of the network degree q + 1, as published."""

    def __post_init__(self) -> None:
        check_order("q", self.q, _MOST_Q)

    @property
    def chips_on_router(self) -> int:
        return (self.q + 1) // 2 if self.chips_per_router is None else self.chips_per_router

    @property
    def routers(self) -> int:
        return self.q**2 + self.q + 1

    @property
    def links(self) -> int:
        return self.q * (self.q + 1) ** 2 // 2


def orthogonal(q: int) -> BoolArray:
    """Which points of the plane are orthogonal: bool[points, points]."""
    over = field(q)
    x, y = np.divmod(np.arange(q * q), q)
    points = np.concatenate(
        [
            np.stack([np.ones_like(x), x, y], axis=1),
            np.stack([np.zeros(q, int), np.ones(q, int), np.arange(q)], axis=1),
            [[0, 0, 1]],
        ]
    )
    products = over.multiply[points[:, None], points]
    result: BoolArray = (
        over.add[over.add[products[..., 0], products[..., 1]], products[..., 2]] == 0
    )
    return result


def graph(settings: PolarFlySettings) -> RouterGraph:
    """Points in the order of their vectors; chips follow their routers."""
    pairs = np.argwhere(np.triu(orthogonal(settings.q), 1))
    return RouterGraph(pairs, np.repeat(np.arange(settings.routers), settings.chips_on_router))


FAMILY = router_family("polarfly", PolarFlySettings, graph, next_field(_MOST_Q))
