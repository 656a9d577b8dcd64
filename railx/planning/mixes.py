"""Searching the mix of group degrees of one micro-batch.

The search is quick, and close enough to the bound to start the solver or to replace it.
A mix is a multiset of degrees that adds up to the devices. For a given mix, sequences
go longest first to the group that finishes them soonest (list scheduling on machines of
different speeds, within the token cap). Then sequences are moved and swapped out of the
slowest group while that helps. Short lists of mixes are tried completely. Otherwise the
mix is improved by splitting a group in two halves and by merging two groups of equal
degree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from railx.planning.groups import Assignment, Lengths
from railx.workload.cost import CostModel

__all__ = ["MixSearch", "all_mixes", "fill_mix", "lower_bound_ms", "search_mix"]

Mix = tuple[int, ...]

#: All mixes are tried where that takes at most this many placements of a sequence; so
#: many take about 0.1 s.
_COMPLETE_PLACEMENTS = 15_000
#: How many of the best mixes are improved by moves and swaps, and offered to the
#: solver.
_KEPT = 5


@dataclass(frozen=True)
class MixSearch:
    """The best assignment found with its time in ms.

    With it, the largest number of groups of each degree in the best few mixes.
    """

    time_ms: float
    assignment: Assignment
    groups: tuple[int, ...]


def lower_bound_ms(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel
) -> float:
    """A time that no micro-batch of these lengths [n] can beat.

    The larger of two: every sequence at its cheapest degree, in device time shared by
    all devices, and the slowest sequence alone in the group that runs it soonest.
    Infinite where a sequence fits no degree.
    """
    width = np.array(degrees)
    per_token = np.array([cost.all_to_all_ms[degree] for degree in degrees])
    alone = cost.sequence_ms(lengths)[:, None] / width + lengths[:, None] * per_token
    alone = np.where(lengths[:, None] <= width * cost.tokens_per_device, alone, np.inf)
    device_time = (alone * width).min(axis=1).sum() / devices
    return float(max(device_time, alone.min(axis=1).max())) + cost.constant_ms


def fill_mix(lengths: Lengths, mix: Mix, cost: CostModel) -> tuple[float, tuple[int, ...]] | None:
    """Each sequence, longest first, to the group that finishes it soonest.

    Where that leaves no room, each goes to the fullest that takes it. Returns the time
    in ms and the group (index into ``mix``) of each of the lengths [n]. None where
    memory is short either way.
    """
    if lengths.sum() > sum(mix) * cost.tokens_per_device:
        return None
    return _fill(lengths, mix, cost, soonest=True) or _fill(lengths, mix, cost, soonest=False)


def search_mix(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel, good_enough_ms: float
) -> MixSearch | None:
    """The best assignment of lengths [n] that the search finds.

    It stops at ``good_enough_ms``. None where no mix tried holds all.
    """
    filled = _fill_all(lengths, devices, degrees, cost)
    if filled is None:
        filled = _climb(lengths, devices, degrees, cost, good_enough_ms)
    ranked = sorted(
        (result[0], mix, result[1]) for mix, result in filled.items() if result is not None
    )[:_KEPT]
    if not ranked:
        return None
    groups: Counter[int] = Counter()
    for _, mix, _owner in ranked:
        groups |= Counter(mix)
    best: tuple[float, Assignment] | None = None
    for time_ms, mix, owner in ranked:
        if best is not None and best[0] <= good_enough_ms:
            break
        improved = (
            _improve(lengths, mix, owner, cost) if time_ms > good_enough_ms else (time_ms, owner)
        )
        if best is None or improved[0] < best[0]:
            best = improved[0], _assignment(mix, improved[1])
    assert best is not None
    return MixSearch(best[0], best[1], tuple(sorted(groups.elements())))


def all_mixes(devices: int, degrees: tuple[int, ...], most_groups: int) -> Iterator[Mix]:
    """Every mix of at most ``most_groups`` groups that adds up to ``devices``.

    Degrees fall.
    """
    if devices == 0:
        yield ()
        return
    for index, degree in enumerate(degrees):
        if degree <= devices <= degree * most_groups:
            for rest in all_mixes(devices - degree, degrees[: index + 1], most_groups - 1):
                yield (degree, *rest)


def _fill(
    lengths: Lengths, mix: Mix, cost: CostModel, *, soonest: bool
) -> tuple[float, tuple[int, ...]] | None:
    """One pass, longest first.

    List scheduling (``soonest``) or best-fit-decreasing, which wastes the least memory.
    """
    width = np.array(mix)
    per_token = np.array([cost.all_to_all_ms[degree] for degree in mix])
    work, room, busy = cost.sequence_ms(lengths), width * cost.tokens_per_device, np.zeros(len(mix))
    owner = [0] * len(lengths)
    for position in np.argsort(-lengths, kind="stable").tolist():
        tokens = lengths[position]
        finish = busy + work[position] / width + tokens * per_token
        rank = np.where(room < tokens, np.inf, finish if soonest else room)
        chosen = int(rank.argmin())
        if rank[chosen] == np.inf:
            return None
        busy[chosen] = finish[chosen]
        room[chosen] -= tokens
        owner[position] = chosen
    return float(busy.max()) + cost.constant_ms, tuple(owner)


def _fill_all(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel
) -> dict[Mix, tuple[float, tuple[int, ...]] | None] | None:
    """Every mix filled; None where there are too many to try.

    More groups than sequences never help.
    """
    mixes: list[Mix] = []
    for mix in all_mixes(devices, degrees, len(lengths)):
        mixes.append(mix)
        if len(mixes) * len(lengths) > _COMPLETE_PLACEMENTS:
            return None
    return {mix: fill_mix(lengths, mix, cost) for mix in mixes}


def _climb(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel, good_enough_ms: float
) -> dict[Mix, tuple[float, tuple[int, ...]] | None]:
    """Mixes filled on the way up from homogeneous ones.

    The way ends where no split or merge improves.
    """
    filled: dict[Mix, tuple[float, tuple[int, ...]] | None] = {}
    best_ms, best_mix = np.inf, None
    candidates = list(_first_mixes(lengths, devices, degrees, cost))
    while candidates and best_ms > good_enough_ms:
        before = best_ms
        for mix in candidates:
            if mix in filled:
                continue
            result = filled[mix] = fill_mix(lengths, mix, cost)
            if result is not None and result[0] < best_ms:
                best_ms, best_mix = result[0], mix
        candidates = (
            list(_neighbours(best_mix, degrees))
            if best_mix is not None and best_ms < before
            else []
        )
    return filled


def _first_mixes(
    lengths: Lengths, devices: int, degrees: tuple[int, ...], cost: CostModel
) -> Iterator[Mix]:
    """For each degree a mix of groups of that degree.

    They come after a group for each sequence that needs a larger one.
    """
    longest_first = sorted(lengths.tolist(), reverse=True)
    needed = [
        next((d for d in degrees if tokens <= d * cost.tokens_per_device), 0)
        for tokens in longest_first
    ]
    for degree in degrees:
        reserved: list[int] = []
        for need in needed:
            if need > degree and sum(reserved) + need <= devices:
                reserved.append(need)
        left = devices - sum(reserved)
        if left % degree == 0:
            yield tuple(sorted(reserved + [degree] * (left // degree), reverse=True))


def _neighbours(mix: Mix, degrees: tuple[int, ...]) -> Iterator[Mix]:
    """Mixes one split, one merge, or one of each away."""
    counts = Counter(mix)
    moves = [(degree, -1, degree // 2, 2) for degree in counts if degree // 2 in degrees]
    moves += [
        (degree, -2, degree * 2, 1)
        for degree, count in counts.items()
        if count >= 2 and degree * 2 in degrees
    ]
    single = [_moved(counts, [move]) for move in moves]
    double = [
        _moved(counts, [first, second])
        for first in moves
        for second in moves
        if first[0] != second[0]
    ]
    for changed in single + double:
        if min(changed.values()) >= 0:
            yield tuple(sorted(changed.elements(), reverse=True))


def _moved(counts: Counter[int], moves: list[tuple[int, int, int, int]]) -> Counter[int]:
    changed = Counter(counts)
    for degree, taken, other, given in moves:
        changed[degree] += taken
        changed[other] += given
    return changed


def _assignment(mix: Mix, owner: tuple[int, ...]) -> Assignment:
    groups = [
        tuple(position for position, group in enumerate(owner) if group == index)
        for index in range(len(mix))
    ]
    used = [index for index, members in enumerate(groups) if members]
    return Assignment(tuple(mix[index] for index in used), tuple(groups[index] for index in used))


def _improve(
    lengths: Lengths, mix: Mix, owner: tuple[int, ...], cost: CostModel
) -> tuple[float, tuple[int, ...]]:
    """Move or swap sequences out of the slowest group.

    As long as the slower of the two groups gets faster than it was.
    """
    width, group = np.array(mix), np.array(owner)
    per_token = np.array([cost.all_to_all_ms[degree] for degree in mix])
    time = cost.sequence_ms(lengths)[:, None] / width + lengths[:, None] * per_token
    everyone, groups = np.arange(len(lengths)), np.arange(len(mix))
    for _ in range(4 * len(lengths)):
        busy = np.bincount(group, time[everyone, group], minlength=len(mix))
        room = width * cost.tokens_per_device - np.bincount(group, lengths, minlength=len(mix))
        slow = int(busy.argmax())
        out, others, targets = (
            np.flatnonzero(group == slow),
            np.flatnonzero(group != slow),
            groups[groups != slow],
        )
        moved = np.maximum(
            busy[slow] - time[out, slow][:, None], busy[targets] + time[np.ix_(out, targets)]
        )
        moved = np.where(lengths[out][:, None] <= room[targets], moved, np.inf)
        home, back = group[others], time[others, slow]
        leaving = busy[slow] - time[out, slow][:, None] + back
        arriving = busy[home] - time[others, home] + time[np.ix_(out, home)]
        gain = lengths[out][:, None] - lengths[others]
        swapped = np.where(
            (gain <= room[home]) & (-gain <= room[slow]), np.maximum(leaving, arriving), np.inf
        )
        best_move, best_swap = moved.min(initial=np.inf), swapped.min(initial=np.inf)
        if min(best_move, best_swap) >= busy[slow] * (1 - 1e-12):
            break
        if best_move <= best_swap:
            row, column = np.unravel_index(int(moved.argmin()), moved.shape)
            group[out[row]] = targets[column]
        else:
            row, column = np.unravel_index(int(swapped.argmin()), swapped.shape)
            group[out[row]], group[others[column]] = home[column], slow
    busy = np.bincount(group, time[everyone, group], minlength=len(mix))
    return float(busy.max()) + cost.constant_ms, tuple(int(index) for index in group)
