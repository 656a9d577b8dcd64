"""The tables behind a figure, as pandas frames or as rows of a query.

Errors name the file and the column. Large files have their name in the metadata,
other tables in a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from railx.errors import UserError
from railx.figures.types import DataFrame, Series
from railx.io import read_metadata, read_table

Rows = list[dict[str, Any]]
#: What a figure is drawn from: the files under each input key.
FigureFiles = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class FigureInput:
    """A table that a figure reads.

    ``key`` is its name among the inputs of ``draw``. ``table`` names it by stage and
    output: ``network.bounds`` are the bounds of every topology, or of those in the
    settings' ``only``. ``columns`` are those that it must have, separated by spaces.
    ``published`` names a file of resources/published instead of a table. ``required``
    is false where the figure can be drawn without it. ``plan_kind`` leaves out plans of
    another kind (None: no plan is left out).
    """

    key: str
    table: str
    columns: str
    published: str
    required: bool
    plan_kind: Literal["sequence_parallel", "pipeline"] | None

    @classmethod
    def of(cls, key: str, source: str) -> FigureInput:
        """The input of ``"stage.output (marks): columns"`` or ``"file.csv: columns"``.

        Marks are ``optional`` and the kind of plans that are read. Raises ValueError
        for a source of another form.
        """
        match = re.fullmatch(r"([\w.]+)(?: \((optional)?(?:, )?(\w+)?\))?(?:: (.+))?", source)
        if match is None:
            raise ValueError(f"input {key}: got {source!r}; allowed: stage.output: columns")
        name, optional, kind, columns = match.groups(default="")
        table, published = ("", name) if name.endswith(".csv") else (name, "")
        plan_kind = cast("Any", kind or None)
        return cls(key, table, columns, published, not optional, plan_kind)


class Tables:
    """The input tables of a figure by key, read when they are asked for."""

    def __init__(self, inputs: Iterable[FigureInput], files: FigureFiles) -> None:
        self._inputs = {table.key: table for table in inputs}
        self._files = {key: [Path(path) for path in paths] for key, paths in files.items()}

    def __contains__(self, key: str) -> bool:
        return bool(self._files.get(key))

    def columns(self, key: str) -> list[str]:
        """The columns that the figure declares for the table under ``key``."""
        return self._inputs[key].columns.split()

    def paths(self, key: str) -> list[Path]:
        """The files under ``key``; UserError where there is none."""
        if key not in self:
            refuse(f"input {key}: no file given", "one file or more")
        return self._files[key]

    def files(self, key: str, only: Sequence[str] = ()) -> list[tuple[str, Path]]:
        """The files under ``key`` with the names in their metadata.

        Those in ``only`` in its order, all when it is empty. Raises UserError for a
        name in ``only`` that no file has.
        """
        named = [(str(read_metadata(path).get("name", "")), path) for path in self.paths(key)]
        unknown = [name for name in only if name not in dict(named)]
        if unknown:
            refuse(f"only: no {key} file for {', '.join(unknown)}", [name for name, _ in named])
        return [(name, dict(named)[name]) for name in only] if only else named

    def read(self, key: str, name: str | None = None, only: Sequence[str] = ()) -> DataFrame:
        """The tables under ``key``, one below the other, or the published table.

        Of the column ``name`` the values in ``only`` are taken, in its order; all when
        it is empty. Tables without rows are left out (a topology too large for a model
        has none).
        Raises UserError where none has any, and for a name in ``only`` that no table
        has, unless it may be that of a table without rows.
        """
        paths, columns = self.paths(key), self.columns(key)
        if self._inputs[key].published:
            if len(paths) != 1:
                refuse(f"input {key}: got {len(paths)} files", "one published table")
            return read_frame(paths[0], columns)
        frames = [read_frame(path, columns, may_be_empty=True) for path in paths]
        filled = [rows for rows in frames if not rows.empty]
        if not filled:
            names = ", ".join(map(str, paths))
            refuse(f"{names}: no rows", "one row or more in one of the tables")
        rows = stack(filled)
        if name is None or not only:
            return rows
        items = rows[name].astype(str)
        unknown = [choice for choice in only if choice not in set(items)]
        if len(unknown) > len(frames) - len(filled) or len(unknown) == len(only):
            got = f"only: no {name} {', '.join(unknown)} in the {key} tables"
            refuse(got, dict.fromkeys(items))
        return stack(rows[items == choice] for choice in only)

    def values(self, key: str) -> Series[Any]:
        """The column ``value`` of a published table by its column ``id``."""
        return self.read(key).set_index("id")["value"]

    def query(self, sql: str, **frames: DataFrame) -> DataFrame:
        """The rows of a SELECT over the tables by key, with ``frames`` beside them.

        Each table by key has the numbers of its rows in the column ``rowid_``.
        """
        import duckdb

        with duckdb.connect(":memory:") as connection:
            for key in self._inputs:
                if key in self and key not in frames and re.search(rf"\b{key}\b", sql):
                    rows = self.read(key)
                    connection.register(key, rows.assign(rowid_=range(len(rows))))
            for key, rows in frames.items():
                connection.register(key, rows)
            answer: DataFrame = connection.sql(sql).df()
            return answer


def to_frame(rows: Any, columns: Any = None) -> DataFrame:
    """A table of rows."""
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)


def stack(frames: Iterable[DataFrame]) -> DataFrame:
    """Tables one below the other; those without rows are left out."""
    import pandas as pd

    return pd.concat([rows for rows in frames if len(rows)], ignore_index=True)


def where(rows: DataFrame, **values: Any) -> DataFrame:
    """The rows that have these values in their columns."""
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def records(rows: DataFrame) -> Rows:
    """The rows of a table as mappings by column."""
    return cast("Rows", rows.to_dict("records"))


def refuse(got: str, allowed: Iterable[Any] | str) -> NoReturn:
    """Raise UserError that says what was got and what is allowed: names or words."""
    words = allowed if isinstance(allowed, str) else ", ".join(map(str, allowed))
    raise UserError(f"{got}; allowed: {words}")


def refuse_unknown(key: str, names: Iterable[Any], allowed: Iterable[Any]) -> None:
    """Raise UserError for the names that a key of the settings does not allow."""
    choices = list(dict.fromkeys(allowed))
    unknown = [str(name) for name in names if name not in choices]
    if unknown:
        refuse(f"{key}: got {', '.join(unknown)}", choices)


def plans_at(rows: DataFrame, table: str, **values: int) -> dict[str, DataFrame]:
    """The rows of each plan that have these values; UserError where a plan has none."""
    plans = {}
    for plan, part in rows.groupby("plan", sort=False):
        for column, value in values.items():
            choices, part = sorted(set(part[column])), where(part, **{column: value})
            if part.empty:
                refuse(f"plan {plan}: {column} {value} is not in the {table}", choices)
        plans[str(plan)] = part
    return plans


def read_frame(path: Path, columns: Sequence[str], *, may_be_empty: bool = False) -> DataFrame:
    """The table in ``path`` with all its columns; numbers of a CSV are numbers.

    Raises UserError that names the file and the missing column or rows.
    """
    rows = _published(path) if path.suffix == ".csv" else read_table(path).to_pandas()
    missing = [column for column in columns if column not in rows.columns]
    if missing:
        found = ", ".join(map(str, rows.columns))
        raise UserError(f"{path}: column {', '.join(missing)} is missing; found: {found}")
    if rows.empty and not may_be_empty:
        refuse(f"{path}: the table has no rows", "one row or more")
    return rows


def _published(path: Path) -> DataFrame:
    import pandas as pd

    rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    for name in rows.columns:
        cells = rows[name].replace("", None)
        numbers = pd.to_numeric(cells, errors="coerce")
        if numbers.notna().sum() == cells.notna().sum():
            rows[name] = numbers
    return rows
