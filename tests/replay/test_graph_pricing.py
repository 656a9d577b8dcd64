"""Prices of nodes by closed forms, and the places and orders that ranks take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.errors import UserError
from railx.families import TopologySettings, build_topology
from railx.performance.networks import TwoLevelRing
from railx.performance.topologies import ExactLoads
from railx.replay.graph_pricing import COUNTS, Counts, DeviceRates, node_ns
from railx.replay.graph_run import in_order_of_start, prepare_graph, reordered, replay_graph
from railx.replay.graph_runs import (
    FamilyNetwork,
    GroupsAlone,
    LoadedGroups,
    OwnRings,
    TableGroups,
    TwoRates,
    graph_rows,
    placed,
    places_by_traffic,
)
from railx.replay.graphs import read_graph_table, write_graph_table
from railx.settings import load
from tests.replay.plain_graphs import graphs_of_rows, plain_ends, row

PUBLISHED, HARDWARE = COUNTS["published"], COUNTS["hardware"]
#: 100 GB/s in a server of two, 10 GB/s between servers, no latency.
RINGS = GroupsAlone(TwoLevelRing(2, 100, 10, 0, 0, 1, 1))


def settings_of(family: str, **values: Any) -> Any:
    return load(TopologySettings, {"family": family, **values})


# Computation


def test_computation_is_a_roofline() -> None:
    """2 TFLOP/s are 2,000 operations a ns, 4 GB/s are 4 bytes a ns."""
    graphs = graphs_of_rows(
        [
            row(0, "compute", operations=10_000, memory_bytes=4),
            row(0, "compute", operations=2_000, memory_bytes=40),
            row(0, "compute", operations=2_000, memory_bytes=40, duration_ns=3),
            row(0, "compute", operations=2_000, memory_bytes=40, duration_ns=0),
            row(0, "compute"),
        ]
    )
    device = DeviceRates(2, 4)
    assert node_ns(graphs, device, None, PUBLISHED).tolist() == [5, 10, 3, 0, 0]
    assert node_ns(graphs, device, None, HARDWARE).tolist() == [10, 20, 3, 0, 0]
    assert node_ns(graphs, device, None, Counts(3, 1)).tolist() == [15, 10, 3, 0, 0]
    assert node_ns(graphs, DeviceRates(2), None, PUBLISHED).tolist() == [5, 1, 3, 0, 0]


def test_operations_without_a_peak_are_refused() -> None:
    graphs = graphs_of_rows(
        [row(0, "compute", duration_ns=4, operations=5), row(3, "compute", number=9, operations=5)]
    )
    with pytest.raises(ValueError, match=r"^got rank 3, node 9 with 5 operations and no d"):
        node_ns(graphs, DeviceRates(), None, PUBLISHED)


def test_times_beyond_a_clock_of_64_bits_are_refused() -> None:
    graphs = graphs_of_rows([row(0, "compute", duration_ns=2**61) for _ in range(2)])
    with pytest.raises(UserError, match=r"^got nodes of 4\.61e\+18 ns together; allowed: less"):
        node_ns(graphs, DeviceRates(), None, PUBLISHED)
    graphs = graphs_of_rows([row(0, "compute", operations=2**62)])
    with pytest.raises(UserError, match="ns together"):
        node_ns(graphs, DeviceRates(1e-9), None, PUBLISHED)


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("peer", 7, "peer 7"),
        ("group", 9, "group 9"),
        ("rank", 5, "ranks out of order"),
        ("", 0, "no nodes"),
    ],
)
def test_a_table_of_no_graphs_is_refused(
    column: str, value: int, fault: str, tmp_path: Path
) -> None:
    graphs = graphs_of_rows([row(0, "compute"), row(1, "compute")] if column else [])
    if column:
        graphs.columns[column][0] = value
    write_graph_table(path := tmp_path / "mine.parquet", graphs)
    with pytest.raises(UserError, match=rf"mine\.parquet with {fault}; allowed: a file of railx"):
        read_graph_table(path)


# Operations


@pytest.mark.parametrize(
    ("kind", "inside_ns", "outside_ns"),
    [
        # A ring of two sends half of a tensor, twice in an all-reduce.
        ("all_reduce", 10, 100),
        ("broadcast", 10, 100),
        ("reduce", 10, 100),
        ("reduce_scatter", 5, 50),
        ("scatter", 5, 50),
        ("all_to_all", 5, 50),
        # The bytes of a gather are those of one member.
        ("all_gather", 10, 100),
        ("gather", 10, 100),
    ],
)
def test_collectives_take_rings(kind: str, inside_ns: int, outside_ns: int) -> None:
    groups = ((0, 1), (0, 2), (3,))
    graphs = graphs_of_rows(
        [
            row(0, kind, bytes=1000, group=0),
            row(0, kind, bytes=1000, group=1),
            row(0, kind, bytes=2000, group=1),
            row(0, kind, bytes=1000, group=2),
        ],
        groups,
    )
    found = node_ns(graphs, DeviceRates(), RINGS, PUBLISHED).tolist()
    assert found == [inside_ns, outside_ns, 2 * outside_ns, 0]
    doubled = node_ns(graphs, DeviceRates(), RINGS, HARDWARE).tolist()
    assert doubled == [2 * ns for ns in found]


def test_both_ends_of_a_message_take_its_time() -> None:
    graphs = graphs_of_rows(
        [
            row(0, "send", peer=1, bytes=1000, tag=0),
            row(0, "recv", peer=2, bytes=1000, tag=0),
            row(1, "recv", peer=0, bytes=1000, tag=0),
            row(2, "send", peer=0, bytes=1000, tag=0),
        ]
    )
    found = node_ns(graphs, DeviceRates(), RINGS, PUBLISHED)
    assert found.tolist() == [10, 100, 10, 100]
    latency = GroupsAlone(TwoLevelRing(2, 100, 10, 7e-9, 9e-9, 1, 1))
    assert node_ns(graphs, DeviceRates(), latency, PUBLISHED).tolist() == [17, 109, 17, 109]


def test_without_a_network_operations_take_their_measured_times() -> None:
    graphs = graphs_of_rows(
        [
            row(0, "all_reduce", bytes=1000, group=0, duration_ns=77),
            row(0, "all_reduce", bytes=1000, group=0),
        ],
        ((0, 1),),
    )
    assert node_ns(graphs, DeviceRates(), None, PUBLISHED).tolist() == [77, 0]


def line_of_four(folder: Path) -> ExactLoads:
    """Four chips, each joined to the next by a link of 8 Gbit/s, without flight."""
    path = folder / "line.txt"
    path.write_text("0 1 8 1 0\n1 2 8 1 0\n2 3 8 1 0\n")
    return ExactLoads(build_topology(settings_of("imported", path=str(path))), ("min",))


def test_groups_of_a_size_contend_on_a_topology(tmp_path: Path) -> None:
    """Two groups that cross the middle of a line halve the rate of one."""
    rows = [
        row(rank, "all_to_all", bytes=8000, group=group) for rank, group in enumerate((0, 1, 0, 1))
    ]
    both = graphs_of_rows(rows, ((0, 2), (1, 3)))
    alone = graphs_of_rows(rows[::2], ((0, 2), (1, 3)))
    loads = line_of_four(tmp_path)

    def time_ns(graphs: Any) -> int:
        priced = LoadedGroups(loads, graphs)
        return int(node_ns(graphs, DeviceRates(), priced, PUBLISHED)[0])

    # Each member sends half of its bytes, 1 GB/s are a byte a ns.
    assert (time_ns(alone), time_ns(both)) == (4_000, 8_000)


def test_groups_of_two_sizes_have_their_own_prices(tmp_path: Path) -> None:
    """Two halves of a line have the ranks of the whole line, in the same order."""
    groups = ((0, 1), (2, 3), (0, 1, 2, 3))
    halves = [row(rank, "all_reduce", bytes=8000, group=rank // 2) for rank in range(4)]
    whole = [row(rank, "all_reduce", bytes=8000, group=2) for rank in range(4)]
    both = [one for pair in zip(halves, whole, strict=True) for one in pair]
    loads = line_of_four(tmp_path)

    def times_ns(rows: list[Any]) -> list[int]:
        graphs = graphs_of_rows(rows, groups)
        priced = LoadedGroups(loads, graphs)
        return node_ns(graphs, DeviceRates(), priced, PUBLISHED).tolist()

    assert (times_ns(halves), times_ns(whole)) == ([8_000] * 4, [12_000] * 4)
    assert times_ns(both) == [8_000, 12_000] * 4


def test_messages_of_a_distance_contend_on_a_topology(tmp_path: Path) -> None:
    loads = line_of_four(tmp_path)
    rows = [
        row(0, "send", peer=2, bytes=8000, tag=0),
        row(1, "send", peer=3, bytes=8000, tag=0),
    ]
    two, one = graphs_of_rows(rows), graphs_of_rows(rows[:1])
    times = [
        int(node_ns(g, DeviceRates(), LoadedGroups(loads, g), PUBLISHED)[0]) for g in (two, one)
    ]
    assert times == [16_000, 8_000]


def test_rails_have_a_ring_of_the_groups_servers() -> None:
    """Ports of 400 Gbit/s: a ring of two servers has both between them, of four too."""
    settings = settings_of("opus_rails", external_latency_ns=0.0)
    rings = OwnRings(settings, ("min", "balanced"))
    size = np.array([1e6])
    pair = rings.transfer_ns("all_gather", size, (0, 8))[0]
    far = rings.transfer_ns("all_gather", size, (3, 8 * 9 + 3))[0]
    four = rings.transfer_ns("all_gather", size, (0, 8, 16, 24))[0]
    assert pair == far == pytest.approx(1e6 / 2 / 100, rel=1e-3)
    assert four == pytest.approx(1e6 * 3 / 4 / 100, rel=1e-3)
    assert rings.transfer_ns("send", size, (0, 8))[0] == pytest.approx(1e6 / 50, rel=1e-3)
    inside = rings.transfer_ns("all_gather", size, (0, 1))[0]
    # Two links of 10 ns to and from the switch of the server.
    assert inside == pytest.approx(1e6 / 2 / 450 + 20)


def test_a_table_prices_each_size() -> None:
    table = TableGroups(lambda kind, size, members: 2.0 * size + len(members))
    graphs = graphs_of_rows([row(0, "all_reduce", bytes=10, group=0)], ((0, 1),))
    assert node_ns(graphs, DeviceRates(), table, PUBLISHED).tolist() == [22]


# Places


def test_the_busiest_groups_that_fit_fill_servers() -> None:
    groups = ((0, 2), (1, 3), (0, 1), (2, 3))
    busy = [row(r, "all_reduce", bytes=9, group=r % 2) for r in range(4)]
    idle = [row(r, "all_reduce", bytes=5, group=2 + r // 2) for r in range(4)]
    rows = sorted([*busy, *idle], key=lambda item: item[0]["rank"])
    graphs = graphs_of_rows(rows, groups)
    assert places_by_traffic(graphs, 2).tolist() == [0, 2, 1, 3]
    # Two groups of two in each server of four: the same order.
    assert places_by_traffic(graphs, 4).tolist() == [0, 2, 1, 3]
    # No group of two fits a server of three.
    assert places_by_traffic(graphs, 3).tolist() == [0, 1, 2, 3]
    quiet = graphs_of_rows(sorted(idle, key=lambda item: item[0]["rank"]), groups)
    assert places_by_traffic(quiet, 2).tolist() == [0, 1, 2, 3]


@given(seed=st.integers(0, 2**32))
def test_other_numbers_of_ranks_change_nothing(seed: int) -> None:
    """Operations, dependencies and the times of an executor stay those of each rank."""
    rng = np.random.default_rng(seed)
    ranks = 4
    rows = []
    for rank in range(ranks):
        first = len(rows)
        rows += [row(rank, "compute", duration_ns=int(rng.integers(1, 9)))]
        rows += [row(rank, "all_reduce", first, group=rank % 2, duration_ns=3)]
        rows += [row(rank, "send", first + 1, peer=(rank + 1) % ranks, tag=0, duration_ns=2)]
        rows += [row(rank, "recv", peer=(rank - 1) % ranks, tag=0, duration_ns=2)]
    graphs = graphs_of_rows(rows, ((0, 2), (1, 3)))
    places = rng.permutation(ranks)
    moved = placed(graphs, places)
    assert (np.diff(moved.columns["rank"]) >= 0).all()
    ends = plain_ends(graphs, graphs.columns["duration_ns"])
    ends_moved = plain_ends(moved, moved.columns["duration_ns"])
    for rank in range(ranks):
        ours, theirs = graphs.columns["rank"] == rank, moved.columns["rank"] == places[rank]
        assert ends[ours].tolist() == ends_moved[theirs].tolist()
    back = placed(moved, np.argsort(places))
    for name, values in graphs.columns.items():
        assert (back.columns[name] == values).all()
    assert (back.dependencies == graphs.dependencies).all()
    assert back.groups == graphs.groups


# Order


def late_first(ranks: int = 2) -> Any:
    """Two reductions of a group; that with the lower number depends on long work."""
    rows = []
    for rank in range(ranks):
        first = 4 * rank
        rows += [
            row(rank, "compute", number=0, duration_ns=100),
            row(rank, "all_reduce", first, number=1, group=0, duration_ns=10),
            row(rank, "all_reduce", number=2, group=0, duration_ns=10),
            row(rank, "compute", first + 2, number=3, duration_ns=5),
        ]
    return graphs_of_rows(rows, (tuple(range(ranks)),))


def test_an_operation_that_can_begin_does_not_wait_for_a_lower_number() -> None:
    graphs = late_first()
    taken = graphs.columns["duration_ns"]
    as_numbered = replay_graph(prepare_graph(graphs, taken)).step_ns
    ordered, times = in_order_of_start(graphs, taken, one_collective=True)
    assert ordered.columns["number"].tolist() == [0, 2, 1, 3] * 2
    assert times.tolist() == [100, 10, 10, 5] * 2
    assert (as_numbered, replay_graph(prepare_graph(ordered, times)).step_ns) == (125, 110)


@given(seed=st.integers(0, 2**32))
def test_an_order_keeps_each_node_and_what_it_waits_for(seed: int) -> None:
    graphs = late_first(3)
    rng = np.random.default_rng(seed)
    order = np.concatenate([4 * rank + rng.permutation(4) for rank in range(3)])
    other = reordered(graphs, order)
    for position, old in enumerate(order.tolist()):
        before = other.dependencies[other.offsets[position] : other.offsets[position + 1]]
        expected = graphs.dependencies[graphs.offsets[old] : graphs.offsets[old + 1]]
        assert sorted(order[before].tolist()) == sorted(expected.tolist())
        assert other.columns["number"][position] == graphs.columns["number"][old]


# Runs


def exchange_rows() -> Any:
    """Four ranks: two rings across servers, one after the other, with work between."""
    rows = []
    for rank in range(4):
        first = 3 * rank
        rows += [
            row(rank, "all_reduce", group=rank % 2, bytes=10_000, number=0),
            row(rank, "compute", first, operations=3_000, number=1),
            row(rank, "all_reduce", first + 1, group=2, bytes=10_000, number=2),
        ]
    return graphs_of_rows(rows, ((0, 2), (1, 3), (0, 1, 2, 3)))


TWO = TwoRates("two_level", 2, 100.0, 10.0)


def rows_of(*modes: Any, latencies: tuple[float, ...] = (0.0,), network: Any = TWO) -> list[Any]:
    device = DeviceRates(tflops=1.0)
    runs = graph_rows(exchange_rows(), [network], modes, latencies, device=device, counts=PUBLISHED)
    return [run.as_dict() for run in runs]


def test_a_row_adds_up() -> None:
    """1,000 ns of a ring of two, 3 of work, 750 ns of one of four in two servers."""
    (found,) = rows_of("electrical")
    assert found["step_ms"] == pytest.approx(1e-6 * (1_000 + 3 + 750))
    assert found["compute_ms"] == pytest.approx(3e-6)
    assert found["exposed_ms"] == {"all_reduce": pytest.approx(1e-6 * 1_750)}
    assert found["waiting_ms"] == pytest.approx(0)
    assert (found["switches"], found["windows"]) == (0, 1)
    assert (found["contention"], found["fidelity"]) == ("groups alone", "replay")
    assert (found["placement"], found["chips"]) == ("consecutive", 4)


def test_switching_waits_on_demand_and_less_when_provisioned() -> None:
    modes = ("electrical", "on_demand", "provisioned")
    network = TwoRates("two_level", 1, 100.0, 10.0)
    electrical, on_demand, provisioned = rows_of(*modes, latencies=(1e-6,), network=network)
    assert electrical["latency_ms"] == 0
    # Both changes of circuits take 1 ns; the second may begin beside 3 ns of work.
    assert on_demand["step_ms"] - electrical["step_ms"] == pytest.approx(2e-6)
    assert provisioned["step_ms"] - electrical["step_ms"] == pytest.approx(1e-6)
    assert on_demand["switches"] > 0


def test_each_pair_of_mode_and_latency_has_a_row_and_electrical_has_none() -> None:
    found = rows_of("electrical", "on_demand", "provisioned", latencies=(1.0, 2.0))
    assert [(run["mode"], run["latency_ms"]) for run in found] == [
        ("electrical", 0.0),
        *(("on_demand", 1.0), ("on_demand", 2.0)),
        *(("provisioned", 1.0), ("provisioned", 2.0)),
    ]


def test_ranks_in_other_orders_need_a_collective_of_each_group() -> None:
    """Each rank begins another group's collective first."""
    rows = [
        row(0, "all_reduce", group=0, bytes=10_000, number=0),
        row(0, "all_reduce", group=1, bytes=10_000, number=1),
        row(1, "all_reduce", group=1, bytes=10_000, number=0),
        row(1, "all_reduce", group=0, bytes=10_000, number=1),
    ]
    graphs = graphs_of_rows(rows, ((0, 1), (0, 1)))
    said = {"device": DeviceRates(), "counts": PUBLISHED}
    with pytest.raises(ValueError, match=r"never ends, .*, or --collectives one_of_each_group$"):
        list(graph_rows(graphs, [TWO], ["electrical"], [0.0], **said))  # type: ignore[arg-type]
    (found,) = graph_rows(
        graphs,
        [TWO],
        ["electrical"],
        [0.0],
        one_collective=False,
        **said,  # type: ignore[arg-type]
    )
    assert found.as_dict()["step_ms"] == pytest.approx(100e-6)


def test_networks_that_are_not_switched_have_one_row() -> None:
    network = FamilyNetwork("torus_2d", settings_of("torus_2d"))
    (found,) = rows_of("on_demand", "provisioned", latencies=(1.0, 2.0), network=network)
    assert (found["mode"], found["contention"]) == ("electrical", "exact loads")
    rails = FamilyNetwork("opus_rails", settings_of("opus_rails"))
    assert {run["contention"] for run in rows_of("on_demand", network=rails)} == {"own circuits"}


def test_networks_grow_with_the_ranks() -> None:
    small = settings_of("opus_rails", servers=2)
    assert FamilyNetwork("opus_rails", small).chips(40) == 40
    railx = settings_of("railx_hyperx")
    larger = settings_of("railx_hyperx", m=4)
    assert FamilyNetwork("railx_hyperx", railx, (larger,)).chips(128) == 1296
    assert FamilyNetwork("railx_hyperx", railx, (larger,)).chips(100) == 100
    with pytest.raises(ValueError, match=r"got railx_hyperx of 100 chips for 128 ranks; allowed"):
        FamilyNetwork("railx_hyperx", railx).chips(128)
