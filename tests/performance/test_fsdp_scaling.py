"""Sharded replicas among many devices: rings of a grid, plans of equal batches."""

from __future__ import annotations

import numpy as np
import pytest

from railx.performance.fsdp_scaling import NETWORKS, GridRing, scaling_rows
from railx.performance.networks import TwoLevelRing

NODE = {"node_devices": 8, "fast_gb_s": 400.0, "slow_gb_s": 50.0}
RING, GRID = (
    kind(**NODE, fast_latency_s=1e-6, slow_latency_s=1e-5, fast_share=1.0, slow_share=1.0)
    for kind in (TwoLevelRing, GridRing)
)


def times(network: TwoLevelRing, size: float, members: int, inside: int) -> float:
    arrays = (np.array([value]) for value in (size, members, inside))
    return float(network.time_s("all_gather", *arrays)[0])


def test_a_grid_sends_the_bytes_of_a_ring_over_fewer_hops() -> None:
    # 256 nodes of 8: 7 hops inside, 15 along a row, 15 along a column.
    assert times(GRID, 0.0, 2048, 8) == pytest.approx(7 * 1e-6 + 30 * 1e-5)
    large = 1e15
    assert times(GRID, large, 2048, 8) == pytest.approx(times(RING, large, 2048, 8), rel=1e-6)
    assert times(GRID, 1e9, 8, 8) == times(RING, 1e9, 8, 8)


def test_every_plan_uses_all_devices_with_the_same_batch() -> None:
    rows = list(scaling_rows((8, 64)))
    assert {row["network"] for row in rows} == set(NETWORKS)
    for row in rows:
        assert row["tensor"] * row["pipeline"] * row["data"] == row["devices"]
        # Two sequences of 4,096 tokens a device and step.
        rate = 2 * 4096 / row["step_s"]
        assert row["tokens_per_s_device"] == pytest.approx(rate)
        assert 0 < row["mfu"] < 1
    alone = [row for row in rows if row["tensor"] == row["pipeline"] == 1]
    assert {row["sharding"] for row in alone} == {"parameters"}


def test_one_plan_of_each_size_is_the_fastest() -> None:
    rows = list(scaling_rows((128, 2048)))
    for network in NETWORKS:
        for devices in (128, 2048):
            part = [
                row
                for row in rows
                if (row["network"], row["device"], row["devices"])
                == (network, "h100_80gb", devices)
            ]
            fastest = [row for row in part if row["fastest"]]
            assert len(fastest) == 1
            assert fastest[0]["step_s"] == min(row["step_s"] for row in part)


def test_photonic_rails_have_no_stages_and_rails_alone_time_as_rails_with_spines() -> None:
    rows = [row for row in scaling_rows((512,)) if row["device"] == "h100_80gb"]
    steps = {(row["network"], row["tensor"], row["pipeline"]): row["step_s"] for row in rows}
    assert {stages for network, _, stages in steps if network == "opus_rails"} == {1}
    for (network, tensor, stages), seconds in steps.items():
        if network in ("rail_only", "opus_rails"):
            assert seconds == steps["rail_optimised", tensor, stages]
