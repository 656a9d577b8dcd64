"""Curves of a result from the rows of its table.

Rows of one step and repeat become one number, repeats become a median and an interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from railx.errors import UserError
from railx.tracking.results import Curve

__all__ = ["Curves", "read_curves"]

_HOW: dict[str, Callable[[list[float]], float]] = {"max": max, "mean": fmean}


@dataclass(frozen=True)
class Curves:
    """The curves of a table, with intervals and points for comparisons.

    ``intervals`` are the least and the greatest of the repeats, by
    ``curve.value``, or by ``curve.value@step`` where steps are settings; ``points`` the
    medians under the latter names.
    """

    curves: tuple[Curve, ...]
    intervals: dict[str, tuple[float, float]]
    points: dict[str, float]


def read_curves(
    rows: Iterable[Mapping[str, Any]],
    *,
    step: str,
    curve: str,
    values: Mapping[str, str],
    repeat: str = "",
    aside: str = "",
    settings: bool = False,
) -> Curves:
    """Curves named ``curve/value``: the median of all repeats that are not set aside.

    With two repeats or more each also has its curves, ``curve/repeat_0/value``. See
    :class:`workflow.stage.History` for the arguments.
    ValueError for a word of ``values`` that is none of max and mean.
    """
    unknown = sorted(set(values.values()) - set(_HOW))
    if unknown:
        raise UserError(f"history: got {', '.join(unknown)}; allowed: {', '.join(_HOW)}")
    # By curve and value, then repeat, then step: the rows' numbers (one per rank).
    gathered: dict[tuple[str, str], dict[Any, dict[float, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    disturbed: set[tuple[str, Any]] = set()
    for row in rows:
        name, which = curve.format(**row), row.get(repeat) if repeat else None
        if aside and row.get(aside):
            disturbed.add((name, which))
        for value in values:
            number = row.get(value)
            if number is not None and math.isfinite(number):
                gathered[name, value][which][float(row[step])].append(float(number))
    curves: list[Curve] = []
    intervals: dict[str, tuple[float, float]] = {}
    points: dict[str, float] = {}
    for (name, value), repeats in gathered.items():
        reduced = {
            which: {at: _HOW[values[value]](numbers) for at, numbers in sorted(steps.items())}
            for which, steps in repeats.items()
        }
        chosen = {which: line for which, line in reduced.items() if (name, which) not in disturbed}
        # Where all were disturbed there is nothing better to draw.
        middle = _medians((chosen or reduced).values())
        curves.append(Curve(f"{name}/{value}", step, tuple(middle.items())))
        if len(reduced) > 1:
            curves += [
                Curve(f"{name}/{repeat}_{which}/{value}", step, tuple(line.items()))
                for which, line in reduced.items()
            ]
        key = f"{name}.{value}"
        if settings:
            points |= {f"{key}@{at:g}": number for at, number in middle.items()}
        if len(chosen) > 1 and settings:
            spread = {at: [line[at] for line in chosen.values() if at in line] for at in middle}
            intervals |= {f"{key}@{at:g}": (min(all_), max(all_)) for at, all_ in spread.items()}
        elif len(chosen) > 1:
            means = [fmean(line.values()) for line in chosen.values()]
            intervals[key] = (min(means), max(means))
    return Curves(tuple(curves), intervals, points)


def _medians(lines: Iterable[Mapping[float, float]]) -> dict[float, float]:
    at: dict[float, list[float]] = defaultdict(list)
    for line in lines:
        for step, value in line.items():
            at[step].append(value)
    return {step: median(numbers) for step, numbers in sorted(at.items())}
