"""Ring all-reduce: closed forms, limits, and a step-by-step simulation of one ring."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.network import CollectiveSettings
from railx.network.collectives import simulate_collectives
from railx.settings import SettingsError
from railx.vocabulary.topology import Topology
from tests.builders import build, checked, hyperx

COLUMNS = [
    "topology", "family", "collective", "algorithm", "scope", "participants", "rings",
    "payload_bytes", "time_ms", "algorithm_gb_s", "fidelity",
]  # fmt: skip


def collectives(payload_bytes: Any = (10**9,), **changes: Any) -> CollectiveSettings:
    given = {"payload_bytes": list(payload_bytes)} | changes
    settings: CollectiveSettings = checked("collective", "ring_all_reduce", **given)
    return settings


def ring_all_reduce(topology: Topology, collective: CollectiveSettings, name: str) -> list[Any]:
    alone = replace(collective, collectives=("ring_all_reduce",))
    return simulate_collectives(topology, alone, name)


def times(topology: Topology, payload_bytes: int) -> dict[str, dict[str, Any]]:
    rows = ring_all_reduce(topology, collectives((payload_bytes,)), "under test")
    return {row["scope"]: row for row in rows}


def test_config_and_columns() -> None:
    collective: CollectiveSettings = checked("collective", "ring_all_reduce")
    rows = ring_all_reduce(build("railx_hyperx"), collective, "named")
    assert [list(row) for row in rows] == [COLUMNS] * len(rows)
    assert {row["scope"] for row in rows} == {"row", "column", "nodes", "chips"}
    assert len(rows) == 4 * len(collective.payload_bytes)
    assert all(
        row["algorithm_gb_s"] == pytest.approx(row["payload_bytes"] / 1e9 / (row["time_ms"] / 1e3))
        for row in rows
    )
    for scope in ("row", "column", "nodes", "chips"):
        per_payload = [row["time_ms"] for row in rows if row["scope"] == scope]
        assert per_payload == sorted(per_payload)


@pytest.mark.parametrize("bad", [[], [0], [-4], ["much"]])
def test_payloads_must_be_positive(bad: list[Any]) -> None:
    with pytest.raises(SettingsError, match=r"collective\.payload_bytes"):
        collectives(bad)


@settings(deadline=None, max_examples=15)
@given(m=st.integers(1, 4), n=st.integers(1, 4))
def test_large_payloads_on_all_rails_of_both_dimensions(m: int, n: int) -> None:
    if m * n < 2:
        return
    topology = hyperx(m, n)
    payload = 10**15
    found = times(topology, payload)
    nodes, chips, port = (m * n + 1) ** 2, topology.chips, 50.0
    assert found["nodes"]["participants"] == nodes
    assert found["nodes"]["rings"] == 4 * m * n
    assert found["nodes"]["time_ms"] * 1e6 == pytest.approx(
        2 * payload * (nodes - 1) / nodes / (4 * m * n * port), rel=1e-5
    )
    assert found["chips"]["participants"] == chips
    assert found["chips"]["time_ms"] * 1e6 == pytest.approx(
        2 * payload * (chips - 1) / chips / (4 * n * port), rel=1e-5
    )
    line = m * n + 1
    assert found["row"]["time_ms"] * 1e6 == pytest.approx(
        2 * payload * (line - 1) / line / (2 * m * n * port), rel=1e-5
    )


@settings(deadline=None, max_examples=10)
@given(n=st.integers(1, 3), payload=st.integers(1, 10**10))
def test_the_all_to_all_setting_costs_the_rings_nothing(n: int, payload: int) -> None:
    side = 2 * n + 1
    hyperx = times(build("railx_hyperx", m=2, n=n), payload)
    torus = times(build("railx_torus", m=2, n=n, x_scale=side, y_scale=side), payload)
    for scope in hyperx:
        assert hyperx[scope]["time_ms"] == pytest.approx(torus[scope]["time_ms"])


def test_full_scale_all_reduce_tends_to_half_the_injection() -> None:
    row = times(build("railx_hyperx_full"), 10**14)["chips"]
    assert row["participants"] == 200_704
    assert row["algorithm_gb_s"] == pytest.approx(900, rel=1e-4)


def test_torus_and_fat_tree_use_all_ports() -> None:
    torus = times(build("torus_2d", x_scale=10, y_scale=10, n=2), 10**15)
    assert set(torus) == {"row", "column", "chips"}
    assert torus["chips"]["algorithm_gb_s"] == pytest.approx(8 * 50 / 2 * 100 / 99, rel=1e-5)
    tree = times(build("fat_tree", switch_radix=8, planes=8), 10**15)
    assert set(tree) == {"chips"}
    assert tree["chips"]["rings"] == 8
    assert tree["chips"]["algorithm_gb_s"] == pytest.approx(8 * 50 / 2 * 128 / 127, rel=1e-5)


def test_small_payloads_cost_the_latency_of_the_slowest_chain() -> None:
    railx = times(
        build("railx_hyperx", m=3, n=2, internal_latency_ns=7.0, external_latency_ns=90.0), 1
    )
    assert railx["row"]["time_ms"] * 1e6 == pytest.approx(2 * 6 * (90 + 2 * 7), rel=1e-3)
    assert railx["nodes"]["time_ms"] * 1e6 == pytest.approx(4 * 6 * (90 + 2 * 7), rel=1e-3)
    assert railx["chips"]["time_ms"] * 1e6 == pytest.approx(4 * (7 * 90 + 13 * 7), rel=1e-3)
    tree = times(
        build("fat_tree", switch_radix=4, planes=1, leaf_latency_ns=5.0, global_latency_ns=10.0), 1
    )
    # 16 chips in a ring: 8 hops inside a leaf, 4 inside a pod, 4 between pods; the
    # fastest hop is not needed.
    assert tree["chips"]["time_ms"] * 1e6 == pytest.approx(2 * (7 * 10 + 4 * 30 + 4 * 50), rel=1e-3)


def test_unequal_dimensions_wait_for_the_longer_one() -> None:
    torus = times(build("torus_2d", x_scale=8, y_scale=2, n=1, latency_ns=0.0), 1_600)
    # Halves of 800 bytes over 100 GB/s a dimension: 7 ns (x) against 4 ns (y), then 800
    # / 8 in y against 800 / 2 in x.
    assert torus["chips"]["time_ms"] * 1e6 == pytest.approx(2 * (max(7.0, 4.0) + max(0.5, 3.5)))


@settings(deadline=None, max_examples=25)
@given(
    m=st.integers(1, 4),
    internal=st.integers(0, 50),
    external=st.integers(0, 200),
    payload=st.integers(1, 10**7),
)
def test_row_of_chips_equals_a_simulated_ring(
    m: int, internal: int, external: int, payload: int
) -> None:
    """One ring through m chips in each of 5 nodes, messages sent one by one, both
    phases after a barrier.
    """
    n = 4
    settings_ = {
        "m": m,
        "n": n,
        "internal_latency_ns": float(internal),
        "external_latency_ns": float(external),
    }
    side = m * n + 1
    topology = build("railx_hyperx", **settings_)
    latencies = ([float(internal)] * (m - 1) + [float(external)]) * side
    per_ring = payload / 2 / (2 * n)
    first = _simulated_reduce_scatter(latencies, per_ring / len(latencies) / 50)
    second = _simulated_reduce_scatter(latencies, per_ring / len(latencies) ** 2 / 50)
    assert times(topology, payload)["chips"]["time_ms"] * 1e6 == pytest.approx(2 * (first + second))


def _simulated_reduce_scatter(latencies: list[float], send: float) -> float:
    """Finish of a ring reduce-scatter: a participant forwards what has arrived as soon
    as its own link is free.
    """
    participants = len(latencies)
    ready, free = [0.0] * participants, [0.0] * participants
    for _ in range(participants - 1):
        start = [max(r, f) for r, f in zip(ready, free, strict=True)]
        free = [s + send for s in start]
        ready = [start[i - 1] + send + latencies[i - 1] for i in range(participants)]
    return max(ready)
