"""Sizes of topologies from their settings, and graphs of small ones."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from functools import lru_cache
from typing import Any, cast

from railx.effort import Cost, LimitSettings, check_cost
from railx.errors import UserError
from railx.families import build_topology, family_of
from railx.settings import to_dict
from railx.vocabulary.topology import FamilySettings, Topology

#: Chips and switches up to which a check builds the graph; beyond, it takes seconds.
_MOST_VERTICES = 10_000
#: Cost of each chip, port or lane that a field of a family counts.
_COUNTED = Cost(bytes=1e3)


def vertex_count(settings: FamilySettings) -> int:
    """Chips and switches of a topology."""
    return _vertex_count(cast("Hashable", settings))


@lru_cache(maxsize=256)
def _vertex_count(settings: Any) -> int:
    halves = family_of(settings).halves
    return build_topology(settings).vertices if halves is None else len(halves(settings))


def small_graph(settings: FamilySettings) -> Topology | None:
    """The graph of a topology, None where it takes seconds to build."""
    return build_topology(settings) if vertex_count(settings) <= _MOST_VERTICES else None


def check_size(settings: FamilySettings, limits: LimitSettings, key: str) -> None:
    """Refuse counts of a family that exceed memory, below ``key``."""
    for field in fields(cast("Any", settings)):
        value = getattr(settings, field.name)
        for count in value if isinstance(value, tuple) else (value,):
            if isinstance(count, int):
                check_cost(f"{key}.{field.name}", count, _COUNTED * count, limits)


def check_same_nodes(before: FamilySettings, after: FamilySettings) -> None:
    """Refuse settings of other hardware, as far as settings show it without a graph."""
    for key in ("m", "n"):
        first, second = (to_dict(settings).get(key) for settings in (before, after))
        if first != second:
            raise UserError(
                f"{key}: {first} before and {second} after; allowed: two settings of the same"
                " hardware"
            )
    sizes = vertex_count(before), vertex_count(after)
    if sizes[0] != sizes[1]:
        raise UserError(
            f"{sizes[0]:,} chips and switches before and {sizes[1]:,} after; allowed: two settings"
            " of the same hardware"
        )
