"""Slim Fly: 2 q^2 routers of diameter 2 (Besta and Hoefler, SC'14).

The graph is that of McKay, Miller and Siran over GF(q), q = 4 w + d with d in {-1, 0,
1}: vertices (0, x, y) and (1, m, c). (0, x, y) joins (0, x, y') where y - y' is in X,
(1, m, c) joins (1, m, c') where c - c' is in X', and (0, x, y) joins (1, m, c) where
y = m x + c. X and X' are powers of a primitive element. The network degree is
(3 q - d) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.families.routers import RouterGraph, RouterSettings, next_field, router_family
from railx.settings import AtLeast
from railx.vocabulary.finite_fields import check_order, field

__all__ = ["FAMILY", "SlimFlySettings"]

_MOST_Q = 128


@dataclass(frozen=True)
class SlimFlySettings(RouterSettings):
    """Two groups of q x q routers over GF(q)."""

    family: Literal["slim_fly"]

    q: Annotated[int, AtLeast(3)] = 5
    """Order of the field, a power of a prime."""
    chips_per_router: Annotated[int, AtLeast(1)] | None = None
    """Chips on a router; null: half of the network degree, rounded up, as published."""

    def __post_init__(self) -> None:
        check_order("q", self.q, _MOST_Q, smallest=3)

    @property
    def degree(self) -> int:
        """Ports of a router to others."""
        # q = 2 mod 4 is no power of a prime but 2.
        return (3 * self.q - {0: 0, 1: 1, 3: -1}[self.q % 4]) // 2

    @property
    def chips_on_router(self) -> int:
        return -(-self.degree // 2) if self.chips_per_router is None else self.chips_per_router

    @property
    def routers(self) -> int:
        return 2 * self.q**2

    @property
    def links(self) -> int:
        return self.routers * self.degree // 2


def graph(settings: SlimFlySettings) -> RouterGraph:
    """Router (s, a, b) is number s q^2 + a q + b; chips follow their routers."""
    q, over = settings.q, field(settings.q)
    parts = []
    for side, steps in enumerate(_steps(q)):
        a, b, step = np.meshgrid(np.arange(q), np.arange(q), over.powers[steps], indexing="ij")
        start, end = a * q + b, a * q + over.add[b, step]
        # X = -X, so every link is seen from both ends.
        once = start < end
        parts.append(side * q * q + np.stack([start[once], end[once]], axis=1))
    x, m, c = np.meshgrid(np.arange(q), np.arange(q), np.arange(q), indexing="ij")
    y = over.add[over.multiply[m, x], c]
    parts.append(np.stack([(x * q + y).ravel(), (q * q + m * q + c).ravel()], axis=1))
    chips = np.repeat(np.arange(settings.routers), settings.chips_on_router)
    return RouterGraph(np.concatenate(parts), chips)


def _steps(q: int) -> tuple[list[int], list[int]]:
    """Exponents of X and X'."""
    if q % 4 != 3:
        first, second = list(range(0, q - q % 2, 2)), list(range(1, q, 2))
    else:
        w = (q + 1) // 4
        first = [*range(0, 2 * w - 1, 2), *range(2 * w - 1, 4 * w - 2, 2)]
        second = [*range(1, 2 * w, 2), *range(2 * w, 4 * w - 1, 2)]
    return first, [step % (q - 1) for step in second]


FAMILY = router_family("slim_fly", SlimFlySettings, graph, next_field(_MOST_Q, smallest=3))
