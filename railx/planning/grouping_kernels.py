"""Chunks into pipelines of neighbours (InfiniPipe's eq. 14), compiled.

See ``railx.planning.pipeline``, which prices thousands of possible pipelines a plan.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from railx.planning.checkpoint_kernels import sweep
from railx.planning.simulation_kernels import one_f_one_b_ms

__all__ = ["ADAPTIVE", "FULL", "NONE", "divide"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: What is recomputed: as much as memory asks for, every layer, or nothing.
ADAPTIVE, FULL, NONE = 0, 1, 2


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def divide(
    kept: Floats,
    saved: Floats,
    capacity: Floats,
    layer_counts: Integers,
    slack: float,
    forward: Floats,
    backward: Floats,
    layer_ms: Floats,
    sends: Floats,
    order: Integers,
    count: Integers,
    edges: Integers,
    mode: int,
    simulated: bool,
) -> tuple[Integers, float, float]:
    """Where the pipelines begin and end, their price by eq. 14, and their time in ms.

    ``edges`` [u + 1] are first chunks of units and the end, ``order`` [n] all chunks in
    backward order. A pipeline takes (stages - 1) times the mean chunk time beyond its
    chunks, and the mean time of a layer for every count (eq. 17); with ``simulated``
    what its simulation says. No pipelines where a unit does not fit.

    A pipeline with more units in front is taken to recompute no less, so that one whose
    price is above another's with as little is not looked at.
    """
    stages, units = kept.shape[0], len(edges) - 1
    least = np.full(units + 1, np.inf)
    least[0] = 0.0
    came = np.zeros(units + 1, np.int64)
    total = forward + backward
    for end in range(1, units + 1):
        known = 0
        for start in range(end - 1, -1, -1):
            first, last = edges[start], edges[end]
            fill_ms = (stages - 1) * total[first:last].mean()
            one_ms = layer_ms[first:last].mean()
            if not simulated and least[start] + fill_ms + one_ms * known >= least[end]:
                continue
            layers, known = _counted(
                kept[:, first:last], saved[first:last], capacity, layer_counts, slack,
                order[first:last] - first, count[first:last].max(), mode,
            )  # fmt: skip
            if known < 0:
                break  # more units in front only hold more at once
            more_ms = fill_ms + one_ms * known
            if simulated:
                more_ms = _time_ms(
                    forward[first:last], backward[first:last], layer_ms[first:last],
                    sends[first:last], order[first:last] - first, count[first:last].max(), layers,
                ) - total[first:last].sum()  # fmt: skip
            if least[start] + more_ms < least[end]:
                least[end] = least[start] + more_ms
                came[end] = start
        if least[end] == np.inf:
            return np.zeros(0, np.int64), np.inf, np.inf
    starts = np.zeros(units + 1, np.int64)
    groups, place = 0, units
    while place:
        starts[groups] = edges[place]
        groups += 1
        place = came[place]
    starts[groups] = 0
    bounds = starts[: groups + 1][::-1].copy()
    time_ms = 0.0
    for group in range(groups):
        first, last = bounds[group], bounds[group + 1]
        layers, _ = _counted(
            kept[:, first:last], saved[first:last], capacity, layer_counts, slack,
            order[first:last] - first, count[first:last].max(), mode,
        )  # fmt: skip
        time_ms += _time_ms(
            forward[first:last], backward[first:last], layer_ms[first:last],
            sends[first:last], order[first:last] - first, count[first:last].max(), layers,
        )  # fmt: skip
    return bounds, least[units] + total.sum(), time_ms


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _counted(
    kept: Floats,
    saved: Floats,
    capacity: Floats,
    layer_counts: Integers,
    slack: float,
    order: Integers,
    longest_split: int,
    mode: int,
) -> tuple[Integers, int]:
    """Layers [d, n] that a pipeline recomputes and their sum; -1: it does not fit."""
    stages, chunks = kept.shape
    layers = np.zeros((stages, chunks), np.int64)
    diagonals = chunks + stages - 1
    if mode == ADAPTIVE:
        counts = np.zeros(diagonals, np.int64)
        smallest = layer_counts.min()
        if sweep(
            kept, saved, capacity, smallest, order, longest_split, 0, slack, 0, counts
        ):  # fmt: skip
            for place in range(chunks):
                for stage in range(stages):
                    layers[stage, order[place]] = counts[place + stages - 1 - stage]
            return layers, counts.sum()
        if smallest == layer_counts.max():
            return layers, -1
    if mode != NONE:
        for stage in range(stages):
            layers[stage] = layer_counts[stage]
    held = kept - saved * layers
    for stage in range(stages):
        warm = min(stages - 1 - stage + longest_split - 1, chunks)
        live = held[stage, :warm].sum()
        for step in range(max(chunks - warm, 1)):
            if warm + step < chunks:
                live += held[stage, warm + step]
            if live > capacity[stage] * (1 + slack):
                return layers, -1
            live -= held[stage, order[step]]
    return layers, 0 if mode == NONE else layer_counts.max() * diagonals


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _time_ms(
    forward: Floats,
    backward: Floats,
    layer_ms: Floats,
    sends: Floats,
    order: Integers,
    longest_split: int,
    layers: Integers,
) -> float:
    back = backward + layers * layer_ms
    time_ms: float = one_f_one_b_ms(forward, back, sends, order, longest_split)
    return time_ms
