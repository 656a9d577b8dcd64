"""Groups of communicating ranks of a job as chips of a topology; what they send."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from railx.families import build_topology, rank_placement
from railx.mapping.settings import JobSettings, LayoutSettings
from railx.performance.volumes import Transfer, rank_flops, rank_transfers
from railx.settings import SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.placement import Sizes
from railx.vocabulary.topology import FamilySettings


def compute_flops(job: JobSettings) -> float:
    """Operations of one chip for one micro-batch, all passes."""
    return rank_flops(job.decoder, job.plan)


def step_transfers(job: JobSettings) -> list[Transfer]:
    """Everything that a chip sends in a step."""
    sizes = job.bytes_per_element, job.gradient_bytes_per_element
    return rank_transfers(job.decoder, job.plan, *sizes)


def has_room(settings: FamilySettings, sizes: Sizes) -> bool:
    """Whether a topology, which is built for it, has room for a job."""
    try:
        rank_placement(build_topology(settings), sizes)
    except SettingsError as error:
        if error.key != "layout":
            raise
        return False
    return True


def group_members(layout: LayoutSettings, chips: IntArray, parallelisms: Sequence[str]) -> IntArray:
    """The groups that span ``parallelisms``: int[groups, members].

    Members are in rank order from the innermost axis out. Ranks belong to one group
    where they agree in every other parallelism. ``chips``: int[mesh, x, y].
    """
    names = [name for name, _ in layout.degrees]
    return _groups(layout, chips, [i for i, name in enumerate(names) if name in parallelisms])


def group_levels(
    layout: LayoutSettings, chips: IntArray, parallelisms: Sequence[str]
) -> list[IntArray]:
    """The same taken apart: the groups along each axis and parallelism.

    Those of more than one member, from the innermost axis out.
    """
    return [
        _groups(layout, chips, [i])
        for i, (name, degree) in enumerate(layout.degrees)
        if name in parallelisms and degree > 1
    ]


def _groups(layout: LayoutSettings, chips: IntArray, inside: Sequence[int]) -> IntArray:
    degrees = [degree for _, degree in layout.degrees]
    # Rank box: the first name of an axis varies fastest, the axes follow each other
    # from the mesh outwards.
    box = np.transpose(chips, (2, 1, 0)).reshape(degrees[::-1]).transpose(range(len(degrees))[::-1])
    outside = [i for i in range(len(degrees)) if i not in inside]
    # Innermost axis last in memory order, so that it varies fastest among the members.
    ordered = box.transpose([*outside, *reversed(inside)])
    return np.ascontiguousarray(ordered).reshape(-1, math.prod(degrees[i] for i in inside))
