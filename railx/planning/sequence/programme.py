"""The bucketed integer programme of one micro-batch, as FlexSP publishes it.

Lengths are rounded up to buckets; virtual groups of fixed degrees may be used or not.
Variables: the makespan C, counts A[q, p] of bucket q in group p, and m_p, whether group
p is used. Minimise C under

    every sequence once     Σ_p A[q, p] = size of bucket q
    token cap               Σ_q bound_q A[q, p] <= cap d_p
    makespan                Σ_q time(q, d_p) A[q, p] + b1 <= C      (unused groups too)
    used where it has any   Σ_q A[q, p] <= K m_p
    has some where used     Σ_q A[q, p] >= m_p
    devices                 Σ_p d_p m_p = N, or <= N

with A[q, p] = 0 where the group is smaller than the bucket's least degree (sections 4
and 5, and the public code; they differ in the last row, so a setting chooses). There is
no row against the symmetry of groups of one degree, and none that tightens the
relaxation: both would be ours.

Buckets of one sequence each make the programme without bucketing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from railx.performance.sequence_cost import CostModel
from railx.planning.groups import Assignment, Lengths

__all__ = [
    "Devices",
    "Programme",
    "build_programme",
    "hand_out",
    "homogeneous_fills",
    "micro_batch_bound_ms",
]

#: Whether the groups of a micro-batch take all devices or at most all.
Devices = Literal["all", "at_most"]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Programme:
    """The programme's numbers, for any solver.

    Bucket bounds and sizes [q], longest first; degrees of the virtual groups [p],
    ascending; which counts may differ from 0 and what one sequence of bucket q takes in
    group p in ms, both [q, p]; tokens that a group holds [p].
    """

    bounds: Counts
    sizes: Counts
    degrees: Counts
    allowed: npt.NDArray[np.bool_]
    times_ms: Floats
    caps: Counts
    constant_ms: float
    devices: int
    use: Devices

    @property
    def sequences(self) -> int:
        """K, all sequences of the micro-batch."""
        return int(self.sizes.sum())

    def makespan_ms(self, counts: Counts) -> float:
        """C of the counts [q, p]."""
        return float((self.times_ms * counts).sum(axis=0).max()) + self.constant_ms

    def holds(self, counts: Counts) -> bool:
        """Whether counts [q, p] keep every row of the programme."""
        used = counts.any(axis=0)
        taken = int(self.degrees[used].sum())
        return bool(
            np.all(counts >= 0)
            and np.all(counts[~self.allowed] == 0)
            and np.array_equal(counts.sum(axis=1), self.sizes)
            and np.all(self.bounds @ counts <= self.caps)
            and (taken == self.devices if self.use == "all" else taken <= self.devices)
        )


def build_programme(
    lengths: Lengths,
    buckets: Sequence[npt.NDArray[np.int64]],
    devices: int,
    degrees: tuple[int, ...],
    cost: CostModel,
    use: Devices,
) -> Programme:
    """The programme of lengths [n] in ``buckets`` (positions, longest first).

    ``degrees`` are those that a group may have, ascending; the last one must hold the
    longest sequence.
    """
    bounds = np.array([lengths[bucket].max() for bucket in buckets], dtype=np.int64)
    sizes = np.array([len(bucket) for bucket in buckets], dtype=np.int64)
    width = np.array(degrees, dtype=np.int64)
    min_degrees = width[np.searchsorted(width * cost.tokens_per_device, bounds)]
    groups = np.array(_virtual_groups(min_degrees, sizes, devices, degrees), dtype=np.int64)
    per_token = np.array([cost.all_to_all_ms[int(degree)] for degree in groups])
    return Programme(
        bounds,
        sizes,
        groups,
        groups[None, :] >= min_degrees[:, None],
        cost.sequence_ms(bounds)[:, None] / groups + bounds[:, None] * per_token,
        groups * cost.tokens_per_device,
        cost.constant_ms,
        devices,
        use,
    )


def _virtual_groups(
    min_degrees: Counts, sizes: Counts, devices: int, degrees: tuple[int, ...]
) -> list[int]:
    """Degrees of the virtual groups, ascending, under the published pruning.

    With D the largest least degree of a bucket and c the number of sequences that have
    it: floor(N / d) groups of each degree d >= D, and floor((N - D c) / d) of each
    smaller one (none where that is negative). It may cut the optimum off: sequences
    that need D can share a group of 2D or D.
    """
    largest = int(min_degrees.max())
    left = max(devices - largest * int(sizes[min_degrees == largest].sum()), 0)
    return [d for d in degrees for _ in range((devices if d >= largest else left) // d)]


def homogeneous_fills(programme: Programme) -> list[Counts]:
    """Counts [q, p] to start the solver with, one for each degree where it is feasible.

    All devices are groups of the degree; sequences go longest first to the group with
    the fewest tokens.
    """
    fills = []
    for degree in np.unique(programme.degrees).tolist():
        groups = np.flatnonzero(programme.degrees == degree)[: programme.devices // degree]
        counts = np.zeros_like(programme.times_ms, dtype=np.int64)
        tokens = np.zeros(len(groups), dtype=np.int64)
        for bucket, (bound, size) in enumerate(
            zip(programme.bounds.tolist(), programme.sizes.tolist(), strict=True)
        ):
            for _ in range(size):
                chosen = int(tokens.argmin())
                tokens[chosen] += bound
                counts[bucket, groups[chosen]] += 1
        if programme.holds(counts):
            fills.append(counts)
    return fills


def hand_out(
    counts: Counts,
    buckets: Sequence[npt.NDArray[np.int64]],
    programme: Programme,
    random: np.random.Generator,
) -> Assignment:
    """Sequences of the micro-batch for counts [q, p], drawn from each bucket."""
    groups: list[list[int]] = [[] for _ in programme.degrees]
    for bucket, row in zip(buckets, counts, strict=True):
        drawn = random.permutation(bucket).tolist()
        for group, count in enumerate(row.tolist()):
            groups[group] += drawn[:count]
            del drawn[:count]
    used = [index for index, members in enumerate(groups) if members]
    return Assignment(
        tuple(int(programme.degrees[index]) for index in used),
        tuple(tuple(sorted(groups[index])) for index in used),
    )


def micro_batch_bound_ms(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel
) -> float:
    """A time that no micro-batch of these lengths [n] can beat.

    Every sequence costs a device time of at least that at its cheapest degree, which
    the devices share; and no group ends before its longest sequence alone would.
    """
    width = np.array(degrees)
    per_token = np.array([cost.all_to_all_ms[degree] for degree in degrees])
    alone = cost.sequence_ms(lengths)[:, None] / width + lengths[:, None] * per_token
    alone = np.where(lengths[:, None] <= width * cost.tokens_per_device, alone, np.inf)
    shared = float((alone * width).min(axis=1).sum()) / devices
    return max(shared, float(alone.min(axis=1).max())) + cost.constant_ms
