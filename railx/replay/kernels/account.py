"""Time computed and time communicated, from what a replay left behind."""

from __future__ import annotations

import numpy as np

from railx.replay.kernels.compiling import compiled
from railx.replay.kernels.state import R_BEGIN, R_END, Array, EngineState

__all__ = ["account"]


@compiled
def account(s: EngineState, totals: Array) -> None:
    """For each row of results: time computed, communicated, and both at once.

    Operations of one rank may overlap; its computation does not.
    """
    for rank in range(len(s.ranks)):
        step = s.ranks[rank].first
        while step < s.ranks[rank].stop:
            row, stop = s.steps[step].row, step
            while stop < s.ranks[rank].stop and s.steps[stop].row == row:
                stop += 1
            begin_ns, end_ns = s.results[row, R_BEGIN], s.results[row, R_END]
            count = 0
            for at in range(step, stop):
                count += s.steps[at].started_ns >= 0
            starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
            count = 0
            for at in range(step, stop):
                if s.steps[at].started_ns >= 0:
                    starts[count] = min(max(s.steps[at].started_ns, begin_ns), end_ns)
                    ends[count] = min(max(s.steps[at].ended_ns, begin_ns), end_ns)
                    count += 1
            order = np.argsort(starts, kind="mergesort")
            # The same moments without overlaps.
            spans = np.empty((count, 2), np.int64)
            spanned = 0
            for index in order:
                if spanned and starts[index] <= spans[spanned - 1, 1]:
                    spans[spanned - 1, 1] = max(spans[spanned - 1, 1], ends[index])
                else:
                    spans[spanned, 0], spans[spanned, 1] = starts[index], ends[index]
                    spanned += 1
            for index in range(spanned):
                totals[row, 1] += spans[index, 1] - spans[index, 0]
            index = 0
            for at in range(step, stop):
                since_ns = s.steps[at].computing_ns
                if since_ns < 0 or s.steps[at].gap_ns == 0:
                    continue
                a = min(max(since_ns, begin_ns), end_ns)
                b = min(max(since_ns + s.steps[at].gap_ns, begin_ns), end_ns)
                totals[row, 0] += b - a
                while index < spanned and spans[index, 1] <= a:
                    index += 1
                here = index
                while here < spanned and spans[here, 0] < b:
                    totals[row, 2] += max(0, min(b, spans[here, 1]) - max(a, spans[here, 0]))
                    here += 1
            step = stop
