"""Step times: closed forms of single transfers, sums, and what more bandwidth does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import rank_placement
from railx.mapping import step
from railx.mapping.layout import compute_flops, step_transfers
from railx.mapping.settings import JobSettings
from railx.mapping.step import Basis, step_times
from railx.performance.topologies import ExactLoads
from railx.vocabulary.topology import Topology
from tests.builders import build

JobOf = Callable[..., JobSettings]
Changes = dict[str, Any]
Rows = list[dict[str, Any]]

EQUAL = Basis("equal_bandwidth", 1.0, 1.0, None)
#: A port of every shipped topology in GB/s.
PORT = 50.0


def parts(rows: Rows, column: str = "ms") -> dict[str, Any]:
    return {row["part"]: row[column] for row in rows}


def times(
    topology: Topology, job: JobSettings, *bases: Basis, routings: tuple[str, ...] = ("min",)
) -> Rows:
    return step_times(topology, routings, {"job": job}, bases or (EQUAL,), "name")


@pytest.fixture(scope="module")
def railx() -> Topology:
    """5 x 5 nodes of 2 x 2 chips with 2 ports per side."""
    return build("railx_hyperx")


def test_gather_along_a_row_of_railx_uses_every_direct_link(railx: Topology) -> None:
    """All 5 nodes of every row: a node has 4 r = 16 ports on x (2 to each other node),
    so 2 r b / m^2 = 4 b a chip, evenly shared.

    Every chip sends 1/4 of its data to the same chip of each other node; balanced
    routing fills the 8 links that leave a node.
    """
    chips = rank_placement(railx, (4, 5, 5)).chips
    rows = chips.transpose(0, 2, 1).reshape(-1, 5)
    direct, _ = ExactLoads(railx, ["balanced"]).ways(rows, "all_gather")
    assert direct.algorithm == "direct"
    assert direct.sent == 4 / 5
    assert direct.rates.between_gb_s == pytest.approx(8 * PORT / 4, rel=1e-9)


def test_stages_on_railx_share_the_two_links_to_the_next_node(railx: Topology) -> None:
    chips = rank_placement(railx, (4, 5, 5)).chips
    (way,) = ExactLoads(railx, ["balanced"]).ways(chips.reshape(-1, 5), "send")
    assert way.rates.between_gb_s == pytest.approx(2 * PORT / 4, rel=1e-9)


def test_ring_along_a_line_of_the_torus_uses_both_directions() -> None:
    """Blocks of one chip: each member has n = 2 ports to either neighbour and sends
    half of its data to each.
    """
    torus = build("torus_2d")
    rows = rank_placement(torus, (1, 10, 10)).chips[0].T.reshape(-1, 10)
    ways = {way.algorithm: way for way in ExactLoads(torus, ["balanced"]).ways(rows, "all_gather")}
    assert ways["ring"].rates.between_gb_s == pytest.approx(4 * PORT, rel=1e-9)
    # Direct on a ring of K = 10: mean distance K^2 / 4 / (K - 1) over 2 n ports, ties
    # split evenly.
    assert ways["direct"].rates.between_gb_s == pytest.approx(4 * PORT / (25 / 9), rel=1e-9)
    assert ways["ring"].latency_ns == 9 * 10.0
    assert ways["direct"].latency_ns == 5 * 10.0


def test_full_fat_tree_moves_everything_at_injection_rate() -> None:
    tree = build("fat_tree")
    chips = rank_placement(tree, (4, 4, 8)).chips
    network = ExactLoads(tree, ["min"])
    for groups, pattern in (
        (chips.reshape(4, -1).T, "all_gather"),
        (chips.reshape(-1, 8), "send"),
        (chips.reshape(-1, 8), "all_to_all"),
    ):
        for way in network.ways(np.ascontiguousarray(groups), pattern):
            assert way.rates.between_gb_s == pytest.approx(8 * PORT, rel=1e-9)
            assert way.rates.inside_gb_s == np.inf


def test_servers_gather_over_their_own_switch() -> None:
    """Rail-only: members of a server use the scale-up switch alone, 9 times the 8
    ports.
    """
    rails = build("rail_only")
    servers = rank_placement(rails, (8, 4, 4)).chips.reshape(8, -1).T
    for way in ExactLoads(rails, ["min"]).ways(np.ascontiguousarray(servers), "all_gather"):
        assert way.rates.between_gb_s == np.inf
        assert way.rates.inside_gb_s == pytest.approx(9 * 8 * PORT, rel=1e-9)


def test_parts_follow_from_bytes_and_rates(job_of: JobOf) -> None:
    """A whole step on the fat tree by hand: every way is at 400 GB/s, latencies are 2
    leaf links and up to 4 more hops.
    """
    job, tree = (
        job_of(layout={"mesh": {"tensor": 4}, "x": {"data": 4}, "y": {"pipeline": 4}}),
        build("fat_tree"),
    )
    rows = times(tree, job)
    ms = parts(rows)
    gb_s, activation = 400e6, 4096 * 512 * 2  # bytes a ms
    latency_ms = 2 * 50e-6
    tensor = 3 * 2 * 8 * (3 / 4 * activation / gb_s + latency_ms)
    assert ms["tensor"] == pytest.approx(tensor, rel=1e-9)
    assert ms["compute"] == pytest.approx(3 * compute_flops(job) / (50e12) * 1e3, rel=1e-12)
    assert ms["bubble"] == pytest.approx(
        (4 - 1) * sum(ms[p] for p in ("compute", "tensor", "pipeline")) / 3, rel=1e-12
    )
    assert ms["sequence"] == ms["expert"] == 0
    assert {row["tokens_per_s"] for row in rows} == {4096 * 3 * 4 / (rows[0]["step_ms"] / 1e3)}


@pytest.mark.parametrize("name", ["railx_hyperx", "torus_2d", "fat_tree", "rail_only"])
def test_parts_sum_to_the_step(job_of: JobOf, experts: Changes, name: str) -> None:
    for job in (job_of(), job_of(**experts)):
        rows = times(build(name), job)
        assert sum(parts(rows).values()) == pytest.approx(rows[0]["step_ms"], rel=1e-12)
        assert len({row["step_ms"] for row in rows}) == 1
        assert [row["part"] for row in rows] == [
            "compute",
            "tensor",
            "sequence",
            "expert",
            "data",
            "pipeline",
            "bubble",
        ]


@pytest.fixture(scope="module")
def step_of(job_of: JobOf, experts: Changes) -> Callable[[float, float], dict[str, float]]:
    """Parts of a step of the mixture on RailX when ports and links inside nodes are
    scaled; loads are computed once.
    """
    job, topology = job_of(**experts), build("railx_hyperx")
    network, placement = (
        ExactLoads(topology, ["min"]),
        rank_placement(topology, job.layout.sizes),
    )

    def make(ports: float, inside: float) -> dict[str, float]:
        basis = Basis("basis", ports, inside, None)
        rows = list(step._job_rows(network, placement, job, basis))
        return parts(rows) | {"step": rows[0]["step_ms"]}

    return make


@settings(deadline=None)
@given(first=st.floats(0.01, 100), second=st.floats(0.01, 100), inside=st.floats(0.01, 100))
def test_more_bandwidth_never_slows_a_step(
    step_of: Callable[[float, float], dict[str, float]], first: float, second: float, inside: float
) -> None:
    slow, fast = sorted((first, second))
    for one, other in (
        (step_of(slow, inside), step_of(fast, inside)),
        (step_of(inside, slow), step_of(inside, fast)),
    ):
        assert all(other[part] <= one[part] * (1 + 1e-12) for part in one)
        assert other["compute"] == one["compute"]


@settings(deadline=None)
@given(factor=st.floats(0.01, 100))
def test_transmission_scales_with_all_links_and_flight_does_not(
    step_of: Callable[[float, float], dict[str, float]], factor: float
) -> None:
    """A pipeline's activations can go one way only: time = flight + bytes / rate."""
    one, two, scaled = (step_of(f, f)["pipeline"] for f in (1.0, 2.0, factor))
    transmission = 2 * (one - two)
    assert scaled == pytest.approx(one - transmission + transmission / factor, rel=1e-9)


def test_best_of_two_routings_is_as_good_as_each(job_of: JobOf, experts: Changes) -> None:
    topology, job = build("dragonfly"), job_of(**experts)
    alone = [parts(times(topology, job, routings=(routing,))) for routing in ("min", "valiant")]
    both = parts(times(topology, job, routings=("min", "valiant")))
    for part in ("tensor", "expert", "data", "pipeline"):
        assert both[part] <= min(one[part] for one in alone) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("name", "axis_by_axis"), [("railx_hyperx", False), ("fat_tree", False), ("torus_2d", True)]
)
def test_gather_over_two_axes_takes_the_faster_way(
    job_of: JobOf, name: str, axis_by_axis: bool
) -> None:
    """4 x 4 replicas: all 16 at once, or x first with all bytes and y with the quarter
    that is left, or the other way round.
    """
    job, topology = (
        job_of(layout={"mesh": {"tensor": 4}, "x": {"data": 4}, "y": {"data": 4}}),
        build(name),
    )
    network, chips = ExactLoads(topology, ["min"]), rank_placement(topology, (4, 4, 4)).chips
    x, y, both = (
        chips.transpose(0, 2, 1).reshape(-1, 4),
        chips.reshape(-1, 4),
        chips.transpose(0, 2, 1).reshape(4, 16),
    )

    def fastest(groups: Any, size_bytes: float) -> float:
        return min(way.time_ns(size_bytes) for way in network.ways(groups, "all_gather"))

    sizes = [transfer.bytes for transfer in step_transfers(job) if transfer.name == "data"]
    flat = sum(fastest(both, size) for size in sizes)
    stepwise = sum(
        min(fastest(x, size) + fastest(y, size / 4), fastest(y, size) + fastest(x, size / 4))
        for size in sizes
    )
    assert parts(times(topology, job))["data"] == pytest.approx(
        min(flat, stepwise) / 1e6, rel=1e-12
    )
    assert (stepwise < flat) == axis_by_axis


def test_groups_of_equal_chips_but_unequal_size_are_not_mixed_up(railx: Topology) -> None:
    """Same chips in the same order: 4 at a time, then 16 at a time."""
    chips = rank_placement(railx, (4, 4, 4)).chips.transpose(0, 2, 1)
    fours, sixteens = chips.reshape(-1, 4), chips.reshape(-1, 16)
    assert fours.tobytes() == sixteens.tobytes()
    network, other = ExactLoads(railx, ["min"]), ExactLoads(railx, ["min"])
    network.ways(fours, "all_gather")
    assert network.ways(sixteens, "all_gather") == other.ways(sixteens, "all_gather")
    assert network.ways(sixteens, "all_gather")[0] != network.ways(fours, "all_gather")[0]


def test_a_job_without_room_says_why(job_of: JobOf) -> None:
    rows = times(
        build("mesh_2d"),
        job_of(layout={"mesh": {"tensor": 16}, "x": {"data": 8}, "y": {}}),
        EQUAL,
    )
    assert len(rows) == 1
    assert rows[0]["step_ms"] is rows[0]["ms"] is rows[0]["part"] is None
    assert rows[0]["reason"].startswith(
        "layout: got 16 x 8 x 1 (chips of a node x nodes of a row x nodes of a column); allowed on"
        " mesh"
    )


def test_a_job_that_needs_more_memory_than_a_chip_has_says_why(job_of: JobOf) -> None:
    tree = build("fat_tree")
    without, roomy = job_of(), job_of(memory_gb=80.0)
    assert times(tree, roomy) == times(tree, without)
    (small,) = times(tree, job_of(memory_gb=0.01))
    assert small["step_ms"] is small["part"] is None
    assert re.fullmatch(
        r"layout: needs 0\.\d+ GB a chip; allowed: at most 0\.01, memory_gb", small["reason"]
    )


def test_overlapped_gradients_hide_behind_the_last_backward_pass(job_of: JobOf) -> None:
    tree = build("fat_tree")
    alone, behind = (parts(times(tree, job_of(overlaps_data=word))) for word in (False, True))
    backward = alone["compute"] / 3 * 2 / 3  # of three micro-batches
    assert behind["data"] == pytest.approx(max(alone["data"] - backward, 0))
    assert {name: behind[name] for name in alone if name != "data"} == {
        name: ms for name, ms in alone.items() if name != "data"
    }
