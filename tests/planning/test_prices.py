"""The programme of prices against a general solver."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import linprog
from scipy.sparse import lil_array

from railx.planning.sequence.bound import Numbers, class_prices

Floats = npt.NDArray[np.float64]


def _least(shares: Floats, cost: Floats, numbers: Numbers) -> float:
    """The same programme, written out."""
    durations, classes, kinds, parts = shares.shape
    members = list(zip(*np.nonzero(np.isfinite(shares[..., 0])), strict=True))
    devices = durations
    first = devices + durations * kinds
    columns = first + len(members)
    equal, below = (
        lil_array((classes, columns)),
        lil_array((durations * (classes + kinds * parts + 1) + len(numbers.limit), columns)),
    )
    for index, (k, c, d) in enumerate(members):
        column = first + index
        equal[c, column] = 1
        below[k * classes + c, column] = 1
        for j in range(parts):
            row = durations * classes + (k * kinds + d) * parts + j
            below[row, column] = shares[k, c, d, j]
    for k in range(durations):
        for c in range(classes):
            below[k * classes + c, k] = -1
        last = durations * (classes + kinds * parts) + k
        below[last, k] = -1
        for d in range(kinds):
            below[last, devices + k * kinds + d] = 1
            for j in range(parts):
                row = durations * classes + (k * kinds + d) * parts + j
                below[row, devices + k * kinds + d] = -1
    limits = np.zeros(below.shape[0])
    for row, (counted, limit, sign) in enumerate(zip(*numbers, strict=True)):
        last = below.shape[0] - len(numbers.limit) + row
        limits[last] = sign * limit
        for k in np.flatnonzero(counted):
            below[last, k] = sign
    objective = np.concatenate((cost, np.zeros(columns - durations)))
    result = linprog(objective, below.tocsr(), limits, equal.tocsr(), np.ones(classes))
    assert result.success
    assert result.fun is not None
    return float(result.fun)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("at_least", [True, False])
@pytest.mark.parametrize("is_cut", [False, True])
def test_least_is_a_general_solvers(seed: int, at_least: bool, is_cut: bool) -> None:
    random = np.random.default_rng(seed)
    classes, durations, kinds = (int(random.integers(2, most)) for most in (12, 8, 4))
    cost = np.sort(random.uniform(0.5, 2.0, durations))
    # Longer durations fit more classes, in a smaller share of their device time.
    shares = random.uniform(0.05, 0.6, (1, classes, kinds, 4)) / cost[:, None, None, None]
    longer = random.uniform(0, 2.5, (1, classes, kinds)) > cost[:, None, None]
    longer[-1] = False
    shares[longer] = np.inf
    number = float(np.ceil(shares[-1, ..., 1].min(axis=1).sum()) + (0 if at_least else 4))
    numbers = Numbers(
        np.ones((1, durations)), np.array([number]), np.array([-1.0 if at_least else 1.0])
    )
    if is_cut:
        # At least two micro-batches of the longest duration, and not too many of
        # the second or longer.
        longer = np.arange(durations) >= np.array([0, durations - 1, 1])[:, None]
        limits = np.array([number, 2.0, 2.0 + number])
        numbers = Numbers(longer.astype(np.float64), limits, np.append(numbers.sign, (-1.0, 1.0)))
    prices, counts, duals, losses, least = class_prices(shares, cost, numbers, 60, 3e-4)
    assert least == pytest.approx(_least(shares, cost, numbers), rel=1e-3)
    assert (counts >= 0).all()
    assert (numbers.sign * (numbers.counted @ counts - numbers.limit) <= 2e-3 * number).all()
    assert (duals <= 1e-9).all()
    assert losses @ counts <= 1e-3 * least
    # Where the numbers of micro-batches cost most, prices are 0 within the gap.
    assert (prices >= (-1e-5 if is_cut else -1e-6)).all()
