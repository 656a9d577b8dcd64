"""Published tables in a figure: how they are read, and lines between their values.

Values are the theme's hollow diamonds; the line between those of a series is thin and
dashed, so that it is not taken for a result of this run.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.errors import UserError
from railx.figures.figure import FigureFiles
from railx.figures.theme import PUBLISHED_MARK

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["milliseconds", "published_frame", "published_mark", "published_series"]

_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


def published_frame(inputs: FigureFiles, key: str, columns: Sequence[str]) -> pd.DataFrame:
    """The published table under ``key``.

    Raises ValueError that names the file and the missing column or rows.
    """
    import pandas as pd

    paths = [Path(path) for path in inputs.get(key, ())]
    if len(paths) != 1:
        raise UserError(f"input {key}: got {len(paths)} files; allowed: one published table")
    with paths[0].open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        names = [str(name) for name in reader.fieldnames or ()]
        frame = pd.DataFrame(list(reader), columns=names)
    for name in names:
        numbers = pd.to_numeric(frame[name].replace("", None), errors="coerce")
        if numbers.notna().sum() == frame[name].replace("", None).notna().sum():
            frame[name] = numbers
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise UserError(
            f"{paths[0]}: column {', '.join(missing)} is missing; found:"
            f" {', '.join(map(str, frame.columns))}"
        )
    if frame.empty:
        raise UserError(f"{paths[0]}: the table has no rows; allowed: one row or more")
    return frame


def milliseconds(text: object) -> float:
    """The first time with a unit in ``text``; not a number where it states none."""
    found = re.search(r"([0-9.]+) (ns|us|ms|s)\b", str(text))
    return float(found[1]) * _UNITS_MS[found[2]] if found else float("nan")


def published_mark(colour: str) -> dict[str, Any]:
    """The mark of a published value of one of several things, in its colour."""
    return {**PUBLISHED_MARK, "markersize": 5.5, "markeredgecolor": colour}


def published_series(colour: str) -> dict[str, Any]:
    """Published values on a line, in the colour of what they are values of."""
    line = {"linestyle": (0, (4, 2)), "linewidth": 1.1, "color": colour}
    return published_mark(colour) | line
