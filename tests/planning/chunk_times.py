"""Pipelines of a few to two dozen sequences, and the best times known for them.

    python -m tests.planning.chunk_times        works the best times out again

The best of balanced chunks is over 64 token limits, with every candidate divided and
solved; that of searched ones is the search of 20 rounds. Of 400 batches drawn for the
first and 12 for the second these are the ones where fewer limits, candidates or slices
cost most.
"""

from __future__ import annotations

import random
from typing import Any, Literal
from unittest.mock import patch

import numpy as np

from railx.planning.pipeline import grouping, infinipipe
from railx.planning.pipeline.infinipipe import PipelineSettings, plan_pipeline_batch
from railx.workload.batches import SampledBatch
from tests.planning.pipeline_rules import cost_of

__all__ = ["BALANCED_MS", "SEARCHED_MS", "planned_ms"]

Kind = Literal["balanced", "searched"]
BALANCED_MS = {34: 245.7175, 53: 967.12335, 70: 881.995075, 169: 372.3483, 235: 328.6842}
SEARCHED_MS = {2: 1528.332, 3: 1325.394, 6: 1649.431, 10: 2264.917}


def planned_ms(chunking: Kind, index: int, **changes: Any) -> float:
    """The time of a plan of an instance in at most six slices."""
    rng = random.Random(f"{chunking} {index}")
    if chunking == "balanced":
        count, stages = rng.choice((8, 12, 16, 24)), rng.choice((2, 4))
        lengths = [max(1, int(rng.lognormvariate(4, 1))) for _ in range(count)]
        room = 1e9 if index % 3 == 0 else rng.uniform(1.2, 3.0) * max(lengths) * 40
        constant_ms, quadratic_ms = rng.choice((0.5, 3.0)), rng.choice((1e-4, 1e-3))
        changes = {"schedule": "1f1b", **changes}
    else:
        count, stages = rng.choice((3, 4, 5)), 2
        lengths = [rng.randint(200, 900) for _ in range(2)]
        lengths += [rng.randint(5, 60) for _ in range(count)]
        room, constant_ms, quadratic_ms = rng.uniform(1.3, 3.0) * max(lengths) * 40, 3.0, 1e-3
    batch = SampledBatch(np.arange(len(lengths)), np.array(sorted(lengths, reverse=True)))
    cost = cost_of(stages, capacity_bytes=room, constant_ms=constant_ms, quadratic_ms=quadratic_ms)
    settings = PipelineSettings(
        "pipeline", stages, 1, most_slices=6, alignment_tokens=4, chunking=chunking, **changes
    )  # fmt: skip
    return plan_pipeline_batch(0, batch, settings, cost).predicted_ms


def _best_ms(chunking: Kind, index: int) -> float:
    if chunking == "searched":
        return planned_ms(chunking, index, effort=20)
    every = patch.object(grouping, "_CANDIDATES_TO_REFINE", 10**6)
    with every, patch.object(infinipipe, "_TOKEN_LIMITS", 64):
        return planned_ms(chunking, index)


if __name__ == "__main__":
    print({index: round(_best_ms("balanced", index), 6) for index in BALANCED_MS})
    print({index: round(_best_ms("searched", index), 6) for index in SEARCHED_MS})
