"""FlexSP's two dynamic programmes: cuts into micro-batches, and buckets of lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.groups import Lengths
from railx.workload.batches import SampledBatch

__all__ = [
    "PUBLISHED_BUCKETS",
    "bucket_lengths",
    "cut_batch",
    "fewest_micro_batches",
    "rounding_rows",
]

Positions = npt.NDArray[np.int64]
#: Q of FlexSP, section 5.
PUBLISHED_BUCKETS = 16
_Method = Literal["least_error", "equal_width"]


def fewest_micro_batches(lengths: Lengths, cap: int, order: Literal["sorted", "given"]) -> int:
    """M_min: the least number of runs below ``cap`` tokens each.

    PlanError where a single sequence reaches the cap.
    """
    for number in range(math.ceil(lengths.sum() / cap), len(lengths) + 1):
        if max(int(lengths[run].sum()) for run in cut_batch(lengths, number, order)) < cap:
            return number
    raise PlanError(
        f"batch: got a sequence of {lengths.max()} tokens; allowed: below {cap}, what all devices"
        " hold together"
    )


def cut_batch(
    lengths: Lengths, micro_batches: int, order: Literal["sorted", "given"]
) -> list[Positions]:
    """Cut a batch into ``micro_batches`` runs with the most tokens of a run least.

    Source: FlexSP, appendix A. ``order`` "sorted" cuts the sequences from the longest
    to the shortest, so that lengths within a run are alike; "given" as they come.
    Lengths [n], n >= micro_batches. Returns the positions in each run.

    The programme is DP[k][i] = min_j max(DP[j][i-1], tokens of j+1..k). As DP grows
    with j and the last run's tokens shrink, the best j lies where they cross, which a
    binary search finds.
    """
    positions = (
        np.argsort(-lengths, kind="stable") if order == "sorted" else np.arange(len(lengths))
    )
    total = np.concatenate(([0], np.cumsum(lengths[positions])))
    best, previous = total.copy(), []
    for runs in range(2, micro_batches + 1):
        # Every run holds at least one sequence: j from runs - 1 to k - 1.
        crossing = np.searchsorted(best + total, total)
        low, high = runs - 1, np.maximum(np.arange(len(total)) - 1, runs - 1)
        right = np.clip(crossing, low, high)
        left = np.clip(crossing - 1, low, high)
        right_value, left_value = (np.maximum(best[j], total - total[j]) for j in (right, left))
        previous.append(np.where(left_value < right_value, left, right))
        best = np.minimum(left_value, right_value)
    cuts = [len(lengths)]
    for cut_from in reversed(previous):
        cuts.append(int(cut_from[cuts[-1]]))
    bounds = [0, *reversed(cuts)]
    return [positions[start:stop] for start, stop in pairwise(bounds)]


def bucket_lengths(
    lengths: Lengths,
    buckets: int,
    allowed_tokens: int,
    method: Literal["least_error", "equal_width"],
) -> list[Positions]:
    """Group lengths [n] into buckets, each as long as its longest member.

    Returns positions by bucket, longest bucket first. "least_error" minimises Σ (bucket
    bound - length) (FlexSP eqs. 15-16) with ``buckets`` buckets, or more until the
    rounded-up total is at most ``allowed_tokens``. "equal_width" cuts [0, longest] into
    ``buckets`` equal intervals, the naive alternative.
    """
    if method == "equal_width":
        width = lengths.max() / buckets
        index = np.minimum((lengths / width).astype(np.int64), buckets - 1)
        return [
            np.flatnonzero(index == bucket)
            for bucket in range(buckets - 1, -1, -1)
            if np.any(index == bucket)
        ]
    values, counts = np.unique(lengths, return_counts=True)
    bounds = _min_error_bounds(values, counts, buckets, allowed_tokens)
    return [
        np.flatnonzero((lengths > below) & (lengths <= bound)) for below, bound in pairwise(bounds)
    ][::-1]


def _min_error_bounds(
    values: Lengths, counts: Lengths, buckets: int, allowed_tokens: int
) -> list[int]:
    """0 and the bucket bounds, ascending.

    ``values`` ascending and different, ``counts`` how many sequences have each.
    """
    number = np.concatenate(([0], np.cumsum(counts)))
    tokens = np.concatenate(([0], np.cumsum(counts * values)))
    # error[i, j]: values i+1..j rounded up to value j (1-based; infinite where i >= j)
    error = (number[None, :] - number[:, None]) * np.concatenate(([0], values))[None, :] - (
        tokens[None, :] - tokens[:, None]
    )
    error = np.where(np.tri(len(number), dtype=bool), np.inf, error.astype(np.float64))
    best, cut_from = error[0].copy(), [np.zeros(len(number), dtype=np.int64)]
    best[0] = 0.0
    while len(cut_from) < len(values) and (
        len(cut_from) < buckets or best[-1] + tokens[-1] > allowed_tokens
    ):
        candidates = best[:, None] + error
        cut_from.append(np.argmin(candidates, axis=0))
        best = np.concatenate(([0.0], np.min(candidates[:, 1:], axis=0)))
    bounds, end = [], len(values)
    for source in reversed(cut_from):
        if end > 0:
            bounds.append(int(values[end - 1]))
            end = int(source[end])
    return [0, *reversed(bounds)]


def rounding_rows(
    batches: Iterable[SampledBatch], devices: int, cost: CostModel
) -> Iterator[dict[str, Any]]:
    """One row for each method and micro-batch.

    Columns: iteration, micro_batch, method, buckets, sequences, tokens, rounded_tokens
    (each length as that of the longest sequence in its bucket).
    """
    cap = cost.tokens_per_device * devices
    for iteration, batch in enumerate(batches):
        number = fewest_micro_batches(batch.lengths, cap, "sorted")
        for index, run in enumerate(cut_batch(batch.lengths, number, "sorted")):
            lengths = batch.lengths[run]
            tokens = int(lengths.sum())
            for method in get_args(_Method):
                buckets = bucket_lengths(lengths, PUBLISHED_BUCKETS, (tokens + cap) // 2, method)
                yield {
                    "iteration": iteration,
                    "micro_batch": index,
                    "method": method,
                    "buckets": len(buckets),
                    "sequences": len(lengths),
                    "tokens": tokens,
                    "rounded_tokens": sum(
                        int(lengths[bucket].max()) * len(bucket) for bucket in buckets
                    ),
                }
