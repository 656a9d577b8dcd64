"""Plans of arXiv 2410.00273: published rows, brute force, invariants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from railx.errors import UserError
from railx.performance.subramanian import (
    DIVISIONS,
    Division,
    candidates,
    job_named,
    price,
    search,
)
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
