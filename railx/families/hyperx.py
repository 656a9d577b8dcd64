"""A HyperX: routers on a grid of any dimension, all-to-all along every line.

The routers are the chips (``chips_per_switch`` 0) or switches with chips below them. A
packet takes one hop for each dimension that differs, or two, the first to a random
router of the line. Sources: Ahn 2009; flattened butterfly: Kim 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.families.family import Family, FamilyBase, any_chips, size_check
from railx.families.routers import with_leaf_links
from railx.settings import AtLeast, NonNegative, NotEmpty, SettingsError
from railx.vocabulary.arrays import Int32Array, IntArray
from railx.vocabulary.counts import Bill, Ports, too_large
from railx.vocabulary.grid import longest_halves
from railx.vocabulary.line_rings import LineRings, joined_rings
from railx.vocabulary.routing.line_loads import LineLoads, LineOrder
from railx.vocabulary.routing.spread import fill_leaves
from railx.vocabulary.routing.table import Destinations, RoutingTable, TableBuilder
from railx.vocabulary.topology import Links, Topology, duplex_links, topology_of

__all__ = ["FAMILY", "HyperXSettings"]


@dataclass(frozen=True)
class HyperXSettings(FamilyBase):
    """Routers on a grid; every pair of a line is joined."""

    family: Literal["hyperx"]

    shape: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()] = (5, 5)
    """Routers along each dimension; the first runs fastest."""
    lanes: Annotated[int, AtLeast(1)] = 1
    """Parallel links between any two routers of a line."""
    chips_per_switch: Annotated[int, NonNegative()] = 0
    """Chips on a router that is a switch; 0: the chips themselves are the routers. Up
    to the length of a line the channels carry full uniform load."""
    planes: Annotated[int, AtLeast(1)] = 1
    """Identical networks side by side, one port of each chip in every plane; 1 where
    the chips are the routers."""
    leaf_latency_ns: Annotated[float, NonNegative()] = 50.0
    """Time of flight between a chip and its switch, in nanoseconds; unused where the
    chips are the routers. Default: an assumption, half of the links between switches,
    as in ``fat_tree``."""
    latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between routers, in nanoseconds. Default: an assumption, about 20
    m of fibre at 5 ns/m, as external links of RailX."""
    switch_radix: Annotated[int, AtLeast(2)] | None = None
    """Ports of a switch; null: just enough for its chips and its lines."""

    def __post_init__(self) -> None:
        if self.switchless and self.planes != 1:
            raise SettingsError(
                "planes",
                f"got {self.planes}; allowed: 1 where the chips are the routers (chips_per_switch ="
                " 0), parallel links are `lanes`",
            )
        if self.switch_radix is not None and self.radix > self.switch_radix:
            spare = self.switch_radix - self.line_ports
            raise SettingsError(
                "chips_per_switch",
                f"got {self.chips_per_switch}; allowed: at most {spare}, what the"
                f" {len(self.shape)} dimensions leave of a switch of {self.switch_radix} ports",
            )

    @property
    def switchless(self) -> bool:
        return self.chips_per_switch == 0

    @property
    def line_ports(self) -> int:
        """Ports of a router to the others of its lines."""
        return self.lanes * (sum(self.shape) - len(self.shape))

    @property
    def radix(self) -> int:
        """Ports of a router that are used."""
        return self.line_ports + self.chips_per_switch

    @property
    def routers(self) -> int:
        """Routers of one plane."""
        return math.prod(self.shape)

    @property
    def chips(self) -> int:
        return self.routers * max(1, self.chips_per_switch)


# Graph


def link_rows(settings: HyperXSettings) -> int:
    """Directed links, parallel ones once."""
    per_router = sum(settings.shape) - len(settings.shape) + 2 * settings.chips_per_switch
    return settings.planes * settings.routers * per_router


def build(settings: HyperXSettings) -> Topology:
    """Build the network: chip c hangs on router c // chips_per_switch of every plane.

    Switches follow the chips plane by plane.
    """
    chip, links = np.arange(settings.chips), []
    for plane in range(settings.planes):
        first = 0 if settings.switchless else settings.chips + plane * settings.routers
        links += _all_to_alls(settings, first)
        if not settings.switchless:
            switch = first + chip // settings.chips_per_switch
            rate, latency_ns = settings.port_gbps, settings.leaf_latency_ns
            links.append(duplex_links(chip, switch, "leaf", rate, latency_ns))
    switches = 0 if settings.switchless else settings.planes * settings.routers
    return topology_of(settings, links, chips=settings.chips, switches=switches)


def halves(settings: HyperXSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex when the longest dimension is cut in the middle."""
    router = longest_halves(settings.shape)
    if settings.switchless:
        return router
    return np.concatenate(
        [np.repeat(router, settings.chips_per_switch), np.tile(router, settings.planes)]
    )


def bisection_ports(settings: HyperXSettings) -> int:
    """Ports in one direction across that cut: ``lanes`` for each pair of routers."""
    longest = max(settings.shape)
    pairs = (longest // 2) * (longest - longest // 2)
    return settings.planes * settings.lanes * pairs * settings.routers // longest


def ports_per_chip(settings: HyperXSettings) -> int:
    """Ports of a chip: lanes to routers of its lines, or one per plane of switches."""
    return settings.line_ports if settings.switchless else settings.planes


def node_hop_counts(settings: HyperXSettings) -> IntArray:
    """Ordered pairs of chips that are h links apart (index h).

    A path has a link for each dimension that differs, and two more with switches.
    """
    counts = np.ones(1, dtype=np.int64)
    for length in settings.shape:
        counts = np.convolve(counts, [length, length * (length - 1)])
    if settings.switchless:
        return counts
    return with_leaf_links(counts * settings.chips_per_switch**2, settings.chips)


def _all_to_alls(settings: HyperXSettings, first: int) -> list[Links]:
    """The links of one plane, a table per dimension; ``first``: vertex of router 0."""
    router = first + np.arange(settings.routers).reshape(settings.shape[::-1])
    tables = []
    for dimension, length in enumerate(settings.shape):
        line = np.moveaxis(router, len(settings.shape) - 1 - dimension, -1)
        low, high = np.triu_indices(length, 1)
        ends, flight = (line[..., low], line[..., high]), settings.latency_ns
        lanes, rate = settings.lanes, settings.port_gbps
        tables.append(duplex_links(*ends, "hyperx", rate, flight, lanes=lanes, rail=dimension))
    return tables


def chip_rings(settings: HyperXSettings) -> tuple[LineRings, ...] | None:
    """The rings of every dimension where the chips are the routers, else None."""
    if not settings.switchless:
        return None
    chip = np.arange(settings.chips).reshape(settings.shape[::-1]).transpose()
    return joined_rings(chip, settings.lanes)


# Routing


#: Routings by the order in which they correct coordinates.
_ORDERS: dict[str, LineOrder] = {"min": "ordered", "balanced": "any_order", "valiant": "valiant"}
#: Virtual channels of ``min``. It needs one; three match the other networks of the
#: comparison (RailX simulator).
_MIN_CHANNELS = 3


def route(
    settings: HyperXSettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """Paths over the dimensions; with switches a chip enters by any plane and stays in
    it.

    * ``min``: dimension after dimension, each hop on one of three virtual channels,
      drawn evenly.
    * ``balanced``: the dimensions in random order, each next hop one virtual channel
      up; minimal. Uniform traffic loads links as ``min`` does.
    * ``adaptive``: the same, but each router takes the dimension with the shortest
      queue.
    * ``valiant``: dimension after dimension, in each by way of a router of the line
      drawn evenly (Valiant 1982, line by line). The first hop is on channel 0, the
      second on channel 1. It levels any traffic at up to twice the load of ``min``
      under uniform traffic.

    States: hops taken (``balanced``, ``adaptive``); whether the first of two hops is
    done (``valiant``).
    """
    dimensions = len(settings.shape)
    any_order = routing in ("balanced", "adaptive")
    states, channels = (2, 2) if routing == "valiant" else (1, _MIN_CHANNELS)
    if any_order:
        states, channels = dimensions + (not settings.switchless), dimensions
    builder = TableBuilder(
        topology, routing, destinations, states=states, virtual_channels=channels
    )
    target = builder.destinations.astype(np.int64) // max(1, settings.chips_per_switch)
    for plane in range(settings.planes):
        first = 0 if settings.switchless else settings.chips + plane * settings.routers
        if any_order:
            _fill_any_order(builder, settings, first, target)
        else:
            _fill_ordered(builder, settings, first, target)
    if not settings.switchless:
        fill_leaves(builder, target, settings.routers)
    return builder.build()


def _fill_ordered(
    builder: TableBuilder, settings: HyperXSettings, first: int, target: IntArray
) -> None:
    """Dimension after dimension in one plane, whose router 0 is vertex ``first``."""
    router = np.arange(settings.routers)
    vertices = slice(first, first + settings.routers)
    earlier = np.zeros((settings.routers, len(target)), dtype=np.bool_)
    stride = 1
    for length in settings.shape:
        position, goal = router // stride % length, target // stride % length
        differs = position[:, None] != goal
        here = differs & ~earlier
        for state, sets in enumerate(_line_sets(builder, first, position, stride, length)):
            builder.entry[state][vertices][here] = sets[:, goal][here]
        earlier |= differs
        stride *= length


def _line_sets(
    builder: TableBuilder, first: int, position: IntArray, stride: int, length: int
) -> list[Int32Array]:
    """The sets of a dimension by state, router and target position; -1 where equal."""
    if builder.routing == "min":
        pools = [
            _line_pools(builder, first, position, stride, length, vc) for vc in range(_MIN_CHANNELS)
        ]
        return [_sets_of_pools(builder, np.stack(pools, axis=-1), 0)]
    detour, direct = (_line_pools(builder, first, position, stride, length, vc) for vc in (0, 1))
    undecided = np.full(direct.shape, -1, dtype=np.int32)
    for router, start in enumerate(position.tolist()):
        for goal in range(length):
            if goal != start:
                detours = [
                    (int(detour[router, via]), 0 if via == goal else 1)
                    for via in range(length)
                    if via != start
                ]
                undecided[router, goal] = builder.choice_set(
                    [*detours, (int(direct[router, goal]), 0)]
                )
    return [undecided, builder.single(direct, 0)]


def _fill_any_order(
    builder: TableBuilder, settings: HyperXSettings, first: int, target: IntArray
) -> None:
    """Any dimension that still differs may be next; hop k is on virtual channel k."""
    router, goal = np.arange(settings.routers), np.arange(settings.routers)
    for hop in range(len(settings.shape)):
        pools, stride = [], 1
        for length in settings.shape:
            line = _line_pools(builder, first, router // stride % length, stride, length, hop)
            pools.append(line[:, goal // stride % length])
            stride *= length
        choices = np.stack(pools, axis=-1)
        # No packet is so far from its destination after so many hops.
        choices[(choices >= 0).sum(axis=-1) > len(settings.shape) - hop] = -1
        sets = _sets_of_pools(builder, choices, min(hop + 1, len(builder.entry) - 1))
        builder.entry[hop][first : first + settings.routers] = sets[:, target]


def _sets_of_pools(builder: TableBuilder, pools: IntArray, state: int) -> Int32Array:
    """Sets of all pools of the last axis that are not -1; -1 where there are none."""
    # One number stands for the pools of each set, in the order of its first ones.
    code = np.zeros(pools.shape[:-1], dtype=np.int64)
    for column in np.moveaxis(pools, -1, 0):
        _, first, code = np.unique(
            code * (column.max() + 2) + column, return_index=True, return_inverse=True
        )
    ids = np.full(len(first), -1, dtype=np.int32)
    for i, row in enumerate(pools.reshape(-1, pools.shape[-1])[first].tolist()):
        choices = [(pool, state) for pool in row if pool >= 0]
        if choices:
            ids[i] = builder.choice_set(choices)
    return ids[code].reshape(pools.shape[:-1])


def _line_pools(
    builder: TableBuilder, first: int, position: IntArray, stride: int, length: int, vc: int
) -> IntArray:
    """The pools from every router to its line: int[routers, length], -1 to itself."""
    vertex = first + np.arange(len(position))
    near = vertex[:, None] + (np.arange(length) - position[:, None]) * stride
    return builder.pools_between(vertex[:, None], near, vc)


def _line_loads(settings: HyperXSettings, plane: Topology, routing: str) -> LineLoads | None:
    """Loads where the chips are the routers.

    Rounding decides whether detours are asked where paths reach just half of a port, as
    on switches: there the table's sums stay.
    """
    order = _ORDERS.get(routing) if settings.switchless else None
    return None if order is None else LineLoads(plane, settings.shape, order)


# Bill of materials


def ports(settings: HyperXSettings) -> Ports:
    """Components of the network, and the bandwidths in ports per chip.

    With p chips on a switch all-to-all gets S / p of a port per lane through a
    dimension of size S, capped by the injection. Links of chip routers have a
    transceiver at both ends, without switches.
    """
    per_router, chips = max(1, settings.chips_per_switch), settings.chips
    planes, lanes, routers = settings.planes, settings.lanes, settings.routers * settings.planes
    between, leaf = settings.line_ports * routers, settings.chips_per_switch * routers
    cut = min(2 * (size // 2) * (size - size // 2) / (size * per_router) for size in settings.shape)
    return Ports(
        chips=chips,
        port_gbps=settings.port_gbps,
        cables={"leaf": 2 * leaf, "line": between},
        injection=settings.line_ports if settings.switchless else planes,
        all_to_all=planes * lanes * min(settings.shape) / per_router * (chips - 1) / chips,
        bisection=planes * lanes * cut,
        electrical_switch_ports=0 if settings.switchless else leaf + between,
    )


def resize(settings: HyperXSettings, chips: int) -> HyperXSettings:
    """The narrowest network in the fewest dimensions with at least ``chips`` chips.

    Switches have at most as many chips as keep full all-to-all bandwidth. Chip routers
    have as many ports as their shape needs, so no larger network has the same ports.
    """
    if settings.switchless:
        if chips > settings.chips:
            raise too_large(chips, settings.chips, "the shape fixes the ports of a chip")
        return settings
    largest, lanes = 0, settings.lanes
    radix = settings.radix if settings.switch_radix is None else settings.switch_radix
    for dimensions in range(1, len(settings.shape) + 1):
        for size in range(2, radix):
            room = min(lanes * size, radix - lanes * dimensions * (size - 1))
            if room < 1:
                break
            largest = max(largest, room * size**dimensions)
            on_switch = math.ceil(chips / size**dimensions)
            if on_switch <= room:
                return replace(settings, shape=(size,) * dimensions, chips_per_switch=on_switch)
    raise too_large(chips, largest, f"{len(settings.shape)} dimensions of {radix}-port switches")


FAMILY = Family(
    name="hyperx",
    settings=HyperXSettings,
    build=build,
    check=size_check("shape", link_rows),
    halves=halves,
    bisection_ports=bisection_ports,
    ports_per_chip=ports_per_chip,
    routings=("min", "balanced", "adaptive", "valiant"),
    route=route,
    plane=lambda of: (build(replace(of, planes=1)), of.planes),
    node_hop_counts=node_hop_counts,
    chip_rings=chip_rings,
    # Shortest paths differ in the order of their dimensions alone.
    hop_loads={"balanced": "min"},
    pair_loads=_line_loads,
    # A chip that is a router takes all with its last coordinate: a HyperX is left, of
    # fewer chips than the largest sub-grid has.
    job_places=any_chips(
        lambda of: of.chips, lambda of: math.prod(of.shape[:-1]) if of.switchless else 1
    ),
    bill=Bill(ports=ports, resize=resize),
)
