"""CloudMatrix384: chips behind two tiers of scale-up switches, in planes (2506.12708).

From its general definition: in each plane every leaf joins every spine once, and the
links up of a leaf carry what its chips send. Its numbers are second hand: 384 NPUs of
392 GB/s, 7 planes, 336 first-tier and 112 second-tier switches. The shape of a plane,
48 leaves of 8 chips below 16 spines, is derived from these counts, with one leaf for a
node of 8 NPUs as an assumption. The routing is that of any router graph, on two virtual
channels; the tree would need one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.routers import RouterGraph, RouterSettings, router_family
from railx.settings import AtLeast, Positive
from railx.vocabulary.counts import fewest_units

__all__ = ["FAMILY", "CloudMatrixSettings"]


@dataclass(frozen=True)
class CloudMatrixSettings(RouterSettings):
    """Leaves below spines, non-blocking."""

    family: Literal["cloudmatrix"]

    leaves: Annotated[int, AtLeast(2)] = 48
    """First-tier switches of a plane."""
    spines: Annotated[int, AtLeast(1)] = 16
    """Second-tier switches of a plane, each with a port for every leaf."""
    chips_per_leaf: Annotated[int, AtLeast(1)] = 8
    """Chips on a leaf."""
    planes: Annotated[int, AtLeast(1)] = 7
    """Parallel networks, one port of each chip in every plane."""
    port_gbps: Annotated[float, Positive()] = 448.0
    """Rate of a port in one direction, in 10^9 bit/s. Default: 392 GB/s over 7 planes;
    that it is one direction is an assumption (second hand, others write 196 GB/s)."""

    @property
    def routers(self) -> int:
        return self.leaves + self.spines

    @property
    def links(self) -> int:
        return self.leaves * self.spines

    @property
    def chips(self) -> int:
        return self.leaves * self.chips_per_leaf


def graph(settings: CloudMatrixSettings) -> RouterGraph:
    """Leaves, then spines."""
    leaf, spine = np.divmod(np.arange(settings.links), settings.spines)
    return RouterGraph(
        pairs=np.stack([leaf, settings.leaves + spine], axis=1),
        router_of=np.arange(settings.chips) // settings.chips_per_leaf,
        rate=settings.chips_per_leaf / settings.spines,
    )


def resize(settings: CloudMatrixSettings, chips: int) -> CloudMatrixSettings:
    """The fewest leaves with at least ``chips`` chips, at most as many as now."""
    leaf, most = settings.chips_per_leaf, settings.leaves
    return replace(settings, leaves=fewest_units(chips, leaf, most, f"spines join {most} leaves"))


FAMILY = router_family("cloudmatrix", CloudMatrixSettings, graph, resize)
