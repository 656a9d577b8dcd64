"""Jellyfish: a random regular graph of routers (Singla et al., NSDI'12).

Free ports of routers that are not joined yet are paired at random. Where that gets
stuck, a random link is cut open for two free ports (the published procedure). The graph
depends on the seed alone; a network that is not connected is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.routers import RouterGraph, RouterSettings, router_family
from railx.settings import AtLeast, SettingsError
from railx.vocabulary.union import roots

__all__ = ["FAMILY", "JellyfishSettings"]


@dataclass(frozen=True)
class JellyfishSettings(RouterSettings):
    """Routers that are joined at random."""

    family: Literal["jellyfish"]

    switches: Annotated[int, AtLeast(3)] = 50
    """Routers of a plane. Default: as many as Slim Fly's over GF(5)."""
    degree: Annotated[int, AtLeast(2)] = 7
    """Ports of a router to others."""
    chips_per_router: Annotated[int, AtLeast(1)] = 4
    """Chips on a router."""
    seed: Annotated[int, AtLeast(0)] = 1
    """Seed of the random graph."""

    def __post_init__(self) -> None:
        if self.degree >= self.switches:
            raise SettingsError(
                "degree",
                f"got {self.degree}; allowed: 2 to {self.switches - 1}, a link to each other"
                f" router; the nearest is {self.switches - 1}",
            )
        if self.switches * self.degree % 2:
            raise SettingsError(
                "switches",
                f"got {self.switches} with degree {self.degree}; allowed: an even number of ports"
                f" together; the nearest are {self.switches - 1} and {self.switches + 1}",
            )

    @property
    def routers(self) -> int:
        return self.switches

    @property
    def links(self) -> int:
        return self.switches * self.degree // 2

    @property
    def chips(self) -> int:
        return self.switches * self.chips_per_router


def graph(settings: JellyfishSettings) -> RouterGraph:
    """The random graph of the seed, the same in every plane."""
    random = np.random.default_rng(settings.seed)
    routers, degree = settings.switches, settings.degree
    near: list[set[int]] = [set() for _ in range(routers)]
    free = list(range(routers))
    while free:
        if len(free) > 2 * degree:
            a, b = (int(router) for router in random.choice(free, 2, replace=False))
            if b not in near[a]:
                _join(near, a, b)
                for joined in (a, b):
                    if len(near[joined]) == degree:
                        free.remove(joined)
            continue
        unjoined = [(a, b) for a in free for b in free if a < b and b not in near[a]]
        if unjoined:
            _join(near, *unjoined[random.integers(len(unjoined))])
        else:
            _open_link(near, free, degree, random)
        free = [router for router in range(routers) if len(near[router]) < degree]
    pairs = np.array([(a, b) for a in range(routers) for b in sorted(near[a]) if a < b])
    root = roots(range(routers), pairs.tolist())
    joined = sum(root[router] == root[0] for router in root)
    if joined < routers:
        raise SettingsError(
            "seed",
            f"its graph joins {joined} of {routers} routers; allowed: a seed with one"
            " connected network, or a larger degree",
        )
    return RouterGraph(pairs, np.repeat(np.arange(routers), settings.chips_per_router))


def _join(near: list[set[int]], a: int, b: int) -> None:
    near[a].add(b)
    near[b].add(a)


def _open_link(
    near: list[set[int]], free: list[int], degree: int, random: np.random.Generator
) -> None:
    """Put two free ports into a random link that neither of their routers has.

    All routers with free ports are joined with each other, so two ports are those of
    the first router or of the first two. Where no link will do, any is cut.
    """
    first = free[0]
    second = first if len(near[first]) < degree - 1 else free[1]
    links = [(a, b) for a in range(len(near)) for b in sorted(near[a])]
    fits = [
        (a, b)
        for a, b in links
        if not {a, b} & {first, second} and a not in near[first] and b not in near[second]
    ]
    a, b = (fits or links)[random.integers(len(fits or links))]
    near[a].remove(b)
    near[b].remove(a)
    if fits:
        _join(near, a, first)
        _join(near, b, second)


def resize(settings: JellyfishSettings, chips: int) -> JellyfishSettings:
    """The fewest routers with the same ports."""
    routers = max(settings.degree + 1, -(-chips // settings.chips_per_router))
    return replace(settings, switches=routers + routers * settings.degree % 2)


FAMILY = router_family("jellyfish", JellyfishSettings, graph, resize)
