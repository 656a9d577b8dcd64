"""Bandwidth split once for all: rates, and steps on them; one bit a stage: what
excludes what, and what is shared.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.fabric.circuits import Configuration
from railx.steps.programs import PARALLELISMS, templates
from railx.steps.settings import StepSettings, SweepSettings, VariantSettings
from railx.steps.split import on_split, split_rates, split_rows
from railx.steps.sweep import StageBits, bit, traffic
from tests.steps.jobs import DEVICE, chosen, small

SIZES = st.dictionaries(
    st.sampled_from(["TP", "DP", "PP", "EP", "CP"]), st.floats(0, 1e15), min_size=1
).filter(lambda sizes: sum(sizes.values()) > 1)


@given(sizes=SIZES, total=st.floats(1, 1e4))
def test_rates_sum_to_the_total_and_none_goes_to_nothing(
    sizes: dict[str, float], total: float
) -> None:
    rates = split_rates(sizes, total)
    assert sum(rates.values()) == pytest.approx(total)
    assert rates.keys() == {name for name, size in sizes.items() if size > 0}


@given(sizes=SIZES, data=st.data())
def test_no_other_split_moves_the_bytes_sooner_one_after_the_other(
    sizes: dict[str, float], data: st.DataObject
) -> None:
    sizes = {name: size for name, size in sizes.items() if size > 1}
    if not sizes:
        return
    rates = split_rates(sizes, 500.0)
    other = {name: rate * data.draw(st.floats(0.1, 10)) for name, rate in rates.items()}
    scale = 500.0 / sum(other.values())
    best = sum(sizes[name] / rate for name, rate in rates.items())
    assert best <= sum(sizes[name] / (rate * scale) for name, rate in other.items()) * (1 + 1e-9)


def test_the_published_split_of_the_smoke_run() -> None:
    published = {"TP": 8248.0, "DP": 143.83, "PP": 17.18}
    for sent in (published, traffic(chosen("smoke").jobs()["overlapped"])):
        rates = split_rates(sent, 500)
        assert {name: round(rate) for name, rate in rates.items()} == {
            "TP": 425,
            "DP": 56,
            "PP": 19,
        }


def test_full_rates_change_nothing_and_half_rates_double_what_is_sent() -> None:
    job = small(data=2, pipeline=2, tensor=2)
    for template in templates(job, electrical=True):
        full = dict.fromkeys(PARALLELISMS.values(), 1.0)
        assert on_split(template, job, full).moves == template.moves
        half = on_split(template, job, dict.fromkeys(PARALLELISMS.values(), 0.5)).moves
        for before, after in zip(template.moves, half, strict=True):
            assert (after.lasts_ns, after.tensor_ns) == (2 * before.lasts_ns, 2 * before.tensor_ns)
            assert after.gap_ns - before.gap_ns == before.tensor_ns
            assert replace(after, lasts_ns=0, tensor_ns=0, gap_ns=0) == replace(
                before, lasts_ns=0, tensor_ns=0, gap_ns=0
            )


def test_a_job_that_never_waits_for_bytes_takes_as_long_on_any_split() -> None:
    job = small(data=2, pipeline=2, tensor=2, device=replace(DEVICE, scale_up_gb_s=1e9))
    job = replace(job, device=replace(job.device, scale_out_gb_s=1e9))
    sweep = SweepSettings(("circuits",), (0.0,))
    variants = {"one": VariantSettings(2, 2, 1, 1, "at_end")}
    rows = list(split_rows("small", StepSettings(job, variants, sweep)))
    assert [row["parallelism"] for row in rows] == ["TP", "PP", "DP"]
    assert {row["step_ms"] for row in rows} == {row["electrical_ms"] for row in rows}


#: Two servers of two for each of three stages: ranks 0 to 3 are stage 0.
BITS = StageBits(gpus_per_server=2, ranks_per_stage=4)


def pair(*ranks: int) -> Configuration:
    return Configuration("pair", ranks)


def ring(*ranks: int) -> Configuration:
    return Configuration("ring", ranks)


def test_a_message_sets_the_bits_of_both_stages() -> None:
    assert BITS.circuits(pair(0, 4)) == (bit(0, 0, 1), bit(0, 1, 1))
    assert BITS.circuits(pair(7, 11)) == (bit(1, 1, 1), bit(1, 2, 1))


def test_a_ring_clears_the_bit_of_its_stage() -> None:
    assert BITS.circuits(ring(4, 6)) == (bit(0, 1, 0),)
    assert BITS.circuits(ring(4, 5)) == ()
    assert BITS.is_scale_up((4, 5))


def test_replicas_share_a_stages_bits_and_rails_do_not() -> None:
    assert BITS.circuits(pair(0, 4)) == BITS.circuits(pair(2, 6))
    assert not BITS.conflict(pair(0, 4), pair(6, 10))
    assert BITS.conflict(pair(0, 4), ring(4, 6))
    assert BITS.conflict(ring(0, 2), pair(2, 6))
    assert not BITS.conflict(ring(0, 2), pair(4, 8))
    assert not BITS.conflict(ring(1, 3), pair(0, 4))


def test_the_bits_of_a_rail_are_switched_together() -> None:
    found = BITS.rails([*BITS.circuits(pair(1, 5)), *BITS.circuits(ring(0, 2))])
    assert found == {0: (bit(0, 0, 0),), 1: (bit(1, 0, 1), bit(1, 1, 1))}


def test_servers_do_not_cross_stages() -> None:
    with pytest.raises(ValueError, match=r"^ranks_per_stage: got 3; allowed: a multiple of 2"):
        StageBits(2, 3)
