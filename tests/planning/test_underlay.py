"""Plans on other networks: priced there by hand, and made anew."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from railx.performance.sequence_cost import build_cost_model
from railx.planning.format.plan import Plan
from railx.planning.make import make_plan
from railx.planning.underlay import mix_rows, on_network, remade, repriced
from railx.settings import SettingsError
from tests.builders import checked

LENGTHS = np.random.default_rng(3).integers(500, 60_000, 40)
#: FlexSP's table in 10^9 byte/s: its unit is 2^20 * 1000 byte/s.
PUBLISHED = {2: 119.54, 4: 104.07, 8: 96.5, 16: 10.33, 32: 5.94, 64: 4.87}
OWN = {degree: gb_s * 1.048576 for degree, gb_s in PUBLISHED.items()}


def plan(planner: str = "static_per_batch") -> Plan:
    batch = replace(checked("batch", "global_512"), batch_size=20, batches=2)
    return make_plan(
        checked("planner", planner),
        LENGTHS,
        checked("cluster", "a100_64"),
        checked("model", "gpt_7b"),
        checked("cost_model", "flexsp_7b"),
        batch,
        1,
    )


def cost(made: Plan, table: dict[int, float], switch_ms: float = 0.0) -> Any:
    there = on_network(made, table, switch_ms)
    return build_cost_model(there["cost_model"], there["cluster"], there["model"], 192_000)


def test_its_own_bandwidths_give_a_plan_its_own_times() -> None:
    made = plan()
    batches = made.sequence_parallel_batches()
    for again in (repriced(made, cost(made, OWN)), *remade(made, LENGTHS, OWN)):
        for one, other in zip(again, batches, strict=True):
            assert one.predicted_ms == pytest.approx(other.predicted_ms, rel=1e-12)
            groups = [group for part in other.micro_batches for group in part.groups]
            moved = [group for part in one.micro_batches for group in part.groups]
            assert [(g.ranks, g.sequences) for g in moved] == [
                (g.ranks, g.sequences) for g in groups
            ]


def test_another_bandwidth_changes_the_all_to_all_alone() -> None:
    """Half of it takes twice as long, and the slowest group is the micro-batch."""
    made = plan()
    halved = repriced(made, cost(made, {degree: gb_s / 2 for degree, gb_s in OWN.items()}))
    for one, other in zip(halved, made.sequence_parallel_batches(), strict=True):
        for part, before in zip(one.micro_batches, other.micro_batches, strict=True):
            for group, own in zip(part.groups, before.groups, strict=True):
                assert group.predicted_compute_ms == pytest.approx(own.predicted_compute_ms)
                assert group.predicted_all_to_all_ms == pytest.approx(
                    2 * own.predicted_all_to_all_ms
                )
                assert group.predicted_ms == pytest.approx(
                    group.predicted_compute_ms + group.predicted_all_to_all_ms
                )
            assert part.predicted_ms == max(group.predicted_ms for group in part.groups)


def test_switching_is_paid_once_a_micro_batch() -> None:
    made = plan()
    for one, other in zip(
        repriced(made, cost(made, OWN, 25.0)), made.sequence_parallel_batches(), strict=True
    ):
        more = 25.0 * len(other.micro_batches)
        assert one.predicted_ms == pytest.approx(other.predicted_ms + more)


def test_a_plan_made_anew_suits_its_network_better() -> None:
    """Where every degree costs the same, the largest single degree wins."""
    flat = dict.fromkeys(OWN, 6.0)
    carried, anew = remade(plan(), LENGTHS, flat)
    before, after = (sum(batch.predicted_ms for batch in made) for made in (carried, anew))
    assert after < 0.99 * before
    degrees = {g.degree for batch in anew for part in batch.micro_batches for g in part.groups}
    assert degrees == {64}


def test_device_time_adds_up_to_all_devices() -> None:
    batches = plan().sequence_parallel_batches()
    rows = mix_rows(batches, 64)
    shares: dict[int, float] = defaultdict(float)
    for row in rows:
        shares[row["iteration"]] += row["share"]
        assert 0 <= row["all_to_all_device_ms"] <= row["device_ms"]
    assert shares == pytest.approx({batch.iteration: 1.0 for batch in batches})
    for batch in batches:
        own = [row for row in rows if row["iteration"] == batch.iteration]
        assert sum(row["tokens"] for row in own) == batch.tokens
        assert sum(row["sequences"] for row in own) == len(batch.sequences)
        assert {row["micro_batches"] for row in own} == {len(batch.micro_batches)}
        groups = [group for part in batch.micro_batches for group in part.groups]
        waiting = next(row for row in own if row["degree"] == 0)
        assert waiting["device_ms"] == pytest.approx(
            64 * batch.predicted_ms - sum(group.degree * group.predicted_ms for group in groups)
        )


def test_a_profile_has_no_constant_to_add_switching_to() -> None:
    made = plan()
    profiled = {
        "kind": "profile",
        "profile": "x",
        "state_bytes_per_parameter": 16,
        "zero_stage": 3,
        "fit": None,
    }
    other = replace(made, settings={**made.settings, "cost_model": profiled})
    with pytest.raises(SettingsError, match=r"^switch_ms: got a plan by a profile; allowed"):
        on_network(other, OWN, 1.0)
