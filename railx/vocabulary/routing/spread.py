"""Sets of choices among several links and virtual channels."""

from __future__ import annotations

import numpy as np

from railx.vocabulary.arrays import Int32Array, IntArray
from railx.vocabulary.routing.table import TableBuilder

#: Trees need one virtual channel; three share the buffers as in the RailX simulator's
#: inputs.
VIRTUAL_CHANNELS = 3


def even_sets(builder: TableBuilder, src: IntArray, dst: IntArray) -> Int32Array:
    """Sets (int32[n]) of the links from vertex src[i] to dst[i, :], all channels
    equally.
    """
    return np.array(
        [builder.choice_set(choices) for choices in _choices(builder, src, dst)], dtype=np.int32
    )


def fallback_sets(
    builder: TableBuilder, src: IntArray, first: IntArray, second: IntArray, delay_ns: float
) -> Int32Array:
    """Sets (int32[n]) of an adaptive router with second choices.

    The second choices dst second[i, :] cost ``delay_ns`` more than first[i, :]. The
    weights, for exact loads, give all to the first.
    """
    sets = np.empty(len(src), dtype=np.int32)
    for i, (preferred, fallback) in enumerate(
        zip(_choices(builder, src, first), _choices(builder, src, second), strict=True)
    ):
        weights = [1 / len(preferred)] * len(preferred) + [0.0] * len(fallback)
        sets[i] = builder.choice_set(
            preferred + fallback,
            weights,
            delays_ns=[0.0] * len(preferred) + [delay_ns] * len(fallback),
        )
    return sets


def _choices(builder: TableBuilder, src: IntArray, dst: IntArray) -> list[list[tuple[int, int]]]:
    """The (pool, state) of every link from src[i] to dst[i, :] on every channel; state
    0.
    """
    pools = [builder.pools_between(src[:, None], dst, vc) for vc in range(builder.virtual_channels)]
    return [[(pool, 0) for pool in row] for row in np.concatenate(pools, axis=1).tolist()]
