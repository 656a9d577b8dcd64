"""Reading the tables behind a figure into pandas, with errors that name the file and
the column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from railx.io import read_table

__all__ = ["Inputs", "item_name", "read_frame", "read_frames", "selected_paths"]

#: What a figure is drawn from: the files under each input key.
Inputs = Mapping[str, Sequence[Path]]

#: Files that all runs name alike: the folder around them names the run.
_FOLDER_NAMES = {"iterations", "trace", "result"}


def item_name(path: Path) -> str:
    """What a result file is about: ``plans/static.schedule.parquet`` is static,
    ``training/quick/iterations.parquet`` is quick.
    """
    stem = path.name.split(".")[0]
    return path.parent.name if stem in _FOLDER_NAMES else stem


def selected_paths(inputs: Inputs, key: str, only: Sequence[str] = ()) -> list[Path]:
    """The files under ``key``, those named in ``only`` in its order, all when it is
    empty. Raises ValueError when none is left.
    """
    paths = [Path(path) for path in inputs.get(key, ())]
    if not paths:
        raise ValueError(f"input {key}: no file given; allowed: one file or more")
    if not only:
        return paths
    by_name = {item_name(path): path for path in paths}
    unknown = [name for name in only if name not in by_name]
    if unknown:
        raise ValueError(
            f"only: no {key} file for {', '.join(unknown)}; allowed: {', '.join(by_name)}"
        )
    return [by_name[name] for name in only]


def read_frame(path: Path, columns: Sequence[str], *, may_be_empty: bool = False) -> pd.DataFrame:
    """The table in ``path`` with all its columns; raises ValueError that names the file
    and the missing column or rows.
    """
    frame: pd.DataFrame = read_table(path).to_pandas()
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"{path}: column {', '.join(missing)} is missing; found:"
            f" {', '.join(map(str, frame.columns))}"
        )
    if frame.empty and not may_be_empty:
        raise ValueError(f"{path}: the table has no rows; allowed: one row or more")
    return frame


def read_frames(
    inputs: Inputs, key: str, columns: Sequence[str], only: Sequence[str] = ()
) -> pd.DataFrame:
    """The selected tables under ``key``, one below the other; the column ``item`` holds
    what each file is about.

    Tables without rows are left out (a topology too large for a model has none);
    ValueError where none has any.
    """
    paths = selected_paths(inputs, key, only)
    frames = [
        read_frame(path, columns, may_be_empty=True).assign(item=item_name(path)) for path in paths
    ]
    filled = [frame for frame in frames if not frame.empty]
    if not filled:
        raise ValueError(
            f"{', '.join(map(str, paths))}: no rows; allowed: one row or more in one of the tables"
        )
    return pd.concat(filled, ignore_index=True)
