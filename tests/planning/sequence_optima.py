"""Three hundred batches of 13 to 20 sequences whose optimum is proven, and the proof.

    python -m tests.planning.sequence_optima        writes sequence_optima.csv again

A dynamic programme over all subsets: the least time of every subset on every number of
devices, by the group of its longest sequence; then the least time of every subset in
micro-batches, by that of its longest sequence. Of equal sequences only the number
counts. Batches of 17 to 20 sequences have at most eight lengths, which keeps that
number of subsets small.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from railx.performance.sequence_cost import CostModel

__all__ = ["Instance", "instance", "instances", "optima_ms", "optimum_ms"]

STORED = Path(__file__).with_name("sequence_optima.csv")
#: Most lengths of a batch of more sequences than ``_DISTINCT``.
_LENGTHS, _DISTINCT = 8, 16
#: GPT-7B's all-to-all by degree in ms a token (FlexSP's public constants).
_ALL_TO_ALL_MS = {1: 0.0, 2: 0.00837, 4: 0.00480, 8: 0.00259}


@dataclass(frozen=True)
class Instance:
    """Lengths in tokens, longest first, devices and costs."""

    index: int
    lengths: tuple[int, ...]
    devices: int
    cost: CostModel


def instances() -> Iterator[Instance]:
    """150 batches of 13 to 16 sequences, then 150 of 17 to 20."""
    return map(instance, range(300))


def instance(index: int) -> Instance:
    """The batch of a number: of each 300 the first half have 13 to 16 sequences, the
    others 17 to 20.
    """
    rng = random.Random(f"sequences {index}")
    count = (13 if index % 300 < 150 else 17) + index % 4
    devices = rng.randint(2, 8)
    cap = rng.choice((4000, 6449, 9014))
    degrees = [degree for degree in _ALL_TO_ALL_MS if degree <= devices]
    median, spread = rng.choice((500, 1500, 4000)), rng.choice((0.3, 0.8, 1.3))
    values = [
        max(16, min(round(rng.lognormvariate(0, spread) * median), cap * degrees[-1]))
        for _ in range(count)
    ]
    if count > _DISTINCT:
        values = values[:_LENGTHS] + rng.choices(values[:_LENGTHS], k=count - _LENGTHS)
    cost = CostModel(
        quadratic_ms=5.128e-6,
        linear_ms=0.1839576,
        constant_ms=rng.choice((0.0, 629.3563, 3000.0)),
        all_to_all_ms={degree: _ALL_TO_ALL_MS[degree] for degree in degrees},
        tokens_per_device=cap,
        forward_share=1 / 3,
        split_memory=1.0,
    )
    return Instance(index, tuple(sorted(values, reverse=True)), devices, cost)


def optimum_ms(instance: Instance) -> float:
    """The least time of all plans."""
    cost = instance.cost
    values, counts = np.unique(np.array(instance.lengths), return_counts=True)
    values, counts = values[::-1].copy(), counts[::-1].copy()
    degrees = np.array(cost.degrees)
    per_token = np.array([cost.all_to_all_ms[degree] for degree in cost.degrees])
    share_ms = cost.sequence_ms(values)[:, None] / degrees + values[:, None] * per_token
    return float(
        _optimum(values, counts, share_ms, degrees, cost.tokens_per_device, instance.devices,
                 cost.constant_ms)
    )  # fmt: skip


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _next(part: Any, most: Any) -> bool:
    """The next vector up to ``most``, last place first; False after the last one."""
    for place in range(len(part) - 1, -1, -1):
        if part[place] < most[place]:
            part[place] += 1
            return True
        part[place] = 0
    return False


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _optimum(
    values: Any,
    counts: Any,
    share_ms: Any,
    degrees: Any,
    cap: int,
    devices: int,
    constant_ms: float,
) -> float:
    kinds, n = len(degrees), len(values)
    weight = np.ones(n, np.int64)
    for place in range(n - 2, -1, -1):
        weight[place] = weight[place + 1] * (counts[place + 1] + 1)
    total = weight[0] * (counts[0] + 1)
    # Of a group of each subset: its time at each degree.
    time = np.full((total, kinds), np.inf)
    subset = np.zeros(n, np.int64)
    for code in range(total):
        tokens, work = 0, np.zeros(kinds)
        for place in range(n):
            tokens += subset[place] * values[place]
            for k in range(kinds):
                work[k] += subset[place] * share_ms[place, k]
        for k in range(kinds):
            if tokens <= cap * degrees[k]:
                time[code, k] = work[k]
        _next(subset, counts)
    slowest = np.full((total, devices + 1), np.inf)
    slowest[0] = 0.0
    best = np.full(total, np.inf)
    best[0] = 0.0
    subset[:] = 0
    part, most = np.zeros(n, np.int64), np.zeros(n, np.int64)
    # Groups first: micro-batches need those of all their subsets.
    for stage in range(2):
        subset[:] = 0
        for code in range(1, total):
            _next(subset, counts)
            longest = 0
            while subset[longest] == 0:
                longest += 1
            most[:] = subset
            most[longest] -= 1
            part[:] = 0
            while True:
                inside = weight[longest]
                for place in range(n):
                    inside += part[place] * weight[place]
                rest = code - inside
                if stage == 0:
                    for k in range(kinds):
                        if time[inside, k] < np.inf:
                            for free in range(degrees[k], devices + 1):
                                later = max(time[inside, k], slowest[rest, free - degrees[k]])
                                slowest[code, free] = min(slowest[code, free], later)
                else:
                    spent = slowest[inside, devices] + constant_ms + best[rest]
                    best[code] = min(best[code], spent)
                if not _next(part, most):
                    break
    return float(best[total - 1])


def optima_ms() -> dict[int, float]:
    """The stored optima by instance."""
    with STORED.open(newline="", encoding="utf-8") as file:
        return {int(row["instance"]): float(row["optimum_ms"]) for row in csv.DictReader(file)}


def _store() -> None:
    with STORED.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("instance", "sequences", "devices", "optimum_ms"))
        for instance in instances():
            row = (instance.index, len(instance.lengths), instance.devices)
            table.writerow((*row, f"{optimum_ms(instance):.9f}"))
            file.flush()


if __name__ == "__main__":
    _store()
