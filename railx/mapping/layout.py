"""The chips of a job's ranks on each axis, and its groups of communicating ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from railx.families import build_topology, rank_placement
from railx.mapping.settings import LayoutSettings
from railx.settings import SettingsError
from railx.vocabulary.placement import Placement, Sizes
from railx.vocabulary.topology import FamilySettings, Topology

__all__ = ["Placement", "assign_ranks", "group_levels", "group_members", "has_room"]

IntArray = NDArray[np.int64]


def assign_ranks(topology: Topology, sizes: Sizes) -> Placement:
    """Assign a job (chips of a node x nodes of a row x nodes of a column) to chips.

    By the family's placement, or else in runs of chips. SettingsError("layout") where
    the topology is too small.
    """
    return rank_placement(topology, sizes)


def has_room(settings: FamilySettings, sizes: Sizes) -> bool:
    """Whether a topology, which is built for it, has room for a job."""
    try:
        assign_ranks(build_topology(settings), sizes)
    except SettingsError as error:
        if error.key != "layout":
            raise
        return False
    return True


def group_members(layout: LayoutSettings, chips: IntArray, parallelisms: Sequence[str]) -> IntArray:
    """The groups that span ``parallelisms``: int[groups, members].

    Members are in rank order from the innermost axis out. Ranks belong to one group
    where they agree in every other parallelism.
    """
    return _groups(
        layout, chips, [i for i, (name, _) in enumerate(_degrees(layout)) if name in parallelisms]
    )


def group_levels(
    layout: LayoutSettings, chips: IntArray, parallelisms: Sequence[str]
) -> list[IntArray]:
    """The same taken apart: the groups along each axis and parallelism.

    Those of more than one member, from the innermost axis out.
    """
    degrees = _degrees(layout)
    return [
        _groups(layout, chips, [i])
        for i, (name, degree) in enumerate(degrees)
        if name in parallelisms and degree > 1
    ]


def _degrees(layout: LayoutSettings) -> list[tuple[str, int]]:
    return [
        (name, degree)
        for axis in (layout.mesh, layout.x, layout.y)
        for name, degree in axis.items()
    ]


def _groups(layout: LayoutSettings, chips: IntArray, inside: Sequence[int]) -> IntArray:
    degrees = [degree for _, degree in _degrees(layout)]
    # Rank box: the first name of an axis varies fastest, the axes follow each other
    # from the mesh outwards.
    box = np.transpose(chips, (2, 1, 0)).reshape(degrees[::-1]).transpose(range(len(degrees))[::-1])
    outside = [i for i in range(len(degrees)) if i not in inside]
    # Innermost axis last in memory order, so that it varies fastest among the members.
    ordered = box.transpose([*outside, *reversed(inside)])
    return np.ascontiguousarray(ordered).reshape(-1, math.prod(degrees[i] for i in inside))
