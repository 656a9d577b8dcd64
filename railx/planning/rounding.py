"""How far the buckets of FlexSP's programme overstate the tokens of a batch.

Batches are cut as the published planner cuts them, into as few micro-batches as memory
allows, and the lengths of each are rounded up in both ways that the paper compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from railx.planning.blaster import bucket_lengths, cut_batch
from railx.planning.flexsp_milp import least_micro_batches
from railx.workload.batches import SampledBatch
from railx.workload.cost import CostModel

__all__ = ["PUBLISHED_BUCKETS", "rounding_rows"]

#: Q of FlexSP, section 5.
PUBLISHED_BUCKETS = 16
_Method = Literal["least_error", "equal_width"]


def rounding_rows(
    batches: Iterable[SampledBatch], devices: int, cost: CostModel
) -> Iterator[dict[str, Any]]:
    """One row for each method and micro-batch.

    Columns: iteration, micro_batch, method, buckets, sequences, tokens, rounded_tokens
    (each length as that of the longest sequence in its bucket).
    """
    cap = cost.tokens_per_device * devices
    for iteration, batch in enumerate(batches):
        number = least_micro_batches(batch.lengths, cap, "sorted")
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
                    "rounded_tokens": sum(int(lengths[one].max()) * len(one) for one in buckets),
                }
