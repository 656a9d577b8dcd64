"""Runs of the packet simulator and their results.

The cycle model is that of the RailX simulator's published inputs:

* virtual cut-through: a virtual channel is granted only where the whole packet fits.
  The space is free again when the tail leaves; credits are instant;
* a link of width w (its rate over a port's) and latency L is busy for ceil(flits / w)
  cycles per packet, back to back. Routing, allocation and the first flit take one cycle
  without contention, and the head can be routed again L + 1 cycles later;
* one packet at a time leaves an input port, over all its virtual channels. These are
  FIFO. A packet is routed once, when it comes to the front, by a draw or by the queues;
* a pool's first channel whose virtual channel is empty is granted, else its first with
  room, or that with most room (``parallel_channels``); a grant lasts until used;
* the oldest packet of the network goes first;
* router ``railx_simulator`` differs in three points, by which it repeats the RailX
  simulator packet for packet. Packets at their destination pass those before them in a
  FIFO. An "empty" virtual channel is one that no packet has left for that goes on, so
  packets may be granted a channel that is busy while another is idle. Room is free in
  the cycle in which a tail moves, for younger packets;
* at their destination packets leave from the front of their FIFO. Limited injection and
  ejection ports have width 1: a packet occupies one for as many cycles as it has flits.
  It counts as arrived when its ejection starts.

A run may be in parts of the network, on a thread each; the result is that of one
thread. :func:`railx.network.packets.engine.advance_part` says how the parts keep step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.network.packets import engine
from railx.network.packets.layout import Trace, build_net, build_state, channels_of, more_slots
from railx.network.settings import PacketNetworkSettings, TrafficSettings
from railx.progress import counting
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray
from railx.vocabulary.routing.analysis import with_virtual_channels
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

#: Cycles times chips per call of the core, some seconds on large networks. Between
#: calls the progress is counted.
_CHIP_CYCLES = 500_000
#: Arrays that all parts see; of all others each has a copy.
_SHARED = ("boxes", "progress")
#: A cache line, or the two that are loaded together.
_LINE_BYTES = 128


@dataclass(frozen=True, eq=False)
class PacketResult:
    """The measurements of a run.

    Rates in flits/(chip cycle): ``offered`` (created in the window) and ``accepted``
    (arrived). Latencies are in cycles from creation to the arrival of the tail,
    queueing at the source included, over the ``packets`` that arrive in the window; NaN
    where none did. ``latency_ci95_cycles``: half width of the 95 % interval of the mean
    by batch means (NaN where a batch is empty). ``hops_mean``: links;
    ``external_hops_mean``: those that leave a node.

    ``created`` = ``delivered`` + ``in_flight`` + ``queued`` (packets of the whole run;
    the last two at its end). ``virtual_channels``: those of each link. ``channel_row``
    (int64[channels]) and ``channel_load`` (float64[channels]): link row of each channel
    and the cycles that it takes for packets sent in the window, over the window's.
    """

    offered_flits_per_chip_cycle: float
    accepted_flits_per_chip_cycle: float
    latency_mean_cycles: float
    latency_ci95_cycles: float
    latency_p50_cycles: float
    latency_p99_cycles: float
    latency_max_cycles: float
    hops_mean: float
    external_hops_mean: float
    packets: int
    created: int
    delivered: int
    in_flight: int
    queued: int
    cycles: int
    flit_hops: int
    cycles_per_second: float
    flit_hops_per_second: float
    virtual_channels: int
    channel_row: IntArray
    channel_load: FloatArray


def simulate_packets(
    topology: Topology,
    table: RoutingTable,
    traffic: TrafficSettings,
    network: PacketNetworkSettings,
    seed: int,
) -> PacketResult:
    """Run ``traffic`` for the warm-up and the measured cycles.

    The same seed gives the same packets. SettingsError where the traffic does not fit
    the topology, or the routing the virtual channels.
    """
    table = with_virtual_channels(topology, table, network.virtual_channels)
    net = build_net(topology, table, traffic, network, seed, network.threads)
    state = build_state(topology, table, net, network, seed, network.threads)
    cycles = network.warmup_cycles + network.measured_cycles
    # compiles, or loads what is compiled, before the clock runs
    if network.threads == 1:
        engine.advance(net, state, 0)
        start = time.perf_counter()
        state = run_until(net, state, cycles)
    else:
        check_divisible(net, network.threads)
        load_compiled(net, state)
        start = time.perf_counter()
        state = run_parts_until(net, state, cycles, _step(state))
    return _result(topology, network, net, state, time.perf_counter() - start)


def simulate_trace(
    topology: Topology,
    table: RoutingTable,
    trace: Trace,
    network: PacketNetworkSettings,
    *,
    cycles: int,
    seed: int,
) -> Int32Array:
    """The arrival of each packet's tail: int32[packets], -1: not in ``cycles``."""
    table = with_virtual_channels(topology, table, network.virtual_channels)
    net = build_net(topology, table, trace, network, seed)
    state = run_until(net, build_state(topology, table, net, network, seed), cycles)
    arrival: Int32Array = state.arrival
    return arrival


def run_until(net: Any, state: Any, cycle: int) -> Any:
    """Advance to ``cycle``, with more room for packets as needed; return the state."""
    step = _step(state)
    with counting("cycles", cycle) as count:
        while (now := int(state.counters[engine.NOW])) < cycle:
            count.done_units, count.done = now, float(now)
            while engine.advance(net, state, min(now + step, cycle)) == engine.NEEDS_ROOM:
                state = more_slots(state)
    return state


def _step(state: Any) -> int:
    return max(1, _CHIP_CYCLES // len(state.chips))


def summary_row(
    topology: Topology,
    name: str,
    traffic: TrafficSettings,
    network: PacketNetworkSettings,
    result: PacketResult,
    seed: int,
) -> dict[str, Any]:
    """A row of the packet tables, loads as requested, everything else as simulated."""
    return {
        "topology": name,
        "family": topology.family,
        "chips": topology.chips,
        "traffic": traffic.pattern,
        "routing": network.routing,
        "virtual_channels": result.virtual_channels,
        "offered_flits_per_chip_cycle": traffic.load,
        "accepted_flits_per_chip_cycle": result.accepted_flits_per_chip_cycle,
        "latency_mean_cycles": result.latency_mean_cycles,
        "latency_ci95_cycles": result.latency_ci95_cycles,
        "latency_p50_cycles": result.latency_p50_cycles,
        "latency_p99_cycles": result.latency_p99_cycles,
        "latency_max_cycles": result.latency_max_cycles,
        "hops_mean": result.hops_mean,
        "external_hops_mean": result.external_hops_mean,
        "packets": result.packets,
        "created_packets": result.created,
        "in_flight_packets": result.in_flight,
        "queued_packets": result.queued,
        "largest_channel_load": float(result.channel_load.max()),
        "warmup_cycles": network.warmup_cycles,
        "measured_cycles": network.measured_cycles,
        "seed": seed,
        "fidelity": "packet",
    }


def speed_of(result: PacketResult) -> dict[str, float]:
    """How fast this machine simulated the run."""
    return {
        "cycles_per_second": result.cycles_per_second,
        "flit_hops_per_second": result.flit_hops_per_second,
    }


def _result(
    topology: Topology, network: PacketNetworkSettings, net: Any, state: Any, seconds: float
) -> PacketResult:
    count = {name: int(state.counters[getattr(engine, name)]) for name in _COUNTED}
    arrived = count["W_DELIVERED"]
    per_flit = network.packet_flits / (topology.chips * network.measured_cycles)
    channels = channels_of(topology, network)
    flit_hops = count["HOPS_DONE"] * network.packet_flits
    total, packets = state.batches.sum(axis=0).tolist()
    middle, high, largest = _quantiles(state.histogram)
    carried = state.records[engine.CARRIED :: 1 << net.parameters[engine.RECORD_BITS]]
    return PacketResult(
        offered_flits_per_chip_cycle=count["W_CREATED"] * per_flit,
        accepted_flits_per_chip_cycle=arrived * per_flit,
        latency_mean_cycles=total / packets if packets else math.nan,
        latency_ci95_cycles=_half_width(state.batches),
        latency_p50_cycles=middle,
        latency_p99_cycles=high,
        latency_max_cycles=largest,
        hops_mean=count["W_HOPS"] / arrived if arrived else math.nan,
        external_hops_mean=count["W_EXTERNAL"] / arrived if arrived else math.nan,
        packets=arrived,
        created=count["CREATED"],
        delivered=count["DELIVERED"],
        in_flight=count["INJECTED"] - count["DELIVERED"],
        queued=count["CREATED"] - count["INJECTED"],
        cycles=count["NOW"],
        flit_hops=flit_hops,
        cycles_per_second=count["NOW"] / seconds,
        flit_hops_per_second=flit_hops / seconds,
        virtual_channels=int(net.parameters[engine.VCS]),
        channel_row=channels.row,
        channel_load=carried * channels.serial / network.measured_cycles,
    )


_COUNTED = (
    *("NOW", "CREATED", "INJECTED", "DELIVERED", "HOPS_DONE"),
    *("W_DELIVERED", "W_HOPS", "W_EXTERNAL", "W_CREATED"),
)


def _quantiles(histogram: IntArray) -> tuple[float, float, float]:
    """Median, 99 % quantile and largest of latencies; NaN without packets."""
    running = np.cumsum(histogram)
    if running[-1] == 0:
        return math.nan, math.nan, math.nan
    middle, high = (float(np.searchsorted(running, share * running[-1])) for share in (0.5, 0.99))
    return middle, high, float(np.flatnonzero(histogram)[-1])


def _half_width(batches: IntArray) -> float:
    """Half of the mean latency's 95 % interval, by batch means (Student's t)."""
    from scipy import stats

    if (batches[:, 1] == 0).any():
        return math.nan
    means = batches[:, 0] / batches[:, 1]
    return float(stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means)))


def check_divisible(net: Any, threads: int) -> None:
    """SettingsError where packets of two parts may meet: random draws, short links."""
    for met, reason in (
        ((np.diff(net.set_start) > 1).any(), "a routing that draws among ways"),
        (net.kinds[:, engine.LATENCY].min() < 1, "links shorter than a cycle"),
    ):
        if met:
            raise SettingsError("threads", f"got {threads}; allowed with {reason}: 1")


def load_compiled(net: Any, state: Any) -> None:
    """Compile the core for parts, or load what is compiled."""
    alone = np.zeros(engine.PROGRESS_STEP, dtype=np.int64)
    engine.advance_part(net, state._replace(progress=alone), 0)


def run_parts_until(net: Any, state: Any, cycle: int, step: int) -> Any:
    """Advance an empty network to ``cycle``; its state has part 0's packets."""
    state = state._replace(**{name: _aligned_copy(getattr(state, name)) for name in _SHARED})
    apart = state._asdict().keys() - {"part", *_SHARED}
    states = [
        state._replace(part=part, **{name: _aligned_copy(getattr(state, name)) for name in apart})
        for part in range(state.boxes.shape[1])
    ]

    def advance(part: Any) -> None:
        engine.advance_part(net, part, min(now + step, cycle))

    with counting("cycles", cycle) as count, ThreadPoolExecutor(len(states)) as threads:
        while (now := int(states[0].counters[engine.NOW])) < cycle:
            count.done_units, count.done = now, float(now)
            states = _with_room(states)
            state.boxes[..., 0, engine.MESSAGE] = 0
            list(threads.map(advance, states))
    return _merge(net, states)


def _aligned_copy(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that shares no cache line with other data, which other threads write."""
    memory = np.empty(array.nbytes + 2 * _LINE_BYTES, dtype=np.uint8)
    first = -memory.ctypes.data % _LINE_BYTES
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def _with_room(states: list[Any]) -> list[Any]:
    """States with room to double; no part knows the oldest packet of all."""
    created = int(states[0].counters[engine.CREATED])
    oldest = created
    for state in states:
        first, slots = int(state.counters[engine.OLDEST]), len(state.packets)
        alive = np.flatnonzero(state.packets[:, engine.BORN] >= 0)
        oldest = min(oldest, first + int(((alive - first) % slots).min(initial=created - first)))
    for state in states:
        state.counters[engine.OLDEST] = oldest
    while 2 * (created - (oldest & ~63)) > len(states[0].packets):
        states = [more_slots(state) for state in states]
    return states


def _merge(net: Any, states: Sequence[Any]) -> Any:
    """The state of the network, without the packets of all parts but the first."""

    def total(name: str) -> Any:
        return np.sum([getattr(state, name) for state in states], axis=0)

    counters = total("counters")
    same = [engine.NOW, engine.CREATED, engine.W_CREATED]  # each part counts all packets
    counters[same] = states[0].counters[same]
    records = states[0].records.copy()
    carried = slice(engine.CARRIED, None, 1 << int(net.parameters[engine.RECORD_BITS]))
    records[carried] = np.sum([state.records[carried] for state in states], axis=0)
    return states[0]._replace(
        counters=counters, records=records, histogram=total("histogram"), batches=total("batches")
    )
