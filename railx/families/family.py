"""What a network family can do, as one record that the other rooms ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.counts import Bill
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import FamilySettings, Topology

__all__ = ["Family"]

S = TypeVar("S", bound=FamilySettings)

#: Topology, name of the routing, destinations (None: all chips).
Route = Callable[[Topology, str, NDArray[np.int32] | None], RoutingTable]


@dataclass(frozen=True)
class Family(Generic[S]):
    """A network family: what every family knows, then what only some do (None where a
    family does not).

    ``name`` is the value of ``family`` in its settings, ``settings`` their type.
    ``build``: the graph. ``halves``: half (0 or 1) of each vertex in the natural cut,
    and ``bisection_ports`` the closed form of the ports that cross it in one direction.
    ``ports_per_chip``: ports of a chip, all sides or planes together (injection
    bandwidth over the port's rate). ``routings``: the names on offer, ``min`` first,
    and ``route`` the table of any of them. ``switched``: links run through optical
    circuit switches, so that there are cross-connects.

    ``node_hop_counts``: how many ordered pairs of chips are h inter-node hops apart
    (index h), without a search. ``bill``: the components that a network is built of.
    """

    name: str
    settings: type[S]
    build: Callable[[S], Topology]
    halves: Callable[[S], NDArray[np.int8]]
    bisection_ports: Callable[[S], int]
    ports_per_chip: Callable[[S], int]
    routings: tuple[str, ...]
    route: Route
    switched: bool = False
    node_hop_counts: Callable[[S], NDArray[np.int64]] | None = None
    bill: Bill[S] | None = None
