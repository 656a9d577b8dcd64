"""Repeats of a training run, of which figures draw the medians.

Figures of training runs share them: an iteration takes as long as its slowest rank, a
repeat counts with the median of its iterations, and a setting with the median of its
repeats. Repeats that other work on the machine disturbed are set aside; where all of a
setting were, they count nevertheless, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from railx.figures.tables import to_frame, where
from railx.figures.types import DataFrame
from railx.intervals import FEWEST, estimate

#: What :func:`per_repeat` reads of ``training.iterations``.
REPEAT_COLUMNS = (
    "run plan parallelism device mode reconfiguration_latency_ms iteration repeat rank"
    " iteration_ms stall_ms disturbed fidelity"
)

#: What makes runs comparable.
SETTING = ["run", "parallelism", "plan", "device", "mode", "reconfiguration_latency_ms"]


def per_repeat(frame: DataFrame) -> DataFrame:
    """One row per setting and repeat, in the order of the table.

    A repeat that was disturbed and run again has two rows that differ in ``disturbed``;
    medians are made of the rows that have ``counts``.
    ``iteration_ms`` is the median over the iterations of the slowest rank's time,
    ``stall_percent`` the median of the share of their time that ranks wait for light
    paths, ``over_electrical`` the time over that of the electrical runs: of the same
    repeat where it has one that counts, else of the median of those that count.
    """
    frame = frame.assign(
        reconfiguration_latency_ms=frame["reconfiguration_latency_ms"].fillna(0.0),
        stall_percent=100 * frame["stall_ms"].fillna(0.0) / frame["iteration_ms"],
    )
    repeat = [*SETTING, "repeat", "disturbed"]
    slowest = {"iteration_ms": "max", "stall_percent": "mean", "fidelity": "first"}
    iterations = frame.groupby([*repeat, "iteration"], sort=False).agg(slowest).reset_index()
    medians = dict.fromkeys(("iteration_ms", "stall_percent"), "median")
    medians |= {"iteration": "size", "fidelity": "first"}
    rows = iterations.groupby(repeat, sort=False).agg(medians).reset_index()
    rows = rows.rename(columns={"iteration": "iterations"})
    none_calm = rows.groupby(SETTING, sort=False)["disturbed"].transform("all")
    rows = rows.assign(counts=~rows["disturbed"] | none_calm)
    calm = rows[(rows["mode"] == "electrical") & rows["counts"]]
    median = calm.groupby("run")["iteration_ms"].median()
    part = calm.set_index(["run", "repeat"])["iteration_ms"]
    keys = list(zip(rows["run"], rows["repeat"], strict=True))
    reference = [part.get(key, median.get(key[0], math.nan)) for key in keys]
    return rows.assign(over_electrical=rows["iteration_ms"] / reference)


def medians(repeats: DataFrame, columns: Sequence[str], confidence: float) -> DataFrame:
    """One row per setting and column: median, interval, how many repeats count."""
    rows = []
    for keys, part in where(repeats, counts=True).groupby(SETTING, sort=False):
        for column in columns:
            median = estimate(list(part[column]), confidence)
            ends = median.ends or (math.nan, math.nan)
            rows.append((*keys, column, median.value, *ends, median.samples))
    return to_frame(rows, [*SETTING, "shows", "median", "low", "high", "repeats"])


def repeats_words(rows: DataFrame) -> str:
    """How many repeats the medians are of, and how many were set aside.

    ``rows`` are those of :func:`per_repeat`.
    """
    chosen = rows[rows["counts"]].groupby(SETTING).size()
    aside = int((~rows["counts"]).sum())
    forced = rows[rows["counts"] & rows["disturbed"]].groupby(SETTING).ngroups
    fewest, most = (int(chosen.min()), int(chosen.max())) if len(chosen) else (0, 0)
    iterations = sorted(set(rows["iterations"]))
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    text = f"{count} repeat{'s' if count != '1' else ''} of"
    text += f" {' or '.join(map(str, iterations))} timed iterations"
    if fewest < FEWEST:
        text += ": too few for an interval" if most < FEWEST else ", some too few for an interval"
    other = "other work on the machine disturbed"
    if aside:
        them = "it" if aside == 1 else "them"
        text += f"; {aside} of {len(rows)} set aside, because {other} {them}"
    if forced:
        text += f"; {forced} of {len(chosen)} settings are shown although {other}"
        text += " all their repeats"
    return text
