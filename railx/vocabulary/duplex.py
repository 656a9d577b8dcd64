"""Full-duplex links between listed pairs of vertices.

Every family without rails builds its link table from them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.topology import Links, kind_code

__all__ = ["duplex_links"]


def duplex_links(
    one: NDArray[np.integer],
    other: NDArray[np.integer],
    kind: str,
    *,
    gbps: float,
    latency_ns: float,
    lanes: int = 1,
    rail: NDArray[np.integer] | int = -1,
) -> Links:
    """Both directions of a link for each pair (arrays of any one shape).

    Row 2i goes from ``one`` to ``other``, row 2i + 1 back. ``gbps``: rate of one lane
    in one direction; ``latency_ns``: time of flight; ``rail``: index kept with both
    rows.
    """
    one, other, index = (np.ravel(array) for array in np.broadcast_arrays(one, other, rail))
    rows = 2 * one.size
    return Links(
        src=np.stack([one, other], axis=1).ravel().astype(np.int32),
        dst=np.stack([other, one], axis=1).ravel().astype(np.int32),
        kind=np.full(rows, kind_code(kind), dtype=np.int8),
        gbps=np.full(rows, gbps, dtype=np.float64),
        latency_ns=np.full(rows, latency_ns, dtype=np.float64),
        rail=np.repeat(index, 2).astype(np.int32),
        lanes=np.full(rows, lanes, dtype=np.int32),
    )
