"""One bit a stage: what excludes what, and what is shared."""

from __future__ import annotations

import pytest

from railx.fabric.circuits import Configuration
from railx.steps.stage_bits import StageBits, bit

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
