"""Published numbers in a figure: how they are read and how they look.

A published value is a hollow diamond in every figure, and a line between published
values is thin and dashed, so that neither is taken for a result of this run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.figures.figure import FigureFiles

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PUBLISHED", "PUBLISHED_LINE", "milliseconds", "published_frame"]

#: The mark of a published value; its colour is the reader's to choose.
PUBLISHED: dict[str, Any] = {
    "linestyle": "none",
    "marker": "D",
    "markersize": 5.5,
    "markerfacecolor": "none",
    "markeredgewidth": 1.3,
}
#: The same marks on a line.
PUBLISHED_LINE: dict[str, Any] = {**PUBLISHED, "linestyle": (0, (4, 2)), "linewidth": 1.1}

_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


def published_frame(inputs: FigureFiles, key: str, columns: Sequence[str]) -> pd.DataFrame:
    """The published table under ``key``.

    Raises ValueError that names the file and the missing column or rows.
    """
    import pandas as pd

    paths = [Path(path) for path in inputs.get(key, ())]
    if len(paths) != 1:
        raise ValueError(f"input {key}: got {len(paths)} files; allowed: one published table")
    frame = pd.read_csv(paths[0])
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"{paths[0]}: column {', '.join(missing)} is missing; found:"
            f" {', '.join(map(str, frame.columns))}"
        )
    if frame.empty:
        raise ValueError(f"{paths[0]}: the table has no rows; allowed: one row or more")
    return frame


def milliseconds(text: object) -> float:
    """The first time with a unit in ``text``; not a number where it states none."""
    found = re.search(r"([0-9.]+) (ns|us|ms|s)\b", str(text))
    return float(found[1]) * _UNITS_MS[found[2]] if found else float("nan")
