"""Prices by a table, cluster time from a trace, and bandwidths for planners."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from railx.fabric.circuits import Layout
from railx.performance.cluster import ClusterSettings, all_to_all_gb_s, with_topology
from railx.performance.sequence_cost import bandwidth_unit
from railx.replay.cluster_time import RECORDED, cluster_time, summarised
from railx.replay.graph_pricing import price_of
from railx.replay.settings import ReplaySettings
from railx.settings import SettingsError
from tests.builders import checked


def row(operation: str, size: int, stride: int, gb_s: float, us: float, **more: Any) -> Any:
    place = {"operation": operation, "group_size": size, "stride": stride, "fidelity": "analytic"}
    return place | {"gb_s": gb_s, "latency_us": us} | more


TABLE = [
    row("all_reduce", 2, 1, 100.0, 1.0),
    row("all_reduce", 2, 2, 50.0, 1.0),
    row("all_reduce", 4, 1, 10.0, 1.0, algorithm="direct"),
    row("all_reduce", 4, 1, 40.0, 9.0, algorithm="ring"),
    row("message", 2, 1, 25.0, 0.5),
]


def test_an_operation_takes_latency_and_bytes_over_bandwidth() -> None:
    price = price_of(TABLE)
    assert price("all_reduce", 1000, (0, 1)) == 1000 + 10
    assert price("broadcast", 1000, (5, 7)) == 1000 + 20
    assert price("barrier", 0, (0, 1)) == 1000
    assert price("send", 1000, (1, 2)) == price("recv", 1000, (1, 2)) == 500 + 40


def test_the_faster_algorithm_is_taken_and_the_next_larger_shape() -> None:
    price = price_of(TABLE)
    assert price("all_reduce", 1000, (0, 1, 2, 3)) == 1000 + 100
    assert price("all_reduce", 10**6, (0, 1, 2, 3)) == 9000 + 25_000
    assert price("all_reduce", 1000, (0, 1, 2)) == 1000 + 100
    assert price("all_reduce", 1000, (0, 9)) == 1000 + 20, "the widest stride there is"
    with pytest.raises(ValueError, match="no rows of all_to_all"):
        price("all_to_all", 1, (0, 1))


def moments(issued: int, waited: int, resumed: int, busy: tuple[int, int, int]) -> dict[str, int]:
    names = ("issued", "waited", "resumed")
    walls = dict(zip((f"{name}_ns" for name in names), (issued, waited, resumed), strict=True))
    return walls | dict(zip((f"{name}_busy_ns" for name in names), busy, strict=True))


def trace() -> list[dict[str, Any]]:
    """Two ranks that share a core: 4 ms of computation take 8 ms, half of it while an
    all-reduce is under way.
    """
    events = []
    for rank in range(2):
        head = {"iteration": 1, "rank": rank, "mode": "electrical", "phase": ""}
        head |= {"reconfiguration_latency_ms": 0.0, "bytes": 10**8}
        ms = 10**6
        span = moments(0, 12 * ms, 12 * ms, (0, 4 * ms, 4 * ms))
        whole = {"kind": "iteration", "group": "", "channel": "", "sequence": -1}
        events.append(head | whole | span | {"start_ns": 0, "end_ns": 12 * ms})
        reduce = {"kind": "all_reduce", "group": "0,1", "channel": "0", "sequence": 0}
        span = moments(4 * ms, 8 * ms, 12 * ms, (2 * ms, 4 * ms, 4 * ms))
        events.append(head | reduce | span | {"start_ns": 4 * ms, "end_ns": 12 * ms})
    return events


def test_cluster_time_is_busy_time_and_the_price_of_communication() -> None:
    settings = ReplaySettings("analytic", "measured", None, (5.0,), (), "held", 0.0)
    fast = [row("all_reduce", 2, 1, 100.0, 0.0)]  # 1 ms, hidden
    slow = [row("all_reduce", 2, 1, 25.0, 0.0)]  # 4 ms, half of it hidden
    rows = cluster_time(trace(), {"fast": fast, "slow": slow}, settings, Layout(1), 1)
    found = {(one["topology"], one["mode"]): one for one in rows}
    assert {key: one["cluster_ms"] for key, one in found.items()} == {
        (RECORDED, "electrical"): 12.0,
        (RECORDED, "on_demand"): 17.0,
        ("fast", "electrical"): 4.0,
        ("fast", "on_demand"): 2.0 + 5.0 + 1.0,
        ("slow", "electrical"): 2.0 + 4.0,
        ("slow", "on_demand"): 2.0 + 5.0 + 4.0,
    }
    assert found["fast", "electrical"]["hidden_share"] == 1.0
    assert found["slow", "electrical"]["hidden_share"] == 0.5
    assert found["slow", "on_demand"]["stall_ms"] == 5.0
    assert found["slow", "electrical"]["wall_ms"] == 12.0
    assert found["slow", "on_demand"]["wall_ms"] is None, "it was not run"
    medians = {(one["topology"], one["mode"]): one for one in summarised(rows)}
    assert medians["slow", "electrical"]["cluster_ms"] == 6.0
    # The stage adds its own columns before and after these and declares their order.
    for own in (rows, summarised(rows)):
        assert {tuple(one)[:3] for one in own} == {("topology", "compute", "mode")}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("leases", "again"), [("held", 0), ("returned", 1)])
def test_leases_stay_with_their_members_as_in_a_run(
    leases: Literal["held", "returned"], again: int, first: int
) -> None:
    """The same circuits in the next iteration: nobody asks for them again.

    Also where the recording has not the first operation of the channel.
    """
    later = [
        {name: value + 20 * 10**6 if name.endswith("_ns") else value for name, value in one.items()}
        | {"iteration": 2, "sequence": min(one["sequence"] + 1 + first, 1 + first)}
        for one in trace()
    ]
    settings = ReplaySettings("analytic", "measured", None, (5.0,), (5.0,), leases, 0.0)
    rows = cluster_time([*trace(), *later], {}, settings, Layout(1), 1)
    asked = {(one["mode"], one["iteration"]): one["requests"] for one in rows}
    assert asked == {
        **{("electrical", number): 0 for number in (1, 2)},
        **{(mode, 1): 1 for mode in ("on_demand", "provisioned")},
        **{(mode, 2): again for mode in ("on_demand", "provisioned")},
    }


def test_messages_take_as_long_as_the_settings_say() -> None:
    settings = ReplaySettings("analytic", "measured", None, (0.0, 5.0), (), "held", 0.25)
    rows = cluster_time(trace(), {}, settings, Layout(1), 1)
    # The question and its answer.
    assert [one["cluster_ms"] for one in rows] == [12.0, 12.5, 17.5]


def test_a_shared_gpu_tells_no_cluster_time() -> None:
    settings = ReplaySettings("analytic", "measured", None, (), (), "held", 0.0)
    rows = cluster_time(trace(), {"fast": TABLE}, settings, Layout(1), 1, shared_device=True)
    assert {one["topology"] for one in rows} == {RECORDED}
    assert cluster_time(trace(), {}, settings, Layout(1), 2) == [], "warm-up is left out"


def test_a_cluster_takes_the_bandwidths_of_a_topology() -> None:
    cluster = ClusterSettings("c", 4, 1.0, 10, 1.0, {"2": 9.0}, topology="railx")
    table = [row("all_to_all", size, 1, 100.0 / size, 0.0) for size in (2, 4, 8)]
    strided = [row("all_to_all", 2, 2, 1.0, 0.0)]
    filled = with_topology(cluster, [*table, *strided])
    assert all_to_all_gb_s(filled) == {2: 50.0, 4: 25.0}
    unit = bandwidth_unit(checked("cost_model", "flexsp_7b"))
    fitted = all_to_all_gb_s(with_topology(cluster, table, unit))
    assert fitted == pytest.approx({2: 50e9 / (2**20 * 1000), 4: 25e9 / (2**20 * 1000)})
    assert bandwidth_unit(checked("cost_model", "analytic")) == 1.0
    with pytest.raises(SettingsError, match="has no exact all-to-all"):
        with_topology(cluster, strided)
