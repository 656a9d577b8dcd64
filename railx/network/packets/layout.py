"""Arrays of the core from a topology, a routing table and settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.network.packets import engine
from railx.network.packets.kernels import alias_table
from railx.network.settings import (
    AllToAllTraffic,
    HotSpotTraffic,
    PacketNetworkSettings,
    TrafficSettings,
    UniformTraffic,
)
from railx.network.traffic import hot_chips, traffic_flows
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import INTERNAL, Topology

#: Entries of a table over all pairs at most, a megabyte: a core's cache holds it, and
#: runs are up to 7 % faster than over groups of destinations. Larger ones are slower.
_MOST_PAIRS = 1 << 18


@dataclass(frozen=True, eq=False)
class Channels:
    """The lanes of all link rows in order.

    * ``row`` (int64[channels]): the link row.
    * ``first`` (int64[rows]): the first lane of each row.
    * ``serial``, ``latency`` (int64[channels]): cycles that a packet occupies the
      channel, and cycles of flight of its head.
    """

    row: IntArray
    first: IntArray
    serial: IntArray
    latency: IntArray

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class Trace:
    """Given packets by creation: ``cycle`` (ascending), ``src``, ``dst``."""

    cycle: NDArray[np.integer]
    src: NDArray[np.integer]
    dst: NDArray[np.integer]


def channels_of(topology: Topology, network: PacketNetworkSettings) -> Channels:
    """Channels with times in cycles; a link's width is its rate over the port's."""
    links = topology.links
    width = links.gbps / topology.settings.port_gbps
    serial = np.maximum(np.ceil(network.packet_flits / width - 1e-9), 1).astype(np.int64)
    latency = np.rint(links.latency_ns / network.cycle_ns).astype(np.int64)
    row = np.repeat(np.arange(len(links)), links.lanes)
    return Channels(
        row,
        np.concatenate([[0], np.cumsum(links.lanes)[:-1]]).astype(np.int64),
        serial[row],
        latency[row],
    )


def build_net(
    topology: Topology,
    table: RoutingTable,
    traffic: TrafficSettings | Trace,
    network: PacketNetworkSettings,
    seed: int,
    parts: int = 1,
) -> Any:
    """The arrays that a run reads (:class:`railx.network.packets.engine.Net`).

    ``parts``: the chips, and the switches, are divided among them in order.
    """
    pairs = table.states * topology.vertices * len(table.destinations)
    if pairs <= _MOST_PAIRS:
        table = table.over_pairs()
    channels = channels_of(topology, network)
    part = _parts(topology, parts)
    coordinates, goal = _columns(topology, table)
    pool_fifo, pool_start = _pool_fifos(topology, table, channels)
    pool = np.repeat(np.arange(len(table.pool_class)), np.diff(pool_start))
    # Pools that no choice has may name lanes that do not exist.
    taken = np.isin(pool, table.choice_pool)
    order = np.argsort(pool_fifo[taken], kind="stable")
    fifo_pool = pool[taken][order]
    members = np.bincount(pool_fifo[taken], minlength=len(channels) * table.virtual_channels)
    pool_fifo = _offsets(pool_fifo, table.virtual_channels)
    pool_range = _ranges(pool_fifo, pool_start)
    first_link = table.pool_link[table.pool_start[:-1]]
    choice = _lines(len(table.choice_pool), engine.CHOICE_COLUMNS, 0)
    choice[:, engine.CHOICE_STATE] = table.choice_state
    choice[:, engine.CHOICE_FIRST : engine.CHOICE_STEP + 1] = pool_range[table.choice_pool]
    probe = np.where(table.choice_probe >= 0, table.choice_probe, first_link[table.choice_pool])
    if network.router == "railx_simulator":
        _check_tails(channels, network)
    parameters = np.zeros(engine.PARAMETERS, dtype=np.int64)
    parameters[engine.VCS] = table.virtual_channels
    parameters[engine.RECORD_BITS] = _record_bits(table.virtual_channels)
    on_links = int(max(channels.latency.max() + 1, channels.serial.max()))
    longest = max(on_links, network.source_cycles, network.packet_flits)
    parameters[engine.MASK] = (1 << (longest + 1).bit_length()) - 1
    parameters[engine.FLITS] = network.packet_flits
    parameters[engine.SOURCE_CYCLES] = network.source_cycles
    parameters[engine.PORTS_IN] = network.injection_ports or 0
    parameters[engine.PORTS_OUT] = network.ejection_ports or 0
    parameters[engine.WARMUP] = network.warmup_cycles
    parameters[engine.FINISH] = network.warmup_cycles + network.measured_cycles
    parameters[engine.ADAPTIVE] = table.selection == "adaptive"
    parameters[engine.CHIPS] = topology.chips
    parameters[engine.CAPACITY] = network.buffer_flits // network.packet_flits
    parameters[engine.BATCHES] = network.batches
    parameters[engine.IN_ORDER] = network.router == "in_order"
    parameters[engine.MOST_ROOM] = network.parallel_channels == "most_room"
    mode, source, target, accept, alias, hot_share = _traffic_arrays(topology, traffic, seed)
    parameters[engine.MODE] = mode
    load = 0.0 if isinstance(traffic, Trace) else traffic.load
    row_width = topology.links.gbps / topology.settings.port_gbps * topology.links.lanes
    return engine.Net(
        parameters=parameters,
        rates=np.array([load * topology.chips / network.packet_flits, hot_share]),
        kinds=_kinds(topology, channels, part)[0],
        part=_int32(part[: topology.chips]),
        pool_range=_int32(np.column_stack([pool_range, first_link])),
        pool_fifo=_int32(pool_fifo),
        fifo_pool_start=_int32(np.concatenate([[0], np.cumsum(members)])),
        fifo_pool=_int32(fifo_pool),
        channel_row=_int32(channels.row),
        entry=table.entry_codes,
        coordinates=coordinates,
        goal=goal,
        set_start=_int32(table.set_start),
        choice=choice,
        choice_pool=_int32(np.column_stack([table.choice_pool, probe])),
        choice_limit=_running_sums(table),
        choice_delay=np.ascontiguousarray(
            table.choice_delay_ns / network.cycle_ns, dtype=np.float64
        ),
        row_rate=np.ascontiguousarray(row_width, dtype=np.float64),
        source=_int32(source),
        target=_int32(target),
        accept=np.ascontiguousarray(accept, dtype=np.float64),
        alias=_int32(alias),
    )


def _check_tails(channels: Channels, network: PacketNetworkSettings) -> None:
    """Router of the RailX simulator: a packet's tail leaves one buffer in a cycle."""
    for refused, what, allowed in (
        (
            channels.latency.min() < 1,
            "links shorter than a cycle",
            f"a latency of {network.cycle_ns:g} ns and more",
        ),
        (
            (channels.serial > channels.latency + channels.serial.min()).any(),
            "links so slow that tails meet those of faster links",
            "one rate",
        ),
    ):
        if refused:
            raise SettingsError(
                "router", f"got railx_simulator with {what}; allowed: in_order, or {allowed}"
            )


def build_state(
    topology: Topology,
    table: RoutingTable,
    net: Any,
    network: PacketNetworkSettings,
    seed: int,
    parts: int = 1,
) -> Any:
    """The :class:`~railx.network.packets.engine.State` of cycle 0, its part 0."""
    channels = channels_of(topology, network)
    vcs, chips = table.virtual_channels, topology.chips
    records = _lines(len(channels), 1 << _record_bits(vcs), -1)
    records[:, engine.ENDS_NEXT] = engine.IDLE
    records[:, engine.CARRIED] = 0
    records[:, engine.END] = topology.links.dst[channels.row]
    part = _parts(topology, parts)
    records[:, engine.KIND] = 2 * _kinds(topology, channels, part)[1]
    fifos = _offsets(np.arange(len(channels) * vcs), vcs)
    records.reshape(-1)[fifos + engine.ROOM] = 2 * net.parameters[engine.CAPACITY]
    chip_rows = np.full((chips, engine.CHIP_COLUMNS), -1, dtype=np.int32)
    inject, eject = network.injection_ports or 0, network.ejection_ports or 0
    chip_rows[:, engine.INJECTION], chip_rows[:, engine.EJECTION] = inject, eject
    timers = np.full((max(1, chips * (inject + eject)), 2), -1, dtype=np.int32)
    timers[:-1, 0] = np.arange(1, len(timers))
    traced, in_order = net.parameters[engine.MODE] == engine.TRACE, net.parameters[engine.IN_ORDER]
    a_cycle = int(net.rates[0]) + 2
    if traced:
        a_cycle = max(1, int(np.unique(net.alias, return_counts=True)[1].max(initial=1)))
    slots = 1 << max(1024, 2 * a_cycle).bit_length() - 1
    streams = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return engine.State(
        counters=np.zeros(engine.COUNTERS, dtype=np.int64),
        random=streams,
        **_ring(slots),
        records=records.reshape(-1),
        pools=_lines(len(table.pool_class), engine.POOL_COLUMNS, -1),
        chips=chip_rows,
        timers=timers,
        wheel=np.full(
            (engine.WHEEL_ROWS, int(net.parameters[engine.MASK]) + 1), -1, dtype=np.int32
        ),
        row_queue=np.zeros(len(topology.links), dtype=np.int32),
        queued=np.zeros(1 if in_order else len(fifos), dtype=np.int32),
        carried=np.zeros(1 if in_order else len(channels), dtype=np.int32),
        histogram=np.zeros(network.warmup_cycles + network.measured_cycles + 1, dtype=np.int64),
        batches=np.zeros((network.batches, 2), dtype=np.int64),
        arrival=np.full(len(net.source) if traced else 1, -1, dtype=np.int32),
        part=0,
        boxes=_boxes(topology, part, parts),
        progress=np.zeros(parts * engine.PROGRESS_STEP, dtype=np.int64),
    )


def more_slots(state: Any) -> Any:
    """The same state with twice the room for packets."""
    old = len(state.packets)
    oldest = int(state.counters[engine.OLDEST])
    ages = oldest + (np.arange(old) - oldest) % old
    ring = _ring(2 * old)
    for name in ("packets", "links"):
        ring[name][ages % (2 * old)] = getattr(state, name)
    return state._replace(**ring)


def _ring(slots: int) -> dict[str, Any]:
    """Room for ``slots`` packets, a power of two; none of them exists or has a turn."""
    return {
        "packets": _lines(slots, engine.PACKET_COLUMNS, -1),
        "links": _lines(slots, engine.LINK_COLUMNS, -1),
        "turns": np.zeros(slots // 64, dtype=np.uint64),
        "words": np.zeros(max(1, slots // 4096), dtype=np.uint64),
    }


def _record_bits(virtual_channels: int) -> int:
    """Log2 of the numbers in the record of a channel: a cache line or more."""
    numbers = engine.CHANNEL_COLUMNS + engine.FIFO_COLUMNS * virtual_channels
    return max(4, (numbers - 1).bit_length())


def _offsets(fifo: IntArray, virtual_channels: int) -> IntArray:
    """Offsets in the records of the FIFOs with these numbers."""
    channel, lane = np.divmod(fifo, virtual_channels)
    first = (channel << _record_bits(virtual_channels)) + engine.CHANNEL_COLUMNS
    return np.asarray(first + engine.FIFO_COLUMNS * lane)


def _parts(topology: Topology, parts: int) -> IntArray:
    """The part of each vertex: chips, and switches, in blocks of equal size."""
    switches = topology.vertices - topology.chips
    blocks = [np.arange(count) * parts // max(count, 1) for count in (topology.chips, switches)]
    return np.concatenate(blocks)


def _boxes(topology: Topology, part: IntArray, parts: int) -> Int32Array:
    """Empty boxes for messages between parts.

    In a cycle a channel has a head, and two FIFOs that packets leave: tail and end.
    """
    ends = part[topology.links.src], part[topology.links.dst]
    crossing = np.zeros((parts, parts), dtype=np.int64)
    np.add.at(crossing, ends, topology.links.lanes)
    np.fill_diagonal(crossing, 0)
    rows = 1 + 3 * int(np.maximum(crossing, crossing.T).max())
    return np.zeros((2, parts, parts, rows, engine.MESSAGE_COLUMNS), dtype=np.int32)


def _kinds(topology: Topology, channels: Channels, part: IntArray) -> tuple[Int32Array, IntArray]:
    """Rows of ``kinds`` of the Net, and the row of each channel."""
    links = topology.links
    leaves = np.where(links.kind != INTERNAL, 1 << 16, 0)
    of_links = (leaves, part[links.src], part[links.dst])
    rows = np.stack(
        [channels.serial, channels.latency, *(column[channels.row] for column in of_links)], axis=1
    )
    kinds, row = np.unique(rows, axis=0, return_inverse=True)
    return _int32(kinds), row.reshape(-1)


def _ranges(pool_fifo: IntArray, pool_start: IntArray) -> IntArray:
    """First FIFO, number and step of each pool: int64[pools, 3].

    Step 0: its FIFOs are not evenly spaced, and the first is a place in ``pool_fifo``.
    """
    first, count = pool_start[:-1], np.diff(pool_start)
    second = np.minimum(first + 1, len(pool_fifo) - 1)
    step = np.where(count > 1, pool_fifo[second] - pool_fifo[first], 1)
    place = np.arange(len(pool_fifo)) - np.repeat(first, count)
    even = pool_fifo == np.repeat(pool_fifo[first], count) + place * np.repeat(step, count)
    regular = np.logical_and.reduceat(even, first)
    return np.column_stack(
        [np.where(regular, pool_fifo[first], first), count, np.where(regular, step, 0)]
    )


def _pool_fifos(
    topology: Topology, table: RoutingTable, channels: Channels
) -> tuple[IntArray, IntArray]:
    """The FIFOs of every pool, and the start of each pool.

    In the order of its rows and lanes on the first virtual channel of its class, then
    on the next: packets spread over lanes before they queue behind each other.
    """
    only = np.repeat(table.pool_lane, np.diff(table.pool_start))
    lanes = np.where(only < 0, topology.links.lanes[table.pool_link], 1).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lanes)])
    lane = np.arange(starts[-1]) - np.repeat(starts[:-1] - np.maximum(only, 0), lanes)
    channel = np.repeat(channels.first[table.pool_link], lanes) + lane
    first = starts[table.pool_start]
    member, vc, start = table.spread_pools(np.diff(first))
    pool = np.repeat(np.arange(len(start) - 1), np.diff(start))
    return channel[first[pool] + member] * table.virtual_channels + vc, start


def _columns(topology: Topology, table: RoutingTable) -> tuple[Int32Array, Int32Array]:
    """``coordinates`` and ``goal`` of the Net: the column of each destination."""
    if not np.array_equal(np.sort(table.destinations), np.arange(topology.chips)):
        raise SettingsError(
            "routing",
            f"the table leads to {len(table.destinations)} chips; allowed: all {topology.chips}"
            " chips, once each",
        )
    groups, order = table.groups, np.argsort(table.destinations)
    if groups is None:
        return _int32(np.zeros((topology.vertices, 0))), _int32(np.stack([order, order], axis=1))
    levels = groups.column.shape[1]
    goal = np.zeros((topology.chips, 2 * levels), dtype=np.int32)
    goal[:, ::2] = groups.column[order]
    goal[:, 1:-1:2] = groups.goal[order]
    return _int32(groups.coordinates), goal


def _running_sums(table: RoutingTable) -> FloatArray:
    total = np.concatenate([[0.0], np.cumsum(table.choice_weight)])
    before = np.repeat(total[table.set_start[:-1]], np.diff(table.set_start))
    return np.ascontiguousarray(total[1:] - before)


def _traffic_arrays(
    topology: Topology, traffic: TrafficSettings | Trace, seed: int
) -> tuple[int, NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], float]:
    """Mode, sources, targets, acceptance, aliases (or cycles of a trace), hot share."""
    none = np.zeros(1, dtype=np.int32)
    if isinstance(traffic, Trace):
        _check_trace(topology, traffic)
        return engine.TRACE, traffic.src, traffic.dst, np.zeros(1), traffic.cycle, 0.0
    if topology.chips < 2:
        raise SettingsError(
            "chips", f"got {topology.chips}; allowed: at least 2, a chip sends nothing to itself"
        )
    if isinstance(traffic, UniformTraffic):
        return engine.UNIFORM, none, none, np.zeros(1), none, 0.0
    if isinstance(traffic, AllToAllTraffic):
        return engine.ALL_TO_ALL, none, none, np.zeros(1), none, 0.0
    if isinstance(traffic, HotSpotTraffic):
        hot = hot_chips(topology, traffic, seed)
        index = np.full(topology.chips, -1, dtype=np.int32)
        index[hot] = np.arange(len(hot))
        return engine.HOT_SPOT, none, hot, np.zeros(1), index, traffic.hot_share
    flows = traffic_flows(topology, traffic, seed)
    accept, alias = np.empty(len(flows)), np.empty(len(flows), dtype=np.int32)
    alias_table(flows.share, accept, alias)
    return engine.FLOWS, flows.src, flows.dst, accept, alias, 0.0


def _check_trace(topology: Topology, trace: Trace) -> None:
    if not len(trace.cycle) == len(trace.src) == len(trace.dst):
        raise ValueError(
            f"trace: {len(trace.cycle)} cycles, {len(trace.src)} sources, {len(trace.dst)}"
            " destinations; allowed: as many"
        )
    if (np.diff(trace.cycle) < 0).any() or (np.asarray(trace.cycle) < 0).any():
        raise ValueError("trace: cycles are not in order; allowed: ascending from 0")
    ends = np.concatenate([trace.src, trace.dst])
    wrong = (ends < 0) | (ends >= topology.chips)
    if wrong.any() or (np.asarray(trace.src) == trace.dst).any():
        raise ValueError(
            f"trace: a packet's ends are no two different chips; allowed: 0 to {topology.chips - 1}"
        )


def _lines(rows: int, columns: int, value: int) -> Int32Array:
    """int32[rows, columns] at the start of a cache line; 16 columns fill one."""
    memory = np.empty(rows * columns + 16, dtype=np.int32)
    first = (-memory.ctypes.data // 4) % 16
    table = memory[first : first + rows * columns].reshape(rows, columns)
    table[:] = value
    return table


def _int32(values: NDArray[Any]) -> Int32Array:
    return np.ascontiguousarray(values, dtype=np.int32)
