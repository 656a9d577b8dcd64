"""The bound of a whole batch against exhaustive search."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.batches import DEVICES, Case, cases, cost_of
from railx.performance.sequence_cost import CostModel
from railx.planning.sequence import bound
from railx.planning.sequence.bound import _shares, batch_lower_bound_ms
from railx.planning.sequence.search import Problem
from railx.planning.sequence.small import optimum
from tests.planning import sequence_optima
from tests.planning.optima import costs, optimum_ms

#: Stored plans of a search of 60 s (benchmarks/planners.csv, ms), and the largest share
#: that the bound may lie below them.
FOUND = {
    "wikipedia_32k_0": (2896.918, 0.006),
    "wikipedia_192k_2": (6557.357, 0.025),
    "github_like_64k_3": (10651.749, 0.018),
    "github_like_192k_3": (10258.224, 0.03),
    "commoncrawl_like_192k_0": (10306.865, 0.03),
    # 0.038 in the rounds of a batch without a known plan.
    "commoncrawl_like_192k_3": (10238.152, 0.029),
}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(1, 8), costs())
def test_no_plan_is_faster(lengths: list[int], devices: int, cost: CostModel) -> None:
    proven = batch_lower_bound_ms(np.array(lengths), devices, cost.any_degrees, cost)
    optimum = optimum_ms(lengths, devices, cost)
    assert proven <= optimum * (1 + 1e-9)
    assert math.isinf(proven) == math.isinf(optimum)


@pytest.mark.parametrize(
    ("lengths", "tokens_per_device"),
    [
        # Further micro-batches: any number of them, and at most so many.
        ([7319] * 9, 4477),
        ([7450, 7145, 6598, 5978, 5606, 5347, 4963, 4880, 1675, 1607], 3785),
    ],
)
def test_plans_of_more_micro_batches_than_memory_needs_are_bounded(
    lengths: list[int], tokens_per_device: int, large: CostModel
) -> None:
    cost = replace(large, tokens_per_device=tokens_per_device, constant_ms=50.0)
    best_ms = optimum(Problem.of(np.array(lengths), 2, (1, 2), cost)).time_ms
    for plan_ms in (math.inf, best_ms, 1.3 * best_ms):
        proven = batch_lower_bound_ms(np.array(lengths), 2, (1, 2), cost, plan_ms)
        assert proven <= best_ms * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=7),
    costs(),
    st.floats(0.05, 3.0),
)
def test_shares_of_a_group_add_up_to_one_at_most(
    lengths: list[int], cost: CostModel, scale: float
) -> None:
    tokens = np.sort(np.array(lengths, dtype=np.float64))[::-1].copy()
    degrees = np.array(cost.any_degrees, dtype=np.float64)
    per_token = np.array(list(cost.all_to_all_ms.values()))
    alone = cost.sequence_ms(tokens)[:, None] / degrees + tokens[:, None] * per_token
    alone[tokens[:, None] > cost.tokens_per_device * degrees] = np.inf
    # A duration near the time of some group.
    stop = scale * float(np.min(alone[0], initial=alone[-1].min(), where=alone[0] < np.inf))
    shares = np.empty((len(tokens), len(degrees), 4))
    _shares(alone, tokens, degrees, float(cost.tokens_per_device), stop, shares)
    for kind, degree in enumerate(degrees):
        for part in range(1, 1 << len(tokens)):
            members = [index for index in range(len(tokens)) if part >> index & 1]
            busy, held = alone[members, kind].sum(), tokens[members].sum()
            if busy < stop * (1 - 1e-12) and held <= cost.tokens_per_device * degree:
                assert (shares[members, kind].sum(axis=0) <= degree * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=5),
    st.integers(1, 8),
    costs(),
    st.integers(0, 2**32 - 1),
)
def test_no_prices_and_weights_prove_too_much(
    lengths: list[int], devices: int, cost: CostModel, seed: int
) -> None:
    """Prices of a programme that has gone wrong: any ones."""
    random, correct = np.random.default_rng(seed), bound.class_prices

    def wrong(*arguments: Any) -> Any:
        prices, counts, duals, losses, least = correct(*arguments)
        broken = random.choice([-1e300, -np.inf, np.nan], duals.shape)
        return (
            prices * random.uniform(0, 3, prices.shape),
            counts * random.uniform(0.5, 2),
            np.where(
                random.uniform(size=duals.shape) < 0.05,
                broken,
                duals * random.uniform(0, 3, duals.shape),
            ),
            losses,
            least,
        )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bound, "class_prices", wrong)
        proven = batch_lower_bound_ms(np.array(lengths), devices, cost.any_degrees, cost)
    assert proven <= optimum_ms(lengths, devices, cost) * (1 + 1e-9)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(1, 200), min_size=2, max_size=6),
    st.integers(1, 8),
    costs(),
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.02, 1.5)), min_size=1, max_size=6),
)
def test_any_cuts_by_durations_prove_a_bound(
    lengths: list[int], devices: int, cost: CostModel, wanted: list[tuple[int, float]]
) -> None:
    """Cuts by whichever micro-batch, at whichever duration."""
    optimum, left = optimum_ms(lengths, devices, cost), list(wanted)

    def cut(_: Any, windows: tuple[tuple[float, float], ...]) -> tuple[int, float] | None:
        if not left or math.isinf(optimum):
            return None
        rank, share = left.pop()
        low, high = windows[rank % len(windows)]
        middle = share * optimum
        return (rank % len(windows), middle) if low < middle < high else None

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bound._Prices, "cut", cut)
        patched.setattr(bound, "_ENOUGH", 0.0)
        patched.setattr(bound, "_MORE_ROUNDS", 2 * len(wanted) + 2)
        # A plan far above any bound.
        proven = batch_lower_bound_ms(
            np.array(lengths), devices, cost.any_degrees, cost, 1e6 * optimum
        )
    assert proven <= optimum * (1 + 1e-9)


def test_no_interval_crosses_a_cut(small: CostModel) -> None:
    worths, looked_at = bound._worths, set()

    def checked(*arguments: Any) -> Any:
        starts, stops, *others = worths(*arguments)
        for edge in arguments[-1].ravel():
            assert not ((starts < edge) & (edge < stops)).any()
            assert edge in {0.0, *starts, *stops, math.inf}
            looked_at.add(edge)
        return starts, stops, *others

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bound, "_worths", checked)
        patched.setattr(bound, "_ENOUGH", 0.0)
        patched.setattr(
            bound._Prices, "cut", lambda _, windows: (0, 50.0) if windows[0][0] == 0 else None
        )
        batch_lower_bound_ms(np.array([200, 150, 90, 30, 30]), 4, (1, 2), small)
    assert looked_at == {0.0, 50.0, math.inf}


def test_plans_on_either_side_of_a_cut_are_all_plans() -> None:
    anything = ((0.0, math.inf),) * 3
    none = np.zeros(0)
    node = bound._Node(3, None, anything, none, (none, none))
    shorter, longer = node.halves(1, 5.0)
    assert shorter.windows == ((0.0, math.inf), (0.0, 5.0), (0.0, 5.0))
    assert longer.windows == ((5.0, math.inf), (5.0, math.inf), (0.0, math.inf))
    durations = np.array([4.0, 5.0, 6.0])
    for half, limit, sign in ((shorter, 1.0, 1.0), (longer, 2.0, -1.0)):
        counted, limits, signs = half.numbers(durations)
        assert counted.tolist() == [[1, 1, 1], [0, 1, 1]]
        assert (limits.tolist(), signs.tolist()) == ([3.0, limit], [-1.0, sign])


def test_a_known_plan_is_bounded_more_closely(compared: dict[str, Case]) -> None:
    """Bounds of batches that stay wide get more rounds, and no others."""
    for name, closer in (("commoncrawl_like_192k_3", True), ("wikipedia_32k_0", False)):
        case = compared[name]
        given = (case.batch.lengths, DEVICES, case.cost.degrees, case.cost)
        alone, known = batch_lower_bound_ms(*given), batch_lower_bound_ms(*given, FOUND[name][0])
        assert known <= FOUND[name][0]
        assert (known > alone) == closer


def test_stored_optima_are_bounded_closely() -> None:
    stored, ratios = sequence_optima.optima_ms(), []
    for instance in list(sequence_optima.instances())[::6]:
        proven = batch_lower_bound_ms(
            np.array(instance.lengths), instance.devices, instance.cost.degrees, instance.cost
        )
        ratios.append(proven / stored[instance.index])
    assert max(ratios) <= 1 + 1e-9
    assert sum(ratios) / len(ratios) >= 0.9


@pytest.fixture(scope="module")
def compared() -> dict[str, Case]:
    return {case.name: case for case in cases() if case.name in FOUND}


@pytest.mark.parametrize("name", FOUND)
def test_bound_is_close_to_what_a_search_finds(name: str, compared: dict[str, Case]) -> None:
    case, (found_ms, share) = compared[name], FOUND[name]
    lengths, degrees = case.batch.lengths, case.cost.degrees
    proven = batch_lower_bound_ms(lengths, DEVICES, degrees, case.cost, found_ms)
    assert found_ms * (1 - share) <= proven <= found_ms


@pytest.mark.parametrize("name", ["wikipedia_32k_0", "commoncrawl_like_192k_0"])
def test_more_freedom_does_not_raise_the_bound(name: str, compared: dict[str, Case]) -> None:
    lengths, cost = compared[name].batch.lengths, compared[name].cost
    degrees = cost.degrees
    whole = batch_lower_bound_ms(lengths, DEVICES, degrees, cost)
    # Prices are not the best ones to the last bit.
    for less in (
        batch_lower_bound_ms(lengths, DEVICES, degrees[1:], cost),
        batch_lower_bound_ms(lengths, DEVICES // 2, degrees, cost),
        batch_lower_bound_ms(
            lengths, DEVICES, degrees, replace(cost, tokens_per_device=cost.tokens_per_device // 2)
        ),
    ):
        assert whole <= less * 1.002


def test_batch_that_fills_its_micro_batches_is_bounded_exactly(small: CostModel) -> None:
    # Four devices of 100 tokens: three micro-batches of four full groups of degree 1.
    lengths = np.full(12, 100)
    one = small.group_time_ms([100], 1).total_ms
    proven = batch_lower_bound_ms(lengths, 4, (1,), small)
    assert proven == pytest.approx(3 * one, rel=1e-3)
    assert proven <= 3 * one


def test_order_does_not_matter(compared: dict[str, Case]) -> None:
    case = compared["wikipedia_32k_0"]
    lengths, degrees = case.batch.lengths, case.cost.degrees
    assert batch_lower_bound_ms(lengths, 64, degrees, case.cost) == batch_lower_bound_ms(
        lengths[::-1].copy(), 64, degrees, case.cost
    )


def test_no_sequences_take_no_time_and_one_that_fits_nowhere_all(small: CostModel) -> None:
    assert batch_lower_bound_ms(np.array([], dtype=np.int64), 4, (1, 2), small) == 0.0
    assert batch_lower_bound_ms(np.array([201]), 4, (1, 2), small) == math.inf
    assert batch_lower_bound_ms(np.array([10]), 1, (2, 4), small) == math.inf
    assert batch_lower_bound_ms(np.array([200]), 4, (1, 2), small) < math.inf


def test_thousand_devices_are_bounded_too() -> None:
    case = next(cases(("github_like",), (192_000,), 1, 8_192))
    lengths, cost = case.batch.lengths, cost_of(192_000)
    proven = batch_lower_bound_ms(lengths, 1_024, cost.degrees, cost)
    held = 1_024 * cost.tokens_per_device
    fewest = -(-int(lengths.sum()) // held)
    assert proven > cost.sequence_ms(lengths).sum() / 1_024 + fewest * cost.constant_ms
