"""Networks of routers with chips below them: what families of router graphs share.

A family is its settings, a function from settings to a :class:`RouterGraph`, and a
function to the settings of another size. Graph, routing, hops and bill follow. Each
chip has one port in every one of ``planes`` identical networks, so that injection
bandwidth can be made equal to that of other families. None of them has a natural cut
with a closed form, so no bisection is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

import numpy as np

from railx.families.family import Family, FamilyBase, any_chips, size_check
from railx.families.imported import route
from railx.settings import AtLeast, NonNegative
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.counts import Bill, Ports, too_large
from railx.vocabulary.finite_fields import field_orders
from railx.vocabulary.routing.hop_paths import HOP_ROUTINGS
from railx.vocabulary.topology import Topology, duplex_links, topology_of


@dataclass(frozen=True)
class RouterSettings(FamilyBase):
    """Chips below routers, in identical planes."""

    planes: Annotated[int, AtLeast(1)] = 8
    """Parallel networks, one port of each chip in every plane. Default: the ports of a
    RailX chip (4 n = 8)."""
    leaf_latency_ns: Annotated[float, NonNegative()] = 50.0
    """Time of flight between a chip and its router, in nanoseconds. Default: an
    assumption, as in ``fat_tree``."""
    latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between routers, in nanoseconds. Default: an assumption, about 20
    m of fibre at 5 ns/m, as external links of RailX."""

    @property
    def routers(self) -> int:
        """Routers of a plane."""
        raise NotImplementedError

    @property
    def links(self) -> int:
        """Links between the routers of a plane, every lane counted."""
        raise NotImplementedError

    @property
    def chips_on_router(self) -> int:
        """Chips on a router, where all have as many."""
        raise NotImplementedError

    @property
    def chips(self) -> int:
        return self.routers * self.chips_on_router


@dataclass(frozen=True, eq=False)
class RouterGraph:
    """A plane: the links between its routers, and the router of each chip.

    ``pairs`` (int[links, 2]) are the routers that a link joins, in any order.
    ``router_of`` is int[chips]. Every link has ``lanes`` lanes of ``rate`` times a
    chip's port.
    """

    pairs: IntArray
    router_of: IntArray
    lanes: int = 1
    rate: float = 1.0


RouterT = TypeVar("RouterT", bound=RouterSettings)

#: Most routers of a plane whose loads a bill counts; more take seconds.
_MOST_COUNTED_ROUTERS = 1_500


def router_family(
    name: str,
    settings: type[RouterT],
    graph: Callable[[RouterT], RouterGraph],
    resize: Callable[[RouterT, int], RouterT],
) -> Family[RouterT]:
    """The family of a router graph.

    ``graph`` gives a plane, which depends neither on how many there are nor on the
    rates of ports; ``resize`` the smallest network of the same kind with at least so
    many chips.
    """
    drawn = lru_cache(maxsize=8)(graph)
    check: Callable[[RouterT], None] = size_check(
        "planes", lambda of: 2 * of.planes * (of.links + of.chips)
    )

    def plane(of: RouterT) -> RouterGraph:
        check(of)
        return drawn(replace(of, planes=1, port_gbps=1.0))

    @lru_cache(maxsize=32)
    def ports(of: RouterT) -> Ports:
        return _ports(of, plane(of))

    def groups(of: RouterT, routing: str) -> int:
        below = np.bincount(plane(of).router_of)
        return int((below > 0).sum() + below.max())

    return Family(
        name=name,
        settings=settings,
        build=lambda of: _build(of, plane(of)),
        check=check,
        ports_per_chip=lambda of: of.planes,
        routings=HOP_ROUTINGS,
        route=route,
        grouped_routings=HOP_ROUTINGS,
        groups=groups,
        plane=lambda of: (_build(replace(of, planes=1), plane(of)), of.planes),
        hop_loads={"min": "min", "valiant": "valiant"},
        node_hop_counts=lambda of: _hop_counts(plane(of)),
        job_places=any_chips(lambda of: of.chips),
        bill=Bill(ports=ports, resize=resize, count_chips=lambda of: len(plane(of).router_of)),
    )


def next_field(most: int, smallest: int = 2) -> Callable[[RouterT, int], RouterT]:
    """A resize to the next order ``q`` of a field, from ``smallest`` to ``most``.

    Chips on a router stay as published or as set. SettingsError("chips") names the
    largest size.
    """

    def resize(settings: RouterT, chips: int) -> RouterT:
        changes: list[dict[str, Any]] = [{"q": q} for q in field_orders(smallest, most)]
        sizes = [replace(settings, **change) for change in changes]
        fits = [size for size in sizes if size.chips >= chips]
        if not fits:
            largest = max(size.chips for size in sizes)
            raise too_large(chips, largest, f"fields of up to {most} elements")
        return min(fits, key=lambda size: size.chips)

    return resize


def _build(settings: RouterSettings, graph: RouterGraph) -> Topology:
    """Routers follow the chips plane by plane."""
    chip, links = np.arange(settings.chips), []
    rate, flight = settings.port_gbps, settings.latency_ns
    for plane in range(settings.planes):
        first = settings.chips + plane * settings.routers
        leaf, (src, dst) = first + graph.router_of, first + graph.pairs.T
        links += [
            duplex_links(chip, leaf, "leaf", rate, settings.leaf_latency_ns),
            duplex_links(src, dst, "router", rate * graph.rate, flight, lanes=graph.lanes),
        ]
    return topology_of(
        settings, links, chips=settings.chips, switches=settings.planes * settings.routers
    )


def _ports(settings: RouterSettings, graph: RouterGraph) -> Ports:
    """Components of all planes, and bandwidths in ports per chip.

    All-to-all is exact for minimal paths drawn evenly; None above 1,500 routers.
    """
    leaf = settings.chips
    # Ports of another rate count by their bandwidth.
    between = round(len(graph.pairs) * graph.lanes * graph.rate)
    planes = settings.planes
    busiest = _busiest_link(graph) if settings.routers <= _MOST_COUNTED_ROUTERS else None
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * leaf * planes, "router": 2 * between * planes},
        injection=planes,
        all_to_all=None if busiest is None else planes / max(busiest, 1.0),
        bisection=None,
        electrical_switch_ports=planes * (leaf + 2 * between),
    )


def distances(pairs: IntArray, sources: IntArray) -> IntArray:
    """Hops from ``sources`` to all routers (int[sources, routers]) over ``pairs``."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    size = int(max(pairs.max(), sources.max())) + 1
    joined = csr_array((np.ones(len(pairs)), tuple(pairs.T)), shape=(size, size))
    hops = dijkstra(joined, directed=False, unweighted=True, indices=sources)
    return cast("IntArray", np.atleast_2d(hops).astype(np.int64))


def with_leaf_links(counts: IntArray, chips: int) -> IntArray:
    """Ordered pairs of chips by links, from those by hops between their switches."""
    by_links = np.concatenate([[0, 0], counts]).astype(np.int64)
    # A chip to itself takes no link.
    by_links[0], by_links[2] = chips, by_links[2] - chips
    return by_links


def _hop_counts(graph: RouterGraph) -> IntArray:
    """Ordered pairs of chips that are h links apart (index h), leaf links counted."""
    below = np.bincount(graph.router_of)
    used = np.flatnonzero(below)
    hops, weight = distances(graph.pairs, used)[:, used], np.outer(below[used], below[used])
    return with_leaf_links(np.bincount(hops.ravel(), weight.ravel()), len(graph.router_of))


@lru_cache(maxsize=8)
def _busiest_link(graph: RouterGraph) -> float:
    """Largest load of a lane under uniform traffic, per port that a chip offers.

    All minimal paths of a pair of chips are equally likely.
    """
    below = np.bincount(graph.router_of)
    used, chips = np.flatnonzero(below), len(graph.router_of)
    away = distances(graph.pairs, used).T  # [router, target]
    src, dst = np.concatenate([graph.pairs, graph.pairs[:, ::-1]]).T
    closer = away[dst] == away[src] - 1
    paths = (away == 0).astype(np.float64)
    levels = range(1, int(away[used].max()) + 1)
    for hops in levels:
        paths += _sum_by(src, np.where(closer & (away[src] == hops), paths[dst], 0.0), len(away))
    flow, load = np.zeros(away.shape), np.zeros(len(src))
    flow[used] = np.outer(below[used], below[used]) / (chips - 1)
    share = np.where(closer, paths[dst] / np.maximum(paths, 1)[src], 0.0)
    for hops in reversed(levels):
        part = np.where(away[src] == hops, flow[src] * share, 0.0)
        load += part.sum(axis=1)
        flow += _sum_by(dst, part, len(away))
    return float(load.max(initial=0.0)) / graph.lanes / graph.rate


def _sum_by(at: IntArray, rows: Any, size: int) -> FloatArray:
    """Sums of ``rows`` (float[links, targets]) by vertex: float[size, targets]."""
    from scipy.sparse import csr_array

    gather = csr_array((np.ones(len(at)), (at, np.arange(len(at)))), shape=(size, len(at)))
    sums: FloatArray = gather @ rows.astype(np.float64)
    return sums
