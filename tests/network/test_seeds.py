"""Seeds of repeats."""

from railx.network.traffic import repeat_seeds


def test_the_first_is_the_given_one_and_more_repeats_keep_the_others() -> None:
    assert repeat_seeds(7, 1) == (7,)
    five = repeat_seeds(7, 5)
    assert five[:3] == repeat_seeds(7, 3)
    assert len({*five, *repeat_seeds(8, 5)}) == 10
    assert all(isinstance(seed, int) and seed >= 0 for seed in five)
