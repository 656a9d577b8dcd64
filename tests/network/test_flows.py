"""The flow model: max-min fairness by its definition and against linear programs,
conservation, completion times.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from railx.families import build_routing
from railx.network.flows.fair import fair_rates, finish_times, link_gb_s, max_min_rates
from railx.network.flows.paths import (
    FlowPaths,
    fixed_paths,
    join_paths,
    path_loads,
    route_flows,
    spread_flows,
)
from railx.vocabulary.routing.analysis import path_lengths, table_lane_loads
from railx.vocabulary.topology import Topology
from tests.builders import build

FloatArray = NDArray[np.float64]


def ring(length: int, **changes: Any) -> Topology:
    return build("torus_2d", x_scale=length, y_scale=2, n=1, **changes)


def transfer_times(
    topology: Topology, routing: Any, src: Any, dst: Any, *about: Any, **more: Any
) -> FloatArray:
    paths = route_flows(topology, routing, src, dst)
    return finish_times(paths, link_gb_s(topology), *about, **more)


def random_paths(
    draw_seed: int, flows: int, links: int
) -> tuple[FlowPaths, FloatArray, FloatArray]:
    """Flows over random links in random shares, capacities and demands (a third without
    limit).
    """
    rng = np.random.default_rng(draw_seed)
    used = rng.random((flows, links)) < 0.5
    used[np.arange(flows), rng.integers(links, size=flows)] = True
    share = np.where(used, rng.choice([0.25, 0.5, 1.0], size=(flows, links)), 0)
    flow, link = np.nonzero(share)
    start = np.concatenate([[0], np.cumsum(np.bincount(flow, minlength=flows))]).astype(np.int64)
    paths = FlowPaths(start, link.astype(np.int32), share[flow, link], np.zeros(flows))
    demand = np.where(
        rng.random(flows) < 0.3,
        np.inf,
        rng.choice([0.0, 0.5, 1.0, 3.0], size=flows) + rng.random(flows),
    )
    return paths, rng.choice([1.0, 2.0, 5.0], size=links), demand


def matrix(paths: FlowPaths, links: int) -> FloatArray:
    dense = np.zeros((links, len(paths)))
    dense[paths.link, np.repeat(np.arange(len(paths)), np.diff(paths.start))] = paths.share
    return dense


def check_max_min(
    paths: FlowPaths, capacity: FloatArray, demand: FloatArray, rate: FloatArray
) -> None:
    """No link above its capacity, and every flow below its demand has a full link on
    which no flow is faster.
    """
    dense = matrix(paths, len(capacity))
    loads = dense @ np.where(np.isfinite(rate), rate, 0)
    assert (loads <= capacity * (1 + 1e-9)).all()
    assert (rate <= demand * (1 + 1e-12)).all()
    full = loads >= capacity * (1 - 1e-9)
    for flow in np.flatnonzero(rate < demand * (1 - 1e-9)):
        bottlenecks = [
            link
            for link in np.flatnonzero(full & (dense[:, flow] > 0))
            if rate[flow] >= rate[dense[link] > 0].max() * (1 - 1e-9)
        ]
        assert bottlenecks, f"flow {flow} could have more"


def linear_programs(paths: FlowPaths, capacity: FloatArray, demand: FloatArray) -> FloatArray:
    """Max-min by definition: raise the smallest open rate with a linear program, fix
    the flows that cannot rise, repeat.
    """
    dense, flows = matrix(paths, len(capacity)), len(paths)
    fixed = np.full(flows, np.nan)
    while np.isnan(fixed).any():
        opened = np.isnan(fixed)

        def best(
            target: NDArray[np.int64],
            floor: FloatArray,
            fixed: FloatArray = fixed,
            opened: Any = opened,
        ) -> float:
            """The largest common rate of the target flows when the others keep at least
            their floor.
            """
            bounds = [
                (f, f) if not o else (low, None if d == np.inf else d)
                for f, o, low, d in zip(fixed, opened, floor, demand, strict=True)
            ]
            rows = np.zeros((len(target), flows + 1))
            rows[np.arange(len(target)), target], rows[:, -1] = -1, 1
            found = linprog(
                np.append(np.zeros(flows), -1),
                A_ub=np.vstack([np.hstack([dense, np.zeros((len(capacity), 1))]), rows]),
                b_ub=np.append(capacity, np.zeros(len(target))),
                bounds=[*bounds, (0, None)],
            )
            assert found.success, found.message
            return float(-found.fun)

        level = best(np.flatnonzero(opened), np.zeros(flows))
        floor = np.where(opened, level * (1 - 1e-9), 0)
        for flow in np.flatnonzero(opened):
            if best(np.array([flow]), floor) < level * (1 + 1e-6) + 1e-9:
                fixed[flow] = level
    return fixed


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**6), flows=st.integers(1, 12), links=st.integers(1, 8))
def test_rates_are_max_min_fair_by_definition(seed: int, flows: int, links: int) -> None:
    paths, capacity, demand = random_paths(seed, flows, links)
    check_max_min(paths, capacity, demand, fair_rates(paths, capacity, demand))


@pytest.mark.parametrize("seed", range(12))
def test_rates_equal_those_of_linear_programs(seed: int) -> None:
    paths, capacity, demand = random_paths(seed, 6, 4)
    assert fair_rates(paths, capacity, demand) == pytest.approx(
        linear_programs(paths, capacity, demand), rel=1e-5, abs=1e-8
    )


def test_the_certificate_refuses_other_rates() -> None:
    paths, capacity, demand = random_paths(3, 8, 4)
    rate = fair_rates(paths, capacity, demand)
    slower = rate.copy()
    slower[np.argmax(rate < demand)] *= 0.9
    with pytest.raises(AssertionError):
        check_max_min(paths, capacity, demand, slower)
    with pytest.raises(AssertionError):
        check_max_min(paths, capacity, demand, rate * 1.1)


def test_the_textbook_line() -> None:
    """One flow over both links, one over each: the shared link with two flows and
    capacity 1 gives halves, the other the rest.
    """
    paths = FlowPaths(
        np.array([0, 2, 3, 4]), np.array([0, 1, 0, 1], dtype=np.int32), np.ones(4), np.zeros(3)
    )
    assert fair_rates(paths, np.array([1.0, 3.0])).tolist() == [0.5, 0.5, 2.5]
    assert fair_rates(paths, np.array([1.0, 3.0]), [0.2, np.inf, 1.0]).tolist() == pytest.approx(
        [0.2, 0.8, 1.0]
    )


@settings(deadline=None, max_examples=20)
@given(length=st.integers(3, 12), step=st.integers(1, 5))
def test_a_shift_on_a_ring(length: int, step: int) -> None:
    """All go ``step`` places the same way: each link carries min(step, length - step)
    flows.
    """
    if 2 * step > length:
        return
    topology = ring(length)
    chip = np.arange(length)
    rate = max_min_rates(topology, "min", chip, (chip + step) % length)
    assert rate == pytest.approx(np.full(length, 50 / step))


def test_uniform_flows_fill_the_busiest_link_of_the_static_loads() -> None:
    topology = build("railx_hyperx", m=2, n=1)
    table = build_routing(topology, "min")
    src, dst = (
        axis.ravel()
        for axis in np.meshgrid(np.arange(topology.chips), np.arange(topology.chips), indexing="ij")
    )
    src, dst = src[src != dst], dst[src != dst]
    paths = spread_flows(topology, table, src, dst)
    loads = path_loads(topology, paths, np.full(len(paths), 1 / (topology.chips - 1)))
    assert loads / topology.links.lanes == pytest.approx(table_lane_loads(topology, table))
    # The slowest flows are those of the link with the most flows, each as fast as the
    # uniform bound says.
    bound = (link_gb_s(topology)[loads > 0] / loads[loads > 0]).min() / (topology.chips - 1)
    assert fair_rates(paths, link_gb_s(topology)).min() == pytest.approx(bound)


@pytest.mark.parametrize(
    ("name", "routing"),
    [("railx_hyperx", "min"), ("railx_hyperx", "balanced"), ("torus_2d", "balanced")],
)
def test_paths_conserve_flow_and_have_the_hops_of_the_table(name: str, routing: str) -> None:
    topology = build(name)
    table = build_routing(topology, routing)
    rng = np.random.default_rng(5)
    src, dst = rng.integers(topology.chips, size=(2, 200))
    paths = spread_flows(topology, table, src, dst)
    expected = path_lengths(topology, table).links[src, dst]
    flow = np.repeat(np.arange(200), np.diff(paths.start))
    assert np.bincount(flow, weights=paths.share, minlength=200) == pytest.approx(expected)
    balance = np.zeros((200, topology.vertices))
    np.add.at(balance, (flow, topology.links.src[paths.link]), -paths.share)
    np.add.at(balance, (flow, topology.links.dst[paths.link]), paths.share)
    wanted = np.zeros_like(balance)
    np.add.at(wanted, (np.arange(200), src), -1)
    np.add.at(wanted, (np.arange(200), dst), 1)
    assert balance == pytest.approx(wanted, abs=1e-12)
    assert (np.diff(paths.start)[src == dst] == 0).all()


def test_blocks_of_destinations_give_the_same_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = build("railx_hyperx", m=2, n=1)
    rng = np.random.default_rng(2)
    src, dst = rng.integers(topology.chips, size=(2, 300))
    whole = spread_flows(topology, build_routing(topology, "balanced"), src, dst)
    monkeypatch.setattr("railx.network.flows.paths._BLOCK_ENTRIES", 7 * topology.vertices)
    blocked = route_flows(topology, "balanced", src, dst)
    assert (blocked.start == whole.start).all()
    assert (blocked.latency_ns == whole.latency_ns).all()
    for f in range(300):
        own = slice(whole.start[f], whole.start[f + 1])
        assert dict(zip(blocked.link[own], blocked.share[own], strict=True)) == pytest.approx(
            dict(zip(whole.link[own], whole.share[own], strict=True))
        )


def test_a_split_flow_gets_the_rate_of_its_narrowest_share() -> None:
    """Balanced ties on a ring of 4: half each way, so a lone flow to the far side
    reaches two ports.
    """
    topology = ring(4)
    assert max_min_rates(topology, "balanced", [0], [2]).tolist() == [100.0]
    assert max_min_rates(topology, "min", [0], [2]).tolist() == [50.0]


def test_a_flow_to_itself_gets_its_demand() -> None:
    topology = ring(4)
    assert max_min_rates(topology, "min", [1, 0], [1, 1], [7.0, 9.0]).tolist() == [7.0, 9.0]
    assert max_min_rates(topology, "min", [1], [1]).tolist() == [np.inf]
    assert transfer_times(topology, "min", [1], [1], 100).tolist() == [0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"src": [0, 99]}, r"src: got chip 99; allowed: 0 to 7"),
        ({"src": [0]}, r"dst: got 2 chips; allowed: 1, one for each of src"),
        (
            {"dst": [0.5, 1.0]},
            r"dst: got an array of shape \(2,\) and type float64; allowed: a list of chip numbers",
        ),
        (
            {"demand_gb_s": [1.0, 2.0, 3.0]},
            r"demand_gb_s: shape \(3,\); allowed: one number or 2, one a flow",
        ),
        ({"demand_gb_s": -1.0}, r"demand_gb_s: got -1.0; allowed: 0 or greater"),
        ({"routing": "fastest"}, r"routing: got 'fastest'; allowed on torus_2d: min, balanced"),
    ],
)
def test_bad_flows_are_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"routing": "min", "src": [0, 1], "dst": [2, 3]} | change
    with pytest.raises(ValueError, match=message):
        max_min_rates(ring(4), **arguments)


def test_a_table_without_the_destination_is_named() -> None:
    topology = ring(4)
    with pytest.raises(
        ValueError, match=r"dst: got chip 3; allowed: the 2 destinations of the table"
    ):
        spread_flows(
            topology, build_routing(topology, "min", np.array([1, 2], dtype=np.int32)), [0], [3]
        )


# Completion times


def test_a_lone_transfer_is_size_over_rate_plus_flight() -> None:
    topology = ring(8, latency_ns=25.0)
    assert transfer_times(topology, "min", [0], [3], 1000).tolist() == [
        pytest.approx(1000 / 50 + 3 * 25)
    ]
    assert transfer_times(
        topology, "min", [0], [3], 1000, start_ns=7.0, demand_gb_s=10.0
    ).tolist() == [pytest.approx(7 + 100 + 75)]


def test_rates_are_solved_again_when_a_transfer_ends_or_starts() -> None:
    topology = ring(8, latency_ns=0.0)
    # Both leave on the same link: 25 GB/s each until the short one ends at 40 ns, then
    # 50 GB/s.
    assert transfer_times(topology, "min", [0, 0], [1, 2], [1000, 3000]).tolist() == pytest.approx(
        [40, 80]
    )
    # Alone until the other starts at 10 ns with 500 bytes behind it.
    assert transfer_times(
        topology, "min", [0, 0], [1, 1], [1500, 1000], [0, 10]
    ).tolist() == pytest.approx([50, 50])


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), flows=st.integers(1, 10), links=st.integers(1, 5))
def test_completion_equals_small_steps_of_time(seed: int, flows: int, links: int) -> None:
    """An independent integration: fixed steps much shorter than any transfer, rates
    solved anew in each.
    """
    paths, capacity, _ = random_paths(seed, flows, links)
    rng = np.random.default_rng(seed)
    size, begin = rng.choice([5.0, 10.0, 20.0], size=flows), rng.choice([0.0, 1.0, 6.0], size=flows)
    end = finish_times(paths, capacity, size, begin)
    left, now, step, seen = size.copy(), 0.0, 0.05, np.full(flows, np.nan)
    while np.isnan(seen).any():
        active = (begin <= now + 1e-9) & np.isnan(seen)
        rate = fair_rates(paths, capacity, np.where(active, np.inf, 0.0))
        left -= rate * step
        now += step
        seen[active & (left <= 1e-9)] = now
    assert np.abs(end - seen).max() <= step * (flows + 1)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 1000))
def test_times_scale_with_sizes_and_bytes_are_conserved(seed: int, scale: float) -> None:
    paths, capacity, _ = random_paths(seed, 8, 4)
    size = np.random.default_rng(seed).random(8) + 0.1
    once = finish_times(paths, capacity, size)
    assert finish_times(paths, capacity, size * scale) == pytest.approx(once * scale)
    # No link can have carried more than its capacity until the last of its transfers
    # ended.
    dense = matrix(paths, len(capacity))
    for link in range(len(capacity)):
        own = dense[link] > 0
        assert (dense[link] * size).sum() <= capacity[link] * (
            once[own].max() if own.any() else np.inf
        ) * (1 + 1e-9)


def test_fixed_paths_count_a_link_crossed_twice() -> None:
    topology = ring(8, latency_ns=10.0)
    paths = fixed_paths(topology, np.array([0, 0, 0, 2]), np.array([3, 5, 3, 1]), 3)
    assert paths.latency_ns.tolist() == [30.0, 0.0, 10.0]
    assert fair_rates(paths, link_gb_s(topology)).tolist() == [25.0, np.inf, 50.0]
    joined = join_paths([paths, paths])
    assert joined.start.tolist() == [0, 2, 2, 3, 5, 5, 6]
    assert fair_rates(joined, link_gb_s(topology)).tolist() == [12.5, np.inf, 25.0] * 2


def test_transfers_that_never_end_are_refused() -> None:
    with pytest.raises(ValueError, match=r"demand_gb_s: got 0; allowed: greater than 0"):
        transfer_times(ring(4), "min", [0], [1], 10, demand_gb_s=0.0)


@pytest.mark.slow
def test_ten_thousand_endpoints() -> None:
    """A random permutation among 10,000 chips: shares of capacity never exceeded, every
    flow with its bottleneck.
    """
    topology = build("torus_2d", x_scale=100, y_scale=100)
    dst = np.random.default_rng(1).permutation(topology.chips)
    src = np.arange(topology.chips)
    paths = route_flows(topology, "min", src[src != dst], dst[src != dst])
    rate = fair_rates(paths, link_gb_s(topology))
    use = path_loads(topology, paths, rate) / link_gb_s(topology)
    assert use.max() == pytest.approx(1)
    flow = np.repeat(np.arange(len(paths)), np.diff(paths.start))
    fastest = np.zeros(len(use))
    np.maximum.at(fastest, paths.link, rate[flow])
    held = (use[paths.link] > 1 - 1e-9) & (rate[flow] >= fastest[paths.link] * (1 - 1e-9))
    assert (np.bincount(flow, weights=held, minlength=len(paths)) >= 1).all()
