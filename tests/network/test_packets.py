"""The packet simulator: against a second simulator that shares no code, exact
latencies, conservation, known saturation points.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from railx.families import build_routing
from railx.network.packets import engine, merged, simulate, sweep_loads, swept_seeds
from railx.network.packets.layout import Trace, build_net, build_state
from railx.network.packets.simulate import (
    PacketResult,
    run_until,
    simulate_packets,
    simulate_trace,
    speed_of,
    summary_row,
)
from railx.network.packets.zero_load import zero_load_latency_cycles
from railx.network.settings import (
    AllToAllTraffic,
    HotSpotTraffic,
    MatrixTraffic,
    NeighbourTraffic,
    PacketNetworkSettings,
    PermutationTraffic,
    SweepSettings,
    TrafficSettings,
    UniformTraffic,
)
from railx.network.throughput import ideal_bound, uniform_lane_loads
from railx.network.traffic import repeat_seeds, traffic_flows
from railx.settings import SettingsError
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    path_lengths,
    table_lane_loads,
    with_virtual_channels,
)
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import LINK_KINDS, Links, Topology
from tests.builders import build, checked
from tests.commands import loaded
from tests.network.reference_simulator import Reference


def model(**changes: Any) -> PacketNetworkSettings:
    settings: PacketNetworkSettings = checked("network", "packet", **changes)
    return settings


def burst(topology: Topology, packets: int, cycles: int, seed: int) -> Trace:
    """Random packets; the first half wants few destinations, so that queues form."""
    rng = np.random.default_rng(seed)
    src = rng.integers(topology.chips, size=packets)
    dst = rng.integers(topology.chips, size=packets)
    dst[::2] %= 2
    dst = np.where(dst == src, (dst + 1) % topology.chips, dst)
    return Trace(np.sort(rng.integers(cycles, size=packets)), src, dst)


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "railx": ("railx_hyperx", {"m": 2, "n": 1}, {}),
    "railx tight": ("railx_hyperx", {"m": 2, "n": 1}, {"buffer_flits": 4}),
    "railx balanced": (
        "railx_hyperx",
        {"m": 2, "n": 1},
        {"routing": "balanced", "buffer_flits": 8},
    ),
    "railx adaptive": (
        "railx_hyperx",
        {"m": 2, "n": 1},
        {"routing": "adaptive", "buffer_flits": 8},
    ),
    "railx lanes adaptive": (
        "railx_hyperx",
        {"m": 1, "n": 2},
        {"routing": "adaptive", "buffer_flits": 8},
    ),
    "railx narrow": (
        "railx_hyperx",
        {"m": 2, "n": 1, "internal_width": 0.5},
        {"buffer_flits": 9, "packet_flits": 3},
    ),
    "torus": ("torus_2d", {"x_scale": 4, "y_scale": 3, "n": 2}, {"buffer_flits": 4}),
    "torus slow": (
        "torus_2d",
        {"x_scale": 4, "y_scale": 4, "n": 1, "latency_ns": 70},
        {"source_cycles": 0},
    ),
    "mesh": ("mesh_2d", {"x_scale": 4, "y_scale": 3, "n": 1}, {"buffer_flits": 4}),
    "mesh one port": (
        "mesh_2d",
        {"x_scale": 4, "y_scale": 3},
        {"injection_ports": 1, "ejection_ports": 1, "buffer_flits": 8},
    ),
    "torus ports": (
        "torus_2d",
        {"x_scale": 4, "y_scale": 4},
        {"injection_ports": 2, "ejection_ports": 3, "buffer_flits": 4},
    ),
    "railx ports": (
        "railx_hyperx",
        {"m": 2, "n": 1},
        {"injection_ports": 3, "ejection_ports": 1, "buffer_flits": 4},
    ),
    "fat tree": ("fat_tree", {"switch_radix": 4, "planes": 2}, {"buffer_flits": 4}),
    "mesh 3 channels": (
        "mesh_2d",
        {"x_scale": 4, "y_scale": 3, "n": 1},
        {"virtual_channels": 3, "buffer_flits": 4},
    ),
    "torus 3 channels": (
        "torus_2d",
        {"x_scale": 4, "y_scale": 3, "n": 2},
        {"virtual_channels": 3, "buffer_flits": 4},
    ),
    "torus 5 channels": (
        "torus_2d",
        {"x_scale": 4, "y_scale": 4},
        {"routing": "balanced", "virtual_channels": 5, "buffer_flits": 8, "ejection_ports": 2},
    ),
    "railx 7 channels": (
        "railx_hyperx",
        {"m": 2, "n": 1},
        {"routing": "balanced", "virtual_channels": 7, "buffer_flits": 4},
    ),
    "railx adaptive 6 channels": (
        "railx_hyperx",
        {"m": 2, "n": 1},
        {"routing": "adaptive", "virtual_channels": 6, "buffer_flits": 4},
    ),
    "railx as its simulator": (
        "railx_hyperx",
        {"m": 2, "n": 2, "internal_width": 1},
        {"router": "railx_simulator"},
    ),
    "railx as its simulator, tight": (
        "railx_hyperx",
        {"m": 2, "n": 1},
        {"router": "railx_simulator", "buffer_flits": 4},
    ),
    "torus as its simulator": (
        "torus_2d",
        {"x_scale": 4, "y_scale": 3, "n": 2},
        {"router": "railx_simulator", "routing": "min_inside", "buffer_flits": 8},
    ),
    "mesh as its simulator, 3 channels": (
        "mesh_2d",
        {"x_scale": 4, "y_scale": 3, "n": 1},
        {"router": "railx_simulator", "virtual_channels": 3, "buffer_flits": 4},
    ),
    "torus most room": (
        "torus_2d",
        {"x_scale": 4, "y_scale": 3, "n": 3},
        {"parallel_channels": "most_room", "buffer_flits": 12},
    ),
    "fat tree 4 channels": (
        "fat_tree",
        {"switch_radix": 4, "planes": 2},
        {"virtual_channels": 4, "buffer_flits": 8},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_packet_arrives_as_in_the_reference(case: str) -> None:
    name, sizes, changes = CASES[case]
    topology, network = build(name, **sizes), model(**changes)
    table = with_virtual_channels(
        topology, build_routing(topology, network.routing), network.virtual_channels
    )
    trace = burst(topology, 360, 20, seed=3)
    reference = Reference(topology, table, network, seed=5)
    expected = reference.run(trace.cycle.tolist(), trace.src.tolist(), trace.dst.tolist(), 1000)
    assert simulate_trace(topology, table, trace, network, cycles=1000, seed=5).tolist() == expected
    assert min(expected) > 0
    # The case is worth its name only where packets had to wait.
    alone = zero_load_latency_cycles(topology, table, network)
    assert np.mean(np.array(expected) - trace.cycle) > 1.1 * alone


def alone(
    topology: Topology,
    table: RoutingTable,
    network: PacketNetworkSettings,
    src: np.ndarray,
    dst: np.ndarray,
) -> np.ndarray:
    """Latencies of packets that never meet: each has the network for itself for 300
    cycles.
    """
    cycle = np.arange(len(src)) * 300
    trace = Trace(cycle, src, dst)
    return simulate_trace(topology, table, trace, network, cycles=len(src) * 300, seed=1) - cycle


def pairs(topology: Topology, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    src = rng.integers(topology.chips, size=count)
    return src, (src + rng.integers(1, topology.chips, size=count)) % topology.chips


@pytest.mark.parametrize("name", ["mesh_2d", "torus_2d"])
def test_one_packet_takes_4_plus_2_cycles_a_hop(name: str) -> None:
    """4 flits over links of width 1 and latency 1: 2 + sum(1 + 1) + (4 - 1 - 1)."""
    topology, network = build(name, x_scale=8, y_scale=8, n=1), model()
    src, dst = pairs(topology, 200)
    steps = np.abs(np.array([src % 8 - dst % 8, src // 8 - dst // 8]))
    hops = (np.minimum(steps, 8 - steps) if name == "torus_2d" else steps).sum(axis=0)
    assert (
        alone(topology, build_routing(topology, "min"), network, src, dst).tolist()
        == (4 + 2 * hops).tolist()
    )


def test_one_packet_in_railx_takes_2_cycles_inside_a_node_and_11_outside() -> None:
    topology, network = build("railx_hyperx"), model()
    table = build_routing(topology, "min")
    src, dst = pairs(topology, 300)
    ways = path_lengths(topology, table)
    links, external = ways.links[src, dst], ways.external_links[src, dst]
    expected = 2 + 2 * (links - external) + 11 * external
    assert alone(topology, table, network, src, dst).tolist() == expected.tolist()
    assert zero_load_latency_cycles(topology, table, network) == pytest.approx(
        2 + np.sum(2 * (ways.links - ways.external_links) + 11 * ways.external_links) / (100 * 99),
        rel=1e-12,
    )


def line_of_chips(gbps: list[float], latency_ns: list[float]) -> Topology:
    """Chips in a row, link i from chip i to chip i + 1 with its own rate and latency
    (and the same back).
    """
    count = len(gbps)
    forth = np.arange(count, dtype=np.int32)
    both = [
        np.concatenate(part)
        for part in ((forth, forth + 1), (forth + 1, forth), (gbps, gbps), (latency_ns, latency_ns))
    ]
    ones = np.ones(2 * count, dtype=np.int32)
    links = Links(both[0], both[1], np.full(2 * count, 2, np.int8), both[2], both[3], -ones, ones)
    return Topology(
        SimpleNamespace(family="line", port_gbps=100.0),
        count + 1,
        count + 1,
        0,
        np.arange(count + 1, dtype=np.int32),
        links,
        None,
    )


def line_table(topology: Topology) -> RoutingTable:
    builder = TableBuilder(topology, "by hand", states=1, virtual_channels=1)
    chip, to = np.arange(topology.chips)[:, None], np.arange(topology.chips)[None, :]
    builder.entry[0] = builder.single(builder.pools_between(chip, chip + np.sign(to - chip), 0), 0)
    return builder.build()


@pytest.mark.parametrize(
    ("gbps", "latency_ns", "expected"),
    [
        ([100.0], [10.0], 2 + 4),  # one link of width 1, latency 1: busy longer than its head flies
        ([100.0], [0.0], 2 + 4),
        ([100.0], [50.0], 2 + 6),
        ([400.0, 100.0], [10.0, 10.0], 2 + 2 + 4),
        ([100.0, 400.0], [10.0, 10.0], 2 + 2 + 2),  # only the last link's width counts
        ([50.0, 25.0, 12.5], [30.0, 0.0, 10.0], 2 + 4 + 1 + 32),
        ([300.0], [0.0], 2 + 2),  # 4 flits over width 3: 2 cycles
    ],
)
def test_zero_load_formula_on_a_line(
    gbps: list[float], latency_ns: list[float], expected: int
) -> None:
    topology, network = line_of_chips(gbps, latency_ns), model()
    table = line_table(topology)
    src, dst = np.array([0]), np.array([len(gbps)])
    assert alone(topology, table, network, src, dst).tolist() == [expected]
    chips = range(len(gbps) + 1)
    ways = np.array([(a, b) for a in chips for b in chips if a != b]).T
    every = alone(topology, table, network, *ways)
    assert zero_load_latency_cycles(topology, table, network) == pytest.approx(every.mean())


def test_two_packets_for_one_link_go_back_to_back_the_older_first() -> None:
    topology, network = line_of_chips([100.0], [10.0]), model()
    trace = Trace(np.array([0, 0, 1]), np.zeros(3, int), np.ones(3, int))
    arrived = simulate_trace(topology, line_table(topology), trace, network, cycles=50, seed=1)
    assert arrived.tolist() == [6, 10, 14]


def test_a_packet_does_not_wait_for_itself_at_the_link_that_it_has_chosen() -> None:
    """Chip 0 chooses the first of two links from 1 to 2. At 1 the other one, a cycle
    further, would be chosen if the packet were counted at the first.
    """
    topology = line_of_chips([100.0, 100.0], [10.0, 10.0])
    twice = (np.append(column, column[1]) for column in vars(topology.links).values())
    topology = dataclasses.replace(topology, links=Links(*twice))
    topology.links.latency_ns[4] = 90.0
    builder = TableBuilder(topology, "adaptive", states=2, virtual_channels=1)
    onward, near, far = (builder.pool([row], 0) for row in (0, 1, 4))
    ends = builder.choice_set([(onward, 1)] * 2, probes=[1, 4], delays_ns=[0.0, 90.0])
    builder.entry[0, 0, 2] = ends
    builder.entry[1, 1, 2] = builder.choice_set([(near, 1), (far, 1)], delays_ns=[0.0, 10.0])
    src, dst = np.array([0]), np.array([2])
    assert alone(topology, builder.build(), model(), src, dst).tolist() == [2 + 2 + 4]


@pytest.mark.parametrize(
    ("name", "routing"),
    [("railx_hyperx", "min"), ("railx_hyperx", "adaptive"), ("torus_2d", "balanced")],
)
def test_mean_latency_of_a_quiet_network_is_the_zero_load_latency(name: str, routing: str) -> None:
    topology, network = build(name), model(routing=routing, measured_cycles=40000)
    table = build_routing(topology, routing)
    result = simulate_packets(topology, table, UniformTraffic("uniform", 0.004), network, 2)
    exact = zero_load_latency_cycles(topology, table, network)
    assert abs(result.latency_mean_cycles - exact) < 1.5 * result.latency_ci95_cycles + 0.02
    assert result.latency_ci95_cycles < 0.05 * exact
    assert result.accepted_flits_per_chip_cycle == pytest.approx(0.004, rel=0.02)


def live_packets(state: Any) -> np.ndarray:
    """Rows of the packets that exist; between cycles none has a turn."""
    assert not state.turns.any()
    assert not state.words.any()
    return state.packets[state.packets[:, engine.BORN] >= 0]


def channel_rows(net: Any, state: Any) -> np.ndarray:
    """The records of the channels, one a row."""
    return state.records.reshape(-1, 1 << net.parameters[engine.RECORD_BITS])


def fifo_numbers(net: Any, fifos: np.ndarray) -> np.ndarray:
    """Numbers of FIFOs, channel * virtual channels + lane, from their offsets."""
    channel, offset = np.divmod(fifos, 1 << net.parameters[engine.RECORD_BITS])
    lane, rest = np.divmod(offset - engine.CHANNEL_COLUMNS, engine.FIFO_COLUMNS)
    assert (rest == 0).all()
    return channel * net.parameters[engine.VCS] + lane


def fifo_rows(net: Any, state: Any) -> np.ndarray:
    """First packet, last packet and packets that fit of each FIFO."""
    number = int(net.parameters[engine.VCS])
    end = engine.CHANNEL_COLUMNS + engine.FIFO_COLUMNS * number
    rows = channel_rows(net, state)[:, engine.CHANNEL_COLUMNS : end]
    return rows.reshape(-1, engine.FIFO_COLUMNS) >> np.array([0, 0, 1])


@pytest.mark.parametrize(
    "changes", [{}, {"injection_ports": 2, "ejection_ports": 2}, {"routing": "adaptive"}]
)
def test_no_packet_is_lost_and_no_buffer_overflows_at_any_time(changes: dict[str, Any]) -> None:
    topology = build("railx_hyperx", m=2, n=1)
    network = model(
        buffer_flits=18, packet_flits=5, warmup_cycles=0, measured_cycles=2000, **changes
    )
    table = build_routing(topology, network.routing)
    net = build_net(topology, table, UniformTraffic("uniform", 3.0), network, 1)
    state = build_state(topology, table, net, network, 1)
    for cycle in range(13, 1500, 37):
        state = run_until(net, state, cycle)
        counters, live = state.counters, live_packets(state)
        queued = live[:, engine.FIFO] < 0
        assert len(live) == counters[engine.CREATED] - counters[engine.DELIVERED]
        assert queued.sum() == counters[engine.CREATED] - counters[engine.INJECTED]
        assert counters[engine.CREATED] == int(cycle * 3.0 * 36 / 5 + 1e-9)
        room = fifo_rows(net, state)[:, engine.ROOM]
        held = np.bincount(fifo_numbers(net, live[~queued, engine.FIFO]), minlength=len(room))
        assert (room >= 0).all()
        assert (
            held <= 18 // 5 - room
        ).all()  # what stands or flies there is reserved; so are grants that wait
        assert counters[engine.DELIVERED] == state.batches[:, 1].sum() == state.histogram.sum()
        assert counters[engine.CREATED] - counters[engine.OLDEST] <= len(state.packets)


@pytest.mark.parametrize(
    "changes", [{}, {"injection_ports": 1, "ejection_ports": 2}, {"routing": "adaptive"}]
)
def test_a_drained_network_is_empty(changes: dict[str, Any]) -> None:
    topology, network = build("railx_hyperx", m=2, n=1), model(buffer_flits=8, **changes)
    table = build_routing(topology, network.routing)
    net = build_net(topology, table, burst(topology, 3000, 100, seed=1), network, 1)
    state = run_until(net, build_state(topology, table, net, network, 1), 20000)
    assert state.counters[engine.DELIVERED] == 3000
    channels, fifos = channel_rows(net, state), fifo_rows(net, state)
    assert (fifos[:, engine.ROOM] == 2).all()
    assert (fifos[:, : engine.ROOM] == -1).all()
    assert (channels[:, [engine.PORT, engine.WAITING]] == -1).all()
    assert (channels[:, engine.ENDS_NEXT] == engine.IDLE).all()
    assert (channels[:, engine.KIND] % 2 == 0).all()
    assert (state.row_queue == 0).all()
    assert (state.wheel == -1).all()
    assert (state.pools[:, [engine.QUEUE_HEAD, engine.QUEUE_TAIL, engine.HEAP]] == -1).all()


FAMILIES: list[tuple[str, dict[str, Any], str]] = [
    ("mesh_2d", {"x_scale": 4, "y_scale": 3}, "min"),
    ("mesh_2d", {"x_scale": 4, "y_scale": 3}, "balanced"),
    ("torus_2d", {"x_scale": 4, "y_scale": 5, "n": 2}, "min"),
    ("torus_2d", {"x_scale": 4, "y_scale": 5, "n": 2}, "balanced"),
    ("hyperx", {"shape": [3, 4]}, "valiant"),
    ("railx_hyperx", {"m": 2, "n": 1}, "balanced"),
    ("railx_hyperx", {"m": 2, "n": 1}, "adaptive"),
    ("fat_tree", {"switch_radix": 4, "planes": 2}, "min"),
]


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    st.sampled_from(FAMILIES), st.integers(0, 6), st.integers(1, 3), st.integers(0, 2**16)
)
def test_any_number_of_virtual_channels_loses_nothing_and_cannot_block(
    family: tuple[str, dict[str, Any], str], spare: int, packets_a_buffer: int, seed: int
) -> None:
    """Under overload from packets for few chips, with small buffers."""
    name, sizes, routing = family
    topology = build(name, **sizes)
    table = build_routing(topology, routing)
    number = table.classes + spare
    network = model(routing=routing, virtual_channels=number, buffer_flits=4 * packets_a_buffer)
    given = with_virtual_channels(topology, table, number)
    check_deadlock_free(topology, given)
    assert given.virtual_channels == number
    assert given.classes == table.classes
    trace = burst(topology, 400, 20, seed)
    net = build_net(topology, given, trace, network, seed)
    state = build_state(topology, given, net, network, seed)
    for cycle in range(5, 60, 5):
        state = run_until(net, state, cycle)
        live = live_packets(state)
        inside = live[:, engine.FIFO] >= 0
        assert len(live) == state.counters[engine.CREATED] - state.counters[engine.DELIVERED]
        room = fifo_rows(net, state)[:, engine.ROOM]
        held = np.bincount(fifo_numbers(net, live[inside, engine.FIFO]), minlength=len(room))
        assert (held <= packets_a_buffer - room).all()
        for fifo in set(live[inside, engine.FIFO].tolist()):
            in_order(state, fifo)
    state = run_until(net, state, 5000)
    assert state.counters[engine.DELIVERED] == 400
    assert (np.asarray(state.arrival) > trace.cycle).all()


def in_order(state: Any, fifo: int) -> None:
    """The list of a FIFO ends, and holds its own packets only, each once."""
    seen: list[int] = []
    packet = int(state.records[fifo + engine.HEAD])
    while packet >= 0:
        assert packet not in seen
        row = packet % len(state.packets)
        assert state.packets[row, engine.FIFO] == fifo
        seen.append(packet)
        packet = int(state.packets[row, engine.NEXT])
    assert (seen[-1] if seen else -1) == state.records[fifo + engine.TAIL]


@pytest.mark.parametrize(
    ("name", "sizes", "routing", "expected"),
    [
        ("mesh_2d", {"x_scale": 6, "y_scale": 6}, "min", [0, 0, 0, 0]),
        # Most packets stand before the wrap link.
        ("torus_2d", {"x_scale": 6, "y_scale": 6, "n": 1}, "min", [0, 1, 1]),
        ("torus_2d", {"x_scale": 6, "y_scale": 6, "n": 1}, "balanced", [0, 1, 0]),
        ("railx_hyperx", {"m": 2, "n": 1}, "min", [0, 1, 2, 2, 1, 2]),
        ("fat_tree", {"switch_radix": 4, "planes": 2}, "min", [0, 1, 2, 0, 1, 2, 0]),
    ],
)
def test_packets_take_every_channel_of_their_class_and_none_of_another(
    name: str, sizes: dict[str, Any], routing: str, expected: list[int]
) -> None:
    """The classes of channels, the buffers of pools, and where packets stand."""
    topology, number = build(name, **sizes), len(expected)
    network = model(routing=routing, virtual_channels=number, buffer_flits=4)
    table = with_virtual_channels(topology, build_routing(topology, routing), number)
    assert table.channel_class.tolist() == expected
    net = build_net(topology, table, UniformTraffic("uniform", 3.0), network, 1)
    state = build_state(topology, table, net, network, 1)
    for pool, own in enumerate(table.pool_class):
        first, count, step, _ = net.pool_range[pool].tolist()
        fifos = first + step * np.arange(count)
        if step == 0:
            fifos = net.pool_fifo[first : first + count]
        fifos = fifo_numbers(net, fifos)
        assert len(set(fifos.tolist())) == len(fifos)
        assert {expected[channel] for channel in fifos % number} == {own}
        assert set((fifos % number).tolist()) == set(np.flatnonzero(np.array(expected) == own))
    taken: set[int] = set()
    for cycle in range(20, 400, 20):
        state = run_until(net, state, cycle)
        live = live_packets(state)
        inside = live[live[:, engine.FIFO] >= 0, engine.FIFO]
        taken |= set((fifo_numbers(net, inside) % number).tolist())
    assert taken == set(range(number))


def test_a_lane_beside_is_taken_before_a_second_channel_of_the_same_lane() -> None:
    """Two packets at once over a link of two lanes with two channels: both leave at
    once.
    """
    topology = build("torus_2d", x_scale=4, y_scale=4, n=2)
    table = build_routing(topology, "min")
    trace = Trace(np.zeros(2, int), np.zeros(2, int), np.ones(2, int))
    for number in (2, 4, 6):
        arrived = simulate_trace(
            topology, table, trace, model(virtual_channels=number), cycles=50, seed=1
        )
        assert arrived[0] == arrived[1] > 0


def test_parallel_rings_carry_what_their_loads_say() -> None:
    """Eight rings between the same chips share the packets, at any room of buffers."""
    topology = build("opus_rails", chips_per_server=4, servers=8, ocs_ports=16)
    table = build_routing(topology, "min")
    load = 0.8 * bound(topology, table)
    for buffer_flits in (64, 1024):
        changes = {"buffer_flits": buffer_flits, "parallel_channels": "most_room"}
        network = model(**changes, warmup_cycles=500, measured_cycles=1000)
        result = simulate_packets(topology, table, UniformTraffic("uniform", load), network, 1)
        assert result.accepted_flits_per_chip_cycle > 0.97 * load


def test_fewer_channels_than_classes_are_refused() -> None:
    topology = build("railx_hyperx", m=2, n=1)
    table = build_routing(topology, "balanced")
    with pytest.raises(
        SettingsError,
        match=r"^virtual_channels: got 2; allowed: null or at least 3, the classes of routing"
        " balanced on railx_hyperx$",
    ):
        simulate_packets(
            topology, table, UniformTraffic("uniform", 0.1), model(virtual_channels=2), 1
        )


def test_the_published_number_is_the_same_as_none_given() -> None:
    topology = build("railx_hyperx", m=2, n=1)
    table = build_routing(topology, "balanced")
    runs = [
        flat(
            simulate_packets(
                topology,
                table,
                UniformTraffic("uniform", 1.0),
                model(
                    routing="balanced",
                    virtual_channels=number,
                    warmup_cycles=100,
                    measured_cycles=400,
                ),
                4,
            )
        )
        for number in (None, 3, 4)
    ]
    assert runs[0] == runs[1]
    assert runs[0]["virtual_channels"] == 3
    assert runs[2]["virtual_channels"] == 4
    assert runs[2]["latency_mean_cycles"] != runs[0]["latency_mean_cycles"]


def test_three_channels_take_the_mesh_to_its_bound() -> None:
    """XY on one channel ends 7 % below what the bisection carries; three reach it."""
    topology = build("mesh_2d")
    table = build_routing(topology, "min")
    limit = bound(topology, table)
    accepted = {
        number: simulate_packets(
            topology,
            table,
            UniformTraffic("uniform", limit),
            model(virtual_channels=number),
            1,
        ).accepted_flits_per_chip_cycle
        for number in (None, 3)
    }
    assert accepted[None] < 0.95 * limit
    assert accepted[3] > 0.975 * limit


def flat(result: PacketResult) -> dict[str, Any]:
    plain = dataclasses.asdict(result)
    return {
        key: np.asarray(value).tolist()
        for key, value in plain.items()
        if not key.endswith("per_second")
    }


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    topology, network = (
        build("railx_hyperx", m=2, n=1),
        model(routing="balanced", warmup_cycles=200, measured_cycles=800),
    )
    table = build_routing(topology, "balanced")
    runs = [
        flat(simulate_packets(topology, table, UniformTraffic("uniform", 0.7), network, seed))
        for seed in (4, 4, 5)
    ]
    assert runs[0] == runs[1]
    assert runs[0]["channel_load"] != runs[2]["channel_load"]
    assert runs[0]["created"] == runs[2]["created"]


def test_a_run_in_many_stretches_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, traffic = build("torus_2d"), UniformTraffic("uniform", 2.0)
    setting = (topology, build_routing(topology, "balanced"), traffic, model(measured_cycles=500))
    whole = simulate_packets(*setting, 6)
    monkeypatch.setattr(simulate, "_CHIP_CYCLES", 37 * topology.chips)
    assert flat(simulate_packets(*setting, 6)) == flat(whole)


def bound(topology: Topology, table: RoutingTable) -> float:
    """Largest load that no channel refuses, from the exact static loads."""
    width = topology.links.gbps / topology.settings.port_gbps
    return float((width / np.maximum(table_lane_loads(topology, table), 1e-12)).min())


@pytest.mark.parametrize(
    ("name", "sizes", "routing"),
    [
        ("railx_hyperx", {}, "min"),
        ("railx_hyperx", {}, "balanced"),
        ("torus_2d", {"n": 1}, "min"),
        ("mesh_2d", {}, "min"),
        ("fat_tree", {"switch_radix": 4, "planes": 2}, "min"),
    ],
)
def test_accepted_traffic_stays_below_the_static_bound(
    name: str, sizes: dict[str, Any], routing: str
) -> None:
    topology, network = build(name, **sizes), model(routing=routing, measured_cycles=4000)
    table = build_routing(topology, routing)
    limit = bound(topology, table)
    result = simulate_packets(topology, table, UniformTraffic("uniform", 1.3 * limit), network, 1)
    assert 0.6 * limit < result.accepted_flits_per_chip_cycle < 1.01 * limit
    assert result.channel_load.max() <= 1.001
    below = simulate_packets(topology, table, UniformTraffic("uniform", 0.5 * limit), network, 1)
    assert below.accepted_flits_per_chip_cycle == pytest.approx(0.5 * limit, rel=0.02)


@pytest.mark.parametrize(
    ("name", "routing"),
    [
        ("railx_hyperx", "balanced"),
        ("railx_hyperx", "adaptive"),
        pytest.param("railx_hyperx_m4n2", "balanced", marks=pytest.mark.slow),
    ],
)
def test_nine_tenths_of_the_ideal_all_to_all_arrive(name: str, routing: str) -> None:
    topology, network = build(name), model(routing=routing)
    table = build_routing(topology, routing)
    ideal = ideal_bound(topology, uniform_lane_loads(topology, "balanced"))
    for offered in (0.95 * ideal, 1.1 * ideal):  # below and above what the rails can carry
        result = simulate_packets(topology, table, UniformTraffic("uniform", offered), network, 1)
        assert result.accepted_flits_per_chip_cycle > 0.9 * ideal


@pytest.mark.parametrize(
    ("name", "capacity"),
    [("mesh_2d", 0.5), ("torus_2d", 1.0)],
)
def test_saturation_of_the_textbook_networks(name: str, capacity: float) -> None:
    """Dimension order on 8 x 8 chips, uniform traffic: the bisection carries 4 / k and
    8 / k flits/(chip cycle).

    Dally and Towles, Principles and Practices of Interconnection Networks, ch. 3; self
    traffic excluded raises both by 64/63. Routers with virtual-channel flow control
    saturate at 60 to 90 % of capacity there (ch. 25); this one has no pipeline, instant
    credits and 64-flit buffers, so it may come closer, but not past 1.
    """
    topology, network = (
        build(name, x_scale=8, y_scale=8, n=1),
        model(routing="min" if name == "mesh_2d" else "balanced"),
    )
    table = build_routing(topology, network.routing)
    settings = SweepSettings(
        "t", UniformTraffic("uniform", 1.0), network, (0.3 * capacity, capacity), 0.97, 0.05, 1
    )
    swept = sweep_loads(topology, table, settings, 1, "textbook", bound=bound(topology, table))
    rows, summary = swept.rows, swept.summary
    assert 0.65 * capacity < summary["saturation_flits_per_chip_cycle"] < 64 / 63 * capacity
    assert (
        summary["max_accepted_flits_per_chip_cycle"] <= 1.01 * summary["bound_flits_per_chip_cycle"]
    )
    assert summary["bound_flits_per_chip_cycle"] == pytest.approx(
        64 / 63 * capacity * 63 / 64, rel=0.02
    )
    loads = [row["offered_flits_per_chip_cycle"] for row in rows]
    assert loads == sorted(set(loads))
    flags = [row["saturated"] for row in rows]
    assert flags == sorted(flags)  # from here on saturated
    last_free, first_saturated = (
        max(x for x, f in zip(loads, flags, strict=True) if not f),
        loads[flags.index(True)],
    )
    assert summary["saturation_flits_per_chip_cycle"] == last_free
    assert first_saturated - last_free <= 0.05 * first_saturated
    quiet = [row["latency_mean_cycles"] for row in rows if not row["saturated"]]
    assert quiet == sorted(quiet)
    assert quiet[0] > summary["zero_load_latency_cycles"]


@pytest.mark.parametrize(("name", "accepted"), [("mesh_2d", 0.458), ("torus_2d", 0.80)])
def test_saturation_of_the_textbook_networks_stays_where_it_was_found(
    name: str, accepted: float
) -> None:
    """93 % of what the channels of the mesh carry at best, 81 % of those of the torus,
    whose virtual channels order the packets.
    """
    topology, network = (
        build(name, x_scale=8, y_scale=8, n=1),
        model(routing="min" if name == "mesh_2d" else "balanced"),
    )
    table = build_routing(topology, network.routing)
    load = accepted / 0.98
    rates = [
        simulate_packets(
            topology, table, UniformTraffic("uniform", offered), network, seed
        ).accepted_flits_per_chip_cycle
        for offered, seed in ((load, 1), (load, 2), (0.9 * accepted, 1))
    ]
    assert rates[:2] == pytest.approx([accepted, accepted], rel=0.02)
    assert rates[2] == pytest.approx(0.9 * accepted, rel=0.01)


@pytest.mark.parametrize("side", [8, 9])
def test_a_torus_accepts_more_where_packets_that_stay_off_the_wrap_draw_their_channel(
    side: int,
) -> None:
    """Odd rings have no ties, so that on 9 x 9 chips the draw is all that tells the two
    routings apart.
    """
    topology = build("torus_2d", x_scale=side, y_scale=side, n=1)
    tables = {routing: build_routing(topology, routing) for routing in ("min", "balanced")}
    limit = bound(topology, tables["balanced"])
    for share in (0.85, 1.2):
        accepted = {
            routing: (
                simulate_packets(
                    topology,
                    table,
                    UniformTraffic("uniform", share * limit),
                    model(routing=routing),
                    1,
                ).accepted_flits_per_chip_cycle
            )
            for routing, table in tables.items()
        }
        assert accepted["balanced"] > 1.02 * accepted["min"]


def star(chips: int, virtual_channels: int) -> tuple[Topology, RoutingTable]:
    """Chips around one switch; every packet draws one of the virtual channels for each
    of its two links.
    """
    chip, hub = np.arange(chips, dtype=np.int32), np.full(chips, chips, dtype=np.int32)
    ends = np.concatenate([chip, hub]), np.concatenate([hub, chip])
    plain = [np.full(2 * chips, value) for value in (100.0, 10.0)]
    ones = np.ones(2 * chips, dtype=np.int32)
    links = Links(*ends, np.full(2 * chips, LINK_KINDS.index("leaf"), np.int8), *plain, -ones, ones)
    settings = SimpleNamespace(family="star", port_gbps=100.0)
    topology = Topology(settings, chips, chips, 1, chip, links, None)
    builder = TableBuilder(topology, "by hand", states=1, virtual_channels=virtual_channels)
    sets = [
        builder.choice_set([(builder.pool([row], vc), 0) for vc in range(virtual_channels)])
        for row in range(2 * chips)
    ]
    builder.entry[0][:chips], builder.entry[0][chips] = (
        np.array(sets[:chips])[:, None],
        sets[chips:],
    )
    builder.entry[0][chip, chip] = -1
    return topology, builder.build()


def slotted_switch(ports: int, queues: int, slots: int) -> float:
    """Throughput of an input-queued switch under overload: each input offers the fronts
    of its queues and sends one packet a slot, the oldest first.
    """
    rng = np.random.default_rng(1)
    target, since, sent = rng.integers(ports, size=ports * queues), np.zeros(ports * queues), 0
    for slot in range(slots):
        taken, busy = np.zeros(ports, bool), np.zeros(ports, bool)
        for place in np.lexsort((rng.random(ports * queues), since)):
            if not taken[target[place]] and not busy[place // queues]:
                taken[target[place]] = busy[place // queues] = True
                target[place], since[place] = rng.integers(ports), slot + 1
                sent += slot >= slots // 4
    return sent / (ports * (slots - slots // 4))


@pytest.mark.parametrize("virtual_channels", [1, 2, 3, 6])
def test_a_switch_saturates_where_its_heads_of_line_block(virtual_channels: int) -> None:
    """One queue an input: 2 - sqrt(2) for many ports (Karol, Hluchyj and Morgan, IEEE
    Trans. Communications 35, 1987); a model that shares no code gives that and the
    points of more queues.
    """
    topology, table = star(64, virtual_channels)
    result = simulate_packets(
        topology, table, UniformTraffic("uniform", 1.1), model(measured_cycles=6000), 1
    )
    expected = slotted_switch(64, virtual_channels, 300)
    assert result.accepted_flits_per_chip_cycle == pytest.approx(expected, rel=0.03)
    if virtual_channels == 1:
        assert result.accepted_flits_per_chip_cycle == pytest.approx(2 - np.sqrt(2), rel=0.03)


def test_a_network_that_is_never_quiet_still_has_a_bracket() -> None:
    """All given loads are saturated: the search goes down."""
    topology, network = build("mesh_2d"), model(warmup_cycles=500, measured_cycles=1000)
    settings = SweepSettings("t", UniformTraffic("uniform", 1.0), network, (2.0,), 0.95, 0.1, 1)
    summary = sweep_loads(topology, build_routing(topology, "min"), settings, 1, "mesh").summary
    assert 0.3 < summary["saturation_flits_per_chip_cycle"] < 0.5
    up = dataclasses.replace(settings, loads=(0.1,))
    other = sweep_loads(topology, build_routing(topology, "min"), up, 1, "mesh").summary
    assert other["saturation_flits_per_chip_cycle"] == pytest.approx(
        summary["saturation_flits_per_chip_cycle"], rel=0.15
    )


def test_a_window_shorter_than_any_path_has_no_load_that_is_not_saturated() -> None:
    topology = build("mesh_2d", x_scale=2, y_scale=2, latency_ns=1e5)
    network = model(warmup_cycles=0, measured_cycles=100)
    settings = SweepSettings("t", UniformTraffic("uniform", 1.0), network, (0.5,), 0.95, 0.05, 1)
    swept = sweep_loads(topology, build_routing(topology, "min"), settings, 1, "mesh")
    assert all(row["saturated"] for row in swept.rows)
    assert swept.summary["saturation_flits_per_chip_cycle"] == 0


def test_a_repeated_sweep_is_the_sweeps_of_its_seeds_one_after_another() -> None:
    topology = build("mesh_2d", x_scale=4, y_scale=4)
    table = build_routing(topology, "min")
    network = model(warmup_cycles=300, measured_cycles=600)
    settings = SweepSettings(
        "t", UniformTraffic("uniform", 1.0), network, (0.2, 0.9), 0.95, 0.05, 3
    )
    asked: list[int] = []

    def limits(seed: int) -> tuple[float, float]:
        asked.append(seed)
        return 1.0 + len(asked), 2.0

    seeds = repeat_seeds(7, 3)
    swept = merged(swept_seeds(topology, table, settings, seeds, "mesh", limits))
    assert asked == list(seeds)
    alone = [
        sweep_loads(topology, table, settings, seed, "mesh", bound=2.0 + place, ideal=2.0)
        for place, seed in enumerate(seeds)
    ]
    own = ("saturation_flits_per_chip_cycle", "bound_flits_per_chip_cycle")
    assert swept.rows == [
        {**row, **{key: one.summary[key] for key in own}, "ideal_flits_per_chip_cycle": 2.0}
        for one in alone
        for row in one.rows
    ]
    points = sorted(one.summary[own[0]] for one in alone)
    assert [
        swept.summary[key.format("saturation")]
        for key in ("{}_least_flits_per_chip_cycle", own[0], "{}_most_flits_per_chip_cycle")
    ] == points
    assert swept.summary["bound_flits_per_chip_cycle"] == 3.0
    assert (swept.summary["runs"], swept.summary["repeats"]) == (len(swept.rows), 3)
    assert [(run["seed"], run["offered_flits_per_chip_cycle"]) for run in swept.speed] == [
        (row["seed"], row["offered_flits_per_chip_cycle"]) for row in swept.rows
    ]
    rates = {row["accepted_flits_per_chip_cycle"] for row in swept.rows if row["saturated"]}
    assert len(rates) >= 3, "seeds draw different packets"


@pytest.mark.parametrize(
    ("name", "routing"),
    [("railx_hyperx", "min"), ("railx_hyperx", "adaptive"), ("torus_2d", "min")],
)
def test_an_overloaded_network_keeps_delivering(name: str, routing: str) -> None:
    topology, network = build(name), model(routing=routing, buffer_flits=4)
    table = build_routing(topology, routing)
    net = build_net(topology, table, UniformTraffic("uniform", 4.0), network, 1)
    state, before, rates = build_state(topology, table, net, network, 1), 0, []
    for cycle in range(1000, 7001, 1000):
        state = run_until(net, state, cycle)
        rates.append(int(state.counters[engine.DELIVERED]) - before)
        before = int(state.counters[engine.DELIVERED])
    assert min(rates[1:]) > 0.5 * max(rates)


PATTERNS: list[TrafficSettings] = [
    UniformTraffic("uniform", 0.05),
    PermutationTraffic("permutation", 0.05, "random", 1),
    PermutationTraffic("permutation", 0.05, "transpose", 1),
    HotSpotTraffic("hot_spot", 0.05, 3, 0.4),
    HotSpotTraffic("hot_spot", 0.05, 1, 0.4),
    NeighbourTraffic("neighbour", 0.05),
    AllToAllTraffic("all_to_all", 0.05),
]


@pytest.mark.parametrize("traffic", PATTERNS, ids=lambda t: t.pattern)
def test_channels_carry_what_the_flows_of_the_pattern_say(traffic: TrafficSettings) -> None:
    topology, network = build("mesh_2d", x_scale=4, y_scale=4), model(measured_cycles=60000)
    table = build_routing(topology, "min")
    result = simulate_packets(topology, table, traffic, network, 3)
    flows = traffic_flows(topology, traffic, 3)
    exact = 0.05 * table_lane_loads(topology, table, flows.demand())
    assert result.accepted_flits_per_chip_cycle == pytest.approx(0.05, rel=0.02)
    assert np.allclose(result.channel_load, exact, rtol=0.12, atol=0.004)
    assert result.channel_load.sum() == pytest.approx(exact.sum(), rel=0.02)


def test_a_matrix_of_four_chips(tmp_path: Path) -> None:
    """A ring of four chips: 3 of 6 parts go from chip 0 to its neighbour 1, and so one
    link carries half of everything.
    """
    shares = np.array([[0, 3, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
    np.savetxt(tmp_path / "matrix.csv", shares, delimiter=",")
    topology, network = build("mesh_2d", x_scale=2, y_scale=2), model(measured_cycles=20000)
    traffic = MatrixTraffic("matrix", 0.4, str(tmp_path / "matrix.csv"))
    result = simulate_packets(topology, build_routing(topology, "min"), traffic, network, 1)
    links = topology.links
    load_of = {
        (int(a), int(b)): load
        for a, b, load in zip(links.src, links.dst, result.channel_load, strict=True)
    }
    assert result.hops_mean == 1
    assert load_of[0, 1] == pytest.approx(4 * 0.4 * 3 / 6, rel=0.03)
    assert load_of[1, 0] == pytest.approx(4 * 0.4 / 6, rel=0.06)
    assert load_of[0, 2] == 0
    # 0 -> 1 is full at a load of 0.5; beyond, the others still get through.
    over = simulate_packets(
        topology, build_routing(topology, "min"), dataclasses.replace(traffic, load=1.0), network, 1
    )
    assert over.accepted_flits_per_chip_cycle == pytest.approx((1 + 3 * 4 / 6) / 4, rel=0.02)


def test_one_injection_port_cannot_offer_more_than_one_flit_a_cycle() -> None:
    topology = build("railx_hyperx")
    table = build_routing(topology, "min")
    free = simulate_packets(topology, table, UniformTraffic("uniform", 1.3), model(), 1)
    one = simulate_packets(
        topology, table, UniformTraffic("uniform", 1.3), model(injection_ports=1), 1
    )
    out = simulate_packets(
        topology, table, UniformTraffic("uniform", 1.3), model(ejection_ports=1), 1
    )
    assert free.accepted_flits_per_chip_cycle > 1.25
    assert 0.9 < one.accepted_flits_per_chip_cycle <= 1.0
    assert 0.8 < out.accepted_flits_per_chip_cycle <= 1.0


def test_the_summary_has_what_the_command_line_promises() -> None:
    topology, network = build("railx_hyperx"), model()
    traffic = UniformTraffic("uniform", 0.5)
    result = simulate_packets(topology, build_routing(topology, "min"), traffic, network, 9)
    row = summary_row(topology, "railx", traffic, network, result, 9)
    promised = {
        "topology",
        "family",
        "chips",
        "traffic",
        "routing",
        "offered_flits_per_chip_cycle",
        "accepted_flits_per_chip_cycle",
        "latency_mean_cycles",
        "latency_ci95_cycles",
        "hops_mean",
        "seed",
        "fidelity",
    }
    assert promised <= set(row)
    assert set(speed_of(result)) == {"cycles_per_second", "flit_hops_per_second"}
    assert not set(speed_of(result)) & set(row), "a table depends on no machine"
    assert row["accepted_flits_per_chip_cycle"] == pytest.approx(0.5, rel=0.01)
    assert row["external_hops_mean"] == pytest.approx(
        2 * (100 - 100 / 5) / 99, rel=0.01
    )  # 2 (N - N / (r + 1)) / (N - 1)
    assert row["latency_p50_cycles"] <= result.latency_p99_cycles <= result.latency_max_cycles
    assert result.created == result.delivered + result.in_flight + result.queued
    assert result.packets * 4 == pytest.approx(0.5 * 100 * 5000, rel=0.01)


def test_importing_the_simulator_does_not_load_the_compiler() -> None:
    assert loaded("import railx.network.packets", {"numba"}) == set()
