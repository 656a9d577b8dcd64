"""Reading the tables behind a figure into pandas, with errors that name the file and the column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from railx.io import read_table

__all__ = ["Inputs", "read_frame", "read_frames", "required_paths"]

#: What a figure is drawn from: the files under each input key.
Inputs = Mapping[str, Sequence[Path]]


def required_paths(inputs: Inputs, key: str) -> list[Path]:
    """The files under ``key``; raises ValueError when there are none."""
    paths = [Path(path) for path in inputs.get(key, ())]
    if not paths:
        raise ValueError(f"input {key}: no file given; allowed: one file or more")
    return paths


def read_frame(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The table in ``path`` as a data frame with all its columns; raises ValueError that names the file and a missing column."""
    frame: pd.DataFrame = read_table(path).to_pandas()
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"{path}: column {', '.join(missing)} is missing; found: {', '.join(map(str, frame.columns))}")
    if frame.empty:
        raise ValueError(f"{path}: the table has no rows; allowed: one row or more")
    return frame


def read_frames(inputs: Inputs, key: str, columns: Sequence[str]) -> pd.DataFrame:
    """All tables under ``key``, one below the other, in the order given; the file's stem is in the column ``file``."""
    frames = [read_frame(path, columns).assign(file=path.stem) for path in required_paths(inputs, key)]
    return pd.concat(frames, ignore_index=True)
