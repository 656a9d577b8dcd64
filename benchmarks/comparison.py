"""Numbers of a benchmark against those of a stored run on the same kind of machine.

A number may differ for two reasons: the code, or what else the machine did. How far the
second reaches is the *band* of a comparison: nothing for a number that no clock was
read for, and wider for the others the busier the machine was in either run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Compared", "Row", "band", "compare", "regressions", "worse_by"]

Row = Mapping[str, Any]
Verdict = Literal["same", "better", "worse", "new", "gone"]

#: Two runs of the same code on a machine that does nothing else differ by this much.
#: What no clock measures differs by rounding alone; memory by what is allocated when.
_QUIET = {"none": 1e-6, "memory": 0.05, "processor": 0.1, "wall": 0.1}
#: A machine whose cores are all busy: cores share caches and their memory.
_SHARED = {"none": 0.0, "memory": 0.0, "processor": 0.2, "wall": 0.2}


@dataclass(frozen=True)
class Compared:
    """A number, the stored one, and what to make of them.

    ``ratio`` is ours over theirs; None where one of them is missing, or they cannot be
    divided.
    """

    name: str
    unit: str
    ours: float | None
    theirs: float | None
    ratio: float | None
    band: float
    verdict: Verdict


def band(clock: str, *loads_a_core: float) -> float:
    """How far two runs of the same code may lie apart, as a share.

    ``loads_a_core``: the load averages of the runs over the cores. Up to 1 programs
    share what cores share; beyond it they wait for one another, which a wall clock sees
    in full.
    """
    width = _QUIET[clock]
    for load in loads_a_core:
        width += _SHARED[clock] * min(1.0, load)
        if clock == "wall":
            width += max(0.0, load - 1.0)
    return width


def worse_by(ours: float, theirs: float, better: str) -> float | None:
    """The factor by which a number is worse than the stored one: above 1 where it is.

    None where one is not above zero and they are not equal: there is no factor then.
    """
    if ours == theirs:
        return 1.0
    if ours <= 0 or theirs <= 0:
        return None
    return ours / theirs if better == "less" else theirs / ours


def compare(
    ours: Sequence[Row], theirs: Sequence[Row], loads_a_core: tuple[float, float]
) -> list[Compared]:
    """Every number of both runs, in the order of ours; then those that are gone."""
    stored = {row["name"]: row for row in theirs}
    found = [_compared(row, stored.get(row["name"]), loads_a_core) for row in ours]
    names = {row["name"] for row in ours}
    gone = [row for row in theirs if row["name"] not in names]
    return found + [
        Compared(row["name"], row["unit"], None, row["value"], None, 0.0, "gone") for row in gone
    ]


def _compared(row: Row, stored: Row | None, loads_a_core: tuple[float, float]) -> Compared:
    name, unit, value = row["name"], row["unit"], row["value"]
    # A number in another unit, or read otherwise, is another number.
    if stored is None or (stored["unit"], stored["clock"]) != (unit, row["clock"]):
        return Compared(name, unit, value, None, None, 0.0, "new")
    width = band(row["clock"], *loads_a_core)
    factor = worse_by(value, stored["value"], row["better"])
    ratio = value / stored["value"] if stored["value"] else (1.0 if not value else None)
    verdict: Verdict = "same"
    if factor is None:
        less = value < stored["value"]
        verdict = "better" if less == (row["better"] == "less") else "worse"
    elif factor > 1 + width:
        verdict = "worse"
    elif factor < 1 / (1 + width):
        verdict = "better"
    return Compared(name, unit, value, stored["value"], ratio, width, verdict)


def regressions(compared: Sequence[Compared]) -> list[Compared]:
    """What is worse by more than its band."""
    return [one for one in compared if one.verdict == "worse"]
