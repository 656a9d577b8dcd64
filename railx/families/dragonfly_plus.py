"""Dragonfly+: a Dragonfly whose groups are two-tier trees of leaf and spine routers.

From the general definition (Shpiner et al. 2017): all leaves of a group join all of its
spines, chips are on leaves, and the spines' other ports join all groups. The paper was
not read: no size or number here is quoted from it. A minimal path has at most three
hops: leaf, spine, spine of the other group, leaf, where these two spines are joined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.dragonfly import group_links
from railx.families.family import any_chips
from railx.families.routers import RouterGraph, RouterSettings, router_family
from railx.settings import AtLeast, SettingsError
from railx.vocabulary.counts import fewest_units

__all__ = ["FAMILY", "DragonflyPlusSettings"]


@dataclass(frozen=True)
class DragonflyPlusSettings(RouterSettings):
    """Groups of leaves and spines, with links between any two groups."""

    family: Literal["dragonfly_plus"]

    leaves: Annotated[int, AtLeast(1)] = 4
    """Leaves of a group."""
    spines: Annotated[int, AtLeast(1)] = 4
    """Spines of a group."""
    chips_per_leaf: Annotated[int, AtLeast(1)] = 4
    """Chips on a leaf."""
    h: Annotated[int, AtLeast(1)] = 4
    """Ports of a spine to other groups."""
    groups: Annotated[int, AtLeast(2)] = 9
    """Groups, at most spines h + 1. Every pair of groups has floor(spines h / (groups -
    1)) links; other ports stay open."""

    def __post_init__(self) -> None:
        most = self.spines * self.h + 1
        if self.groups > most:
            raise SettingsError(
                "groups",
                f"got {self.groups}; allowed: 2 to spines * h + 1 = {most}, one link for each pair"
                f" of groups; the nearest is {most}",
            )

    @property
    def links_per_pair(self) -> int:
        """Links between any two groups of a plane."""
        return self.spines * self.h // (self.groups - 1)

    @property
    def routers(self) -> int:
        return self.groups * (self.leaves + self.spines)

    @property
    def links(self) -> int:
        between = self.links_per_pair * self.groups * (self.groups - 1) // 2
        return self.groups * self.leaves * self.spines + between

    @property
    def chips(self) -> int:
        return self.groups * self.leaves * self.chips_per_leaf


def graph(settings: DragonflyPlusSettings) -> RouterGraph:
    """Group by group, leaves then spines.

    Groups are joined as in ``dragonfly``, two spines perhaps by several links.
    """
    size = settings.leaves + settings.spines
    leaf, spine = np.arange(settings.leaves), settings.leaves + np.arange(settings.spines)
    first = np.arange(settings.groups)[:, None, None] * size
    inside = np.broadcast_arrays(first + leaf[:, None], first + spine)
    group, port = group_links(settings.groups, settings.links_per_pair)
    between = group * size + spine[port // settings.h]
    chip = np.arange(settings.chips) // settings.chips_per_leaf
    on = chip // settings.leaves * size + chip % settings.leaves
    return RouterGraph(np.concatenate([np.stack(inside, axis=-1).reshape(-1, 2), between]), on)


def resize(settings: DragonflyPlusSettings, chips: int) -> DragonflyPlusSettings:
    """The fewest groups with at least ``chips`` chips."""
    group, most = settings.leaves * settings.chips_per_leaf, settings.spines * settings.h + 1
    what = f"one link between any two groups of {group} chips"
    return replace(settings, groups=fewest_units(chips, group, most, what))


FAMILY = replace(
    router_family("dragonfly_plus", DragonflyPlusSettings, graph, resize),
    job_places=any_chips(
        lambda of: of.chips, domain_chips=lambda of: of.leaves * of.chips_per_leaf
    ),
)
