"""Analysis of any routing table: delivery, deadlocks, loads and hops.

For one destination the places (state, vertex) that packets can reach form an acyclic
graph, or the routing would send packets round for ever. A depth-first order of it gives
exact loads (forwards) and exact hop counts (backwards) in one pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray, index_in_group, offsets
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Topology


@dataclass(frozen=True, eq=False)
class PathLengths:
    """Expected links of paths, all of them and those that leave a node.

    float[chips, destinations].
    """

    links: FloatArray
    external_links: FloatArray


@dataclass(frozen=True, eq=False)
class Options:
    """The sets of a table with every pool spread out.

    Option rows of set k are start[k] to start[k + 1]. ``weight`` splits a choice over
    the lanes of its pool, by their rates, and evenly over the virtual channels ``vc``
    of its class. ``lane`` is the only lane used of the link, -1: all. ``slot`` is the
    place in the loads of all slots: the shared traffic of each link row, then the
    lanes. ``hops``: the same for loops over pairs: ``start``, the place (state *
    vertices + vertex) and the vertex that an option leads to, its time of flight in
    nanoseconds, ``weight`` and ``slot``.
    """

    start: Int32Array
    link: Int32Array
    vc: Int32Array
    lane: Int32Array
    state: Int32Array
    weight: FloatArray
    slot: IntArray
    hops: tuple[NDArray[Any], ...]


class RoutingGraph(NamedTuple):
    """The arrays that the compiled loops follow packets by.

    ``entry`` (int32[states, vertices, destinations]) and ``destinations`` are those of
    a table, ``link_dst`` (int32[links]) is the topology's, the others are of
    :class:`Options`.
    """

    entry: Int32Array
    destinations: Int32Array
    link_dst: Int32Array
    start: Int32Array
    link: Int32Array
    state: Int32Array
    weight: FloatArray


def check_delivery(topology: Topology, table: RoutingTable) -> None:
    """Check that every packet arrives.

    ValueError names a place where one gets stuck, leaves the graph or goes round for
    ever.
    """
    options = spread_options(topology, table)
    starts = topology.links.src[options.link]
    for _, entry in table.blocks():
        for used in entry:
            at, to = np.nonzero(used >= 0)
            # Every option of a set must start where the set is used.
            key = np.unique(used[at, to].astype(np.int64) * topology.vertices + at)
            distinct = np.stack(np.divmod(key, topology.vertices), axis=1)
            first, last = options.start[distinct[:, 0]], options.start[distinct[:, 0] + 1]
            for offset in range(int((last - first).max(initial=0))):
                here = first + offset < last
                wrong = starts[(first + offset)[here]] != distinct[here, 1]
                if wrong.any():
                    row = int(options.link[(first + offset)[here][wrong][0]])
                    raise ValueError(
                        f"{table.routing}: link {row} does not start at vertex"
                        f" {int(distinct[here, 1][wrong][0])}"
                    )
    path_lengths(topology, table)


def path_lengths(topology: Topology, table: RoutingTable) -> PathLengths:
    """Expected hops under the table's weights, by chip and destination."""
    external = (topology.links.kind != INTERNAL).astype(np.float64)
    return PathLengths(
        path_sums(topology, table, np.ones(len(external))), path_sums(topology, table, external)
    )


def path_sums(topology: Topology, table: RoutingTable, values: FloatArray) -> FloatArray:
    """Expected sum of ``values`` over the links of a path: float[chips, destinations].

    ``values``: float[links], as hops or nanoseconds.
    """
    return _sums(topology, table, values, None, longest=False)


def longest_paths(
    topology: Topology, table: RoutingTable, values: FloatArray, pairs: FloatArray | None = None
) -> FloatArray:
    """The largest sum of ``values`` over any path: float[chips, destinations].

    ``values`` (float[links]) are at least 0. ``pairs`` (float[chips, destinations]):
    only pairs above 0 count, others may stay 0; None: all.
    """
    return _sums(topology, table, values, pairs, longest=True)


def _sums(
    topology: Topology,
    table: RoutingTable,
    values: FloatArray,
    pairs: FloatArray | None,
    *,
    longest: bool,
) -> FloatArray:
    stuck = np.zeros(3, dtype=np.int64)
    sums = np.zeros((topology.chips, len(table.destinations)))
    for block, graph in _graphs(topology, table, spread_options(topology, table)):
        of_block = np.zeros((topology.chips, block.stop - block.start))
        asked = np.ones(of_block.shape) if pairs is None else np.ascontiguousarray(pairs[:, block])
        kernels().path_sums(graph, values, asked, longest, stuck, of_block)
        _raise_if_stuck(topology, table, stuck)
        sums[:, block] = of_block
    return sums


def table_lane_loads(
    topology: Topology, table: RoutingTable, demand: FloatArray | None = None
) -> FloatArray:
    """Mean load of the lanes of each link row (float[links]).

    Arguments, unit and errors are those of :func:`table_channel_loads`.
    """
    lanes = topology.links.lanes.astype(np.int64)
    mean: FloatArray = (
        np.add.reduceat(table_channel_loads(topology, table, demand), np.cumsum(lanes) - lanes)
        / lanes
    )
    return mean


def table_channel_loads(
    topology: Topology, table: RoutingTable, demand: FloatArray | None = None
) -> FloatArray:
    """Load of every lane, exact under the table's weights: float[channels].

    The unit is flits/cycle per flit/chip/cycle offered. The channels are the lanes of
    all link rows in order. ``demand`` (float[chips, destinations]): the traffic of each
    chip to each destination; None: uniform, 1 / (chips - 1) to each other chip. The
    lanes of a pool share its traffic by their rates. Raises ValueError where the demand
    has another shape or a packet does not arrive.
    """
    expected = (topology.chips, len(table.destinations))
    if demand is not None and demand.shape != expected:
        raise ValueError(
            f"demand: shape {demand.shape}; allowed: {expected}, chips by destinations of the table"
        )
    options = spread_options(topology, table)
    loads = _no_loads(topology)
    _add_loads(topology, table, options, demand, options.slot, loads)
    return _by_lane(topology, loads)


def pair_loads(
    topology: Topology, table: RoutingTable, src: IntArray, dst: IntArray, amount: FloatArray
) -> tuple[FloatArray, float]:
    """Load of every lane, and the longest flight in nanoseconds, of some pairs alone.

    Each pair of chips (``src``, ``dst``: int[pairs], no pair twice) sends ``amount``.
    The loads are those of :func:`table_channel_loads` for this demand, in time and
    memory for these pairs alone; a table with groups stays as small as it is.
    """
    # By destination, then source; keys of 16 bits are sorted by radix, 64 do for all.
    key = np.uint16 if topology.chips <= 1 << 16 else np.int64
    order = np.lexsort((src.astype(key), dst.astype(key)))
    src, dst, amount = src[order], dst[order], amount[order]
    first = np.searchsorted(dst, np.append(table.destinations, topology.chips))
    return _loads_of(topology, table, kernels().pair_loads, first, src, amount)


def gather_loads(
    topology: Topology, table: RoutingTable, members: IntArray
) -> tuple[FloatArray, float]:
    """Load of every lane, and the longest flight in nanoseconds, where each of the
    chips ``members`` (int[groups, members]) sends 1 in equal parts to the others of its
    group.

    Equal to :func:`pair_loads` of all these pairs but for rounding. What goes to all
    members that a table with groups does not distinguish is routed at once, which on
    large groups takes a small part of the time.
    """
    _, goal, column = _seen(topology, table)
    # Members that are equal on a level follow each other there.
    keys = [part for level in zip(goal.T, column.T, strict=False) for part in level]
    rank = np.empty(len(column), dtype=np.int64)
    order = np.lexsort([column[:, -1], *reversed(keys)])
    rank[order] = np.arange(len(order))
    numbers = np.searchsorted(table.destinations, members)
    ordered = order[np.sort(rank[numbers], axis=1)]
    share = 1 / (members.shape[1] - 1)
    return _loads_of(topology, table, kernels().gather_loads, ordered, share)


def _loads_of(
    topology: Topology, table: RoutingTable, loop: Callable[..., float], *traffic: object
) -> tuple[FloatArray, float]:
    """The load of every lane and the longest flight, by a compiled loop."""
    options, loads = spread_options(topology, table), _no_loads(topology)
    entry = table.entry.reshape(-1, table.entry.shape[2])
    graph = (entry, table.destinations, *options.hops)
    stuck = np.zeros(3, dtype=np.int64)
    flight_ns = loop(graph, _seen(topology, table), *traffic, stuck, loads)
    _raise_if_stuck(topology, table, stuck)
    return _by_lane(topology, loads), float(flight_ns)


def _seen(topology: Topology, table: RoutingTable) -> tuple[Int32Array, ...]:
    """Coordinates, goal and column of the table's groups; without groups each
    destination has a column.
    """
    groups = table.groups
    if groups is None:
        every = np.arange(len(table.destinations), dtype=np.int32)[:, None]
        none = np.zeros((topology.vertices, 0), dtype=np.int32)
        return none, np.zeros((len(every), 0), dtype=np.int32), every
    return tuple(map(np.ascontiguousarray, (groups.coordinates, groups.goal, groups.column)))


def _no_loads(topology: Topology) -> FloatArray:
    """Empty loads of all slots."""
    return np.zeros(len(topology.links) + int(topology.links.lanes.sum()))


def _by_lane(topology: Topology, loads: FloatArray) -> FloatArray:
    """Loads of the lanes, which share the traffic of their row evenly."""
    lanes = topology.links.lanes.astype(np.int64)
    shared, by_lane = np.split(loads, [len(lanes)])
    per_lane: FloatArray = np.repeat(shared / lanes, lanes) + by_lane
    return per_lane


def class_loads(topology: Topology, table: RoutingTable) -> FloatArray:
    """Uniform traffic on each class of virtual channels: float[classes].

    Summed over all links, in flits/cycle per flit/chip/cycle offered.
    """
    loads = np.zeros(table.classes)
    options = spread_options(topology, table)
    slot = table.channel_class[options.vc].astype(np.int64)
    _add_loads(topology, table, options, None, slot, loads)
    return loads


def _add_loads(
    topology: Topology,
    table: RoutingTable,
    options: Options,
    demand: FloatArray | None,
    slot: IntArray,
    loads: FloatArray,
) -> None:
    """Add the traffic of every option to ``loads`` at its ``slot``.

    Destinations are added in order, so that a table of groups gives the same sums.
    """
    stuck = np.zeros(3, dtype=np.int64)
    for block, graph in _graphs(topology, table, options):
        sent = (
            np.full((topology.chips, block.stop - block.start), 1 / (topology.chips - 1))
            if demand is None
            else np.ascontiguousarray(demand[:, block])
        )
        kernels().loads(graph, sent, stuck, slot, loads)
        _raise_if_stuck(topology, table, stuck)


def check_deadlock_free(topology: Topology, table: RoutingTable) -> None:
    """Check that no cycle of waiting packets can form; ValueError names one.

    The channel dependency graph joins channel (link row, virtual channel) a to b where
    a packet in a's buffer may wait for b, any channel of its next class. Without a
    cycle no deadlock is possible (Dally and Seitz 1987). Only reachable places count.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    options = spread_options(topology, table)
    links, channels = topology.links, table.virtual_channels
    out_index = index_in_group(links.src).astype(np.int32)
    most_out = int(out_index.max()) + 1
    waits = np.zeros((len(links) * channels, most_out * channels), dtype=np.bool_)
    stuck = np.zeros(3, dtype=np.int64)
    for _, graph in _graphs(topology, table, options):
        kernels().dependencies(graph, topology.chips, stuck, options.vc, out_index, channels, waits)
        _raise_if_stuck(topology, table, stuck)
    occupied, offset = np.nonzero(waits)
    # Back from (index among the links that leave the vertex, channel) to the link row.
    row_of = np.full((topology.vertices, most_out), -1, dtype=np.int64)
    row_of[links.src, out_index] = np.arange(len(links))
    next_channel = (
        row_of[links.dst[occupied // channels], offset // channels] * channels + offset % channels
    )
    size = len(links) * channels
    waiting = csr_array(
        (np.ones(len(occupied), dtype=np.int8), (occupied, next_channel)), shape=(size, size)
    )
    number, component = connected_components(waiting, directed=True, connection="strong")
    crowded = np.bincount(component, minlength=number) > 1
    itself = occupied[occupied == next_channel]
    if crowded.any() or len(itself):
        members = (
            itself[:1]
            if len(itself)
            else np.flatnonzero(component == int(np.flatnonzero(crowded)[0]))
        )
        circle = ", ".join(_channel_name(topology, int(member), channels) for member in members[:4])
        more = f" and {len(members) - 4} more" if len(members) > 4 else ""
        raise ValueError(
            f"{table.routing} on {topology.family}: packets can wait for each other in a circle:"
            f" {circle}{more}"
        )


def _channel_name(topology: Topology, channel: int, channels: int) -> str:
    row, vc = divmod(channel, channels)
    links = topology.links
    return (
        f"{LINK_KINDS[links.kind[row]]} {links.src[row]} to {links.dst[row]} on virtual channel"
        f" {vc}"
    )


#: The options of tables in use, each with its topology.
_SPREAD: WeakKeyDictionary[RoutingTable, tuple[Topology, Options]] = WeakKeyDictionary()


def spread_options(topology: Topology, table: RoutingTable) -> Options:
    """Spread the pools of a table out into option rows."""
    cached = _SPREAD.get(table)
    if cached is None or cached[0] is not topology:
        cached = _SPREAD[table] = topology, _spread(topology, table)
    return cached[1]


def _spread(topology: Topology, table: RoutingTable) -> Options:
    sizes = np.diff(table.pool_start)
    only = np.repeat(table.pool_lane, sizes)
    lanes = np.where(only < 0, topology.links.lanes[table.pool_link], 1).astype(np.float64)
    gbps = topology.links.gbps[table.pool_link]
    # Over the fastest, so that pools of one rate have whole numbers of lanes.
    lanes *= gbps / np.repeat(np.maximum.reduceat(gbps, table.pool_start[:-1]), sizes)
    pool_lanes = np.add.reduceat(lanes, table.pool_start[:-1])
    member, vc, first = table.spread_pools(sizes.astype(np.int64))
    rows = np.diff(first)[table.choice_pool]
    choice = np.repeat(np.arange(len(table.choice_pool)), rows)
    pool = table.choice_pool[choice]
    index = first[pool] + offsets(rows)
    at = table.pool_start[pool] + member[index]
    channels = np.bincount(table.channel_class)[table.pool_class[pool]]
    per_choice = np.concatenate([[0], np.cumsum(rows)])
    link, lane = table.pool_link[at], table.pool_lane[pool]
    start, state = per_choice[table.set_start], table.choice_state[choice].astype(np.int32)
    rows = topology.links.lanes.astype(np.int64)
    first_lane = len(rows) + np.cumsum(rows) - rows
    slot = np.where(lane < 0, link, first_lane[link] + lane)
    weight = table.choice_weight[choice] * lanes[at] / pool_lanes[pool] / channels
    vertex = topology.links.dst[link]
    # Unsigned: with indices that could be negative the loops take up to half longer.
    starts, places, vertices, slots = (
        values.astype(np.uint32)
        for values in (start, state * np.int64(topology.vertices) + vertex, vertex, slot)
    )
    return Options(
        start=start.astype(np.int32),
        link=link.astype(np.int32),
        vc=vc[index].astype(np.int32),
        lane=lane.astype(np.int32),
        state=state,
        weight=weight,
        slot=slot,
        hops=(starts, places, vertices, topology.links.latency_ns[link], weight, slots),
    )


def routing_graph(
    topology: Topology, options: Options, entry: Int32Array, destinations: Int32Array
) -> RoutingGraph:
    """The graph of entries for ``destinations``, all of a table or a block of them."""
    sets = (options.start, options.link, options.state, options.weight)
    return RoutingGraph(entry, destinations, topology.links.dst, *sets)


def _graphs(
    topology: Topology, table: RoutingTable, options: Options
) -> Iterator[tuple[slice, RoutingGraph]]:
    """The graph of one block of destinations after the other."""
    for block, entry in table.blocks():
        yield block, routing_graph(topology, options, entry, table.destinations[block])


def _raise_if_stuck(topology: Topology, table: RoutingTable, stuck: IntArray) -> None:
    """Raise ValueError for the fault that the loops report in ``stuck``.

    Kind (1 dead end, 2 cycle), place (state * vertices + vertex), destination.
    """
    if stuck[0]:
        state, vertex = divmod(int(stuck[1]), topology.vertices)
        what = "has nowhere to go" if stuck[0] == 1 else "goes round for ever"
        raise ValueError(
            f"{table.routing} on {topology.family}: a packet for chip {stuck[2]} in state {state}"
            f" at {vertex} {what}"
        )


@cache
def kernels() -> ModuleType:
    """The compiled loops; imported on first use, as Numba takes a second to load."""
    from railx.vocabulary.routing import kernels as compiled

    return compiled


def with_virtual_channels(
    topology: Topology, table: RoutingTable, number: int | None
) -> RoutingTable:
    """The table on links of ``number`` virtual channels, None: unchanged.

    The classes of virtual channels keep packets from waiting for each other in a cycle;
    one channel per class is enough for that. Spare channels give waiting packets more
    buffers. Each goes to the class with the most uniform traffic per channel at that
    moment (of equals the lower class), where the queues are longest. On a torus four
    fifths of the published routing's traffic is on one of its two classes, and only
    there a third channel helps. Raises SettingsError where the classes need more.
    """
    if number is None or number == table.virtual_channels:
        return table
    if number < table.classes:
        raise SettingsError(
            "virtual_channels",
            f"got {number}; allowed: null or at least {table.classes}, the classes of routing"
            f" {table.routing} on {topology.family}",
        )
    dealt = _deal(class_loads(topology, table), number)
    return dataclasses.replace(table, channel_class=dealt)


def _deal(loads: FloatArray, number: int) -> Int32Array:
    """The class of each channel: one each, then spare ones by highest averages."""
    dealt = list(range(len(loads)))
    while len(dealt) < number:
        per_channel = loads / np.bincount(dealt, minlength=len(loads))
        # Equal but for rounding counts as equal.
        dealt.append(int(np.argmax(per_channel > per_channel.max() * (1 - 1e-9))))
    return np.array(dealt, dtype=np.int32)
