"""Reading the tables behind a figure into pandas.

Errors name the file and the column. What a table is about stands in it: in a column or,
for large files, in the metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from railx.errors import UserError
from railx.figures.figure import FigureFiles
from railx.io import read_metadata, read_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["named_files", "read_frame", "read_frames"]


def named_files(inputs: FigureFiles, key: str, only: Sequence[str] = ()) -> list[tuple[str, Path]]:
    """The files under ``key`` with the names in their metadata.

    Those in ``only`` in its order, all when it is empty. Raises ValueError for a name
    in ``only`` that no file has.
    """
    files = [(str(read_metadata(path).get("name", "")), path) for path in _files(inputs, key)]
    unknown = [name for name in only if name not in dict(files)]
    if unknown:
        raise UserError(
            f"only: no {key} file for {', '.join(unknown)}; allowed:"
            f" {', '.join(name for name, _ in files)}"
        )
    return [(name, dict(files)[name]) for name in only] if only else files


def read_frame(path: Path, columns: Sequence[str], *, may_be_empty: bool = False) -> pd.DataFrame:
    """The table in ``path`` with all its columns.

    Raises ValueError that names the file and the missing column or rows.
    """
    frame: pd.DataFrame = read_table(path).to_pandas()
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise UserError(
            f"{path}: column {', '.join(missing)} is missing; found:"
            f" {', '.join(map(str, frame.columns))}"
        )
    if frame.empty and not may_be_empty:
        raise UserError(f"{path}: the table has no rows; allowed: one row or more")
    return frame


def read_frames(
    inputs: FigureFiles,
    key: str,
    columns: Sequence[str],
    name: str | None = None,
    only: Sequence[str] = (),
) -> pd.DataFrame:
    """The tables under ``key``, one below the other.

    Of the column ``name`` the values in ``only`` are kept, in its order; all when it is
    empty. Tables without rows are left out (a topology too large for a model has none).
    Raises ValueError where none has any, and for a name in ``only`` that no table has,
    unless it may be that of a table without rows.
    """
    import pandas as pd

    paths = _files(inputs, key)
    frames = [read_frame(path, columns, may_be_empty=True) for path in paths]
    filled = [frame for frame in frames if not frame.empty]
    if not filled:
        raise UserError(
            f"{', '.join(map(str, paths))}: no rows; allowed: one row or more in one of the tables"
        )
    frame = pd.concat(filled, ignore_index=True)
    if name is None or not only:
        return frame
    own = frame[name].astype(str)
    known = list(dict.fromkeys(own))
    unknown = [wanted for wanted in only if wanted not in known]
    if len(unknown) > len(frames) - len(filled) or len(unknown) == len(only):
        raise UserError(
            f"only: no {name} {', '.join(unknown)} in the {key} tables; allowed: {', '.join(known)}"
        )
    return pd.concat([frame[own == wanted] for wanted in only], ignore_index=True)


def _files(inputs: FigureFiles, key: str) -> list[Path]:
    paths = [Path(path) for path in inputs.get(key, ())]
    if not paths:
        raise UserError(f"input {key}: no file given; allowed: one file or more")
    return paths
