"""The programme of prices against a general solver."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import linprog

from railx.planning.sequence.bound import class_prices

Floats = npt.NDArray[np.float64]


def _least(time: Floats, room: Floats, cost: Floats, number: float, at_least: bool) -> float:
    """The same programme, written out."""
    classes, durations = time.shape
    pairs = list(zip(*np.nonzero(np.isfinite(time)), strict=True))
    columns = durations + len(pairs)
    equal = np.zeros((classes, columns))
    below = np.zeros((len(pairs) + 2 * durations + 1, columns))
    for index, (row, column) in enumerate(pairs):
        share = durations + index
        equal[row, share] = 1
        below[index, [share, column]] = 1, -1
        below[len(pairs) + column, share] = time[row, column]
        below[len(pairs) + durations + column, share] = room[row]
    for column in range(durations):
        below[len(pairs) + column, column] = -1
        below[len(pairs) + durations + column, column] = -1
    sign = -1 if at_least else 1
    below[-1, :durations] = sign
    limits = np.zeros(len(below))
    limits[-1] = sign * number
    result = linprog(
        np.concatenate((cost, np.zeros(len(pairs)))), below, limits, equal, np.ones(classes)
    )
    assert result.success
    assert result.fun is not None
    return float(result.fun)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("at_least", [True, False])
def test_least_is_a_general_solvers(seed: int, at_least: bool) -> None:
    random = np.random.default_rng(seed)
    classes, durations = int(random.integers(2, 12)), int(random.integers(2, 8))
    cost = np.sort(random.uniform(0.5, 2.0, durations))
    # Longer durations fit more classes, in a smaller share of their device time.
    time = random.uniform(0.05, 0.6, (classes, 1)) / cost
    time[random.uniform(0, 2.5, (classes, 1)) > cost] = np.inf
    time[:, -1] = random.uniform(0.05, 0.3, classes)
    room = random.uniform(0.05, 0.4, classes)
    number = float(np.ceil(room.sum()) if at_least else np.ceil(room.sum()) + 4)
    prices, counts, by_time, by_memory, least = class_prices(time, room, cost, number, at_least, 60)
    assert least == pytest.approx(_least(time, room, cost, number, at_least), rel=1e-4)
    assert (counts >= 0).all()
    assert (by_time <= 1e-9).all()
    assert (by_memory <= 1e-9).all()
    assert (prices >= -1e-6).all()
