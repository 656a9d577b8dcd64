"""Plans of arXiv 2410.00273: published rows, brute force, invariants. Sharded replicas
among many devices: rings of a grid, plans of equal batches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from railx.errors import UserError
from railx.performance.fsdp_scaling import NETWORKS, GridRing, scaling_rows
from railx.performance.networks import TwoLevelRing
from railx.performance.subramanian import DIVISIONS, Division, candidates, job_named, price, search
from railx.performance.subramanian_study import published_rows

#: A row of every division and of both models.
ROWS = (0, 35, 60, 119, 160, 219)


@pytest.mark.parametrize("number", ROWS)
def test_published_plans_are_the_fastest_and_take_the_published_time(number: int) -> None:
    row = published_rows()[number]
    priced = search(row.job)
    assert priced.sequences_per_s[priced.fastest] == pytest.approx(row.sequences_per_s, rel=1e-3)
    given = price(row.job, row.plan)
    assert given.sequences_per_s[0] == pytest.approx(row.sequences_per_s, rel=1e-3)
    assert given.memory_gb[0] == pytest.approx(row.memory_gb, rel=1e-4)
    assert given.parts["bubble"][0] / given.total_s[0] == pytest.approx(row.bubble, abs=1e-4)


def test_one_device_pays_operations_launches_and_memory_alone() -> None:
    job = job_named("vit_era5", "b200", 8, "1d", 1)
    ones = {name: np.ones(1, np.int64) for name in candidates(job)}
    parts = price(job, ones).parts
    for name in ("tensor", "pipeline", "bubble", "data"):
        assert parts[name][0] == 0
    # Six operations a weight and token, plus attention, at 0.8 of the peak at most.
    weights = 12 * job.model.hidden**2 * job.model.layers
    least = 6 * weights * job.model.tokens * job.global_batch / (2500e12 * 0.8)
    assert parts["compute"][0] > least


def test_boundaries_between_domains_take_no_time_where_stages_share_one() -> None:
    """Of seven boundaries, six lie inside domains of four stages (the public code)."""
    job = job_named("gpt3_1T", "b200", 8, "1d", 64)
    plans = {name: np.ones(2, np.int64) for name in candidates(job)}
    plans |= {"pipeline": np.array([8, 8]), "data": np.array([8, 8])}
    plans |= {"pipeline_near": np.array([8, 4]), "data_near": np.array([1, 2])}
    within, across = price(job, plans).parts["pipeline"]
    assert across == pytest.approx(within * 6 / 7)


@pytest.mark.parametrize("division", DIVISIONS)
def test_every_candidate_uses_all_devices_and_fits(division: Division) -> None:
    job = job_named("gpt3_1T", "b200", 8, division, 512)
    priced = search(job)
    plans = priced.plans
    ranks = plans["tensor"] * plans["sequence"] * plans["data"] * plans["pipeline"]
    assert (ranks == job.devices).all()
    near = [plans[f"{axis}_near"] for axis in ("tensor", "sequence", "data", "pipeline")]
    assert (np.prod(near, axis=0) == 8).all()
    assert (priced.memory_gb <= job.device.capacity_gb).all()
    columns = np.stack(list(plans.values()))
    assert np.unique(columns, axis=1).shape == columns.shape


@pytest.mark.parametrize("division", DIVISIONS)
def test_a_plan_has_the_same_time_alone_and_in_the_table(division: Division) -> None:
    job = job_named("gpt3_1T", "h200", 4, division, 256)
    priced = search(job)
    for row in (0, priced.fastest, len(priced.total_s) - 1):
        alone = price(job, {name: column[[row]] for name, column in priced.plans.items()})
        assert alone.total_s[0] == priced.total_s[row]


def test_faster_hardware_is_never_slower() -> None:
    job = job_named("gpt3_1T", "b200", 8, "2d", 1024)
    base = search(job)
    for key in ("vector_tflops", "memory_gb_s", "capacity_gb", "fast_gb_s", "slow_gb_s"):
        device = replace(job.device, **{key: 2 * getattr(job.device, key)})
        other = search(replace(job, device=device))
        assert other.total_s[other.fastest] <= base.total_s[base.fastest]


def test_a_model_that_fits_no_plan_and_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match=r"devices: got 4; gpt3_1T fits no plan on a100"):
        _ = search(job_named("gpt3_1T", "a100", 4, "1d", 4)).fastest
    with pytest.raises(UserError, match=r"model: got gpt4; allowed: gpt3_1T, vit_era5"):
        job_named("gpt4", "a100", 4, "1d", 4)
    with pytest.raises(UserError, match=r"division: got 3d; allowed: 1d, 2d, 2d-seqp"):
        job_named("gpt3_1T", "a100", 4, "3d", 4)  # type: ignore[arg-type]


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
