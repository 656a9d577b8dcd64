"""Published numbers: CSV files whose rows have an id, a source and a confidence.

Claims refer to a number and never retype it. ``tables.yaml`` beside the files says of
each what it is, whose numbers it holds, and what it is for where no figure draws it and
no claim judges it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from railx.errors import UserError
from railx.evidence.errors import ClaimError
from railx.evidence.papers import read_yaml
from railx.settings import NotEmpty, SettingsError, load

if TYPE_CHECKING:
    import _csv

__all__ = [
    "CONFIDENCE",
    "TABLES_FILE",
    "Published",
    "PublishedTable",
    "published_tables",
    "read_published",
]

#: How far the reading of a number can be trusted; README.md beside the files has the
#: words for each.
CONFIDENCE = ("high", "medium", "low")

#: The file that describes the tables beside it.
TABLES_FILE = "tables.yaml"


@dataclass(frozen=True)
class Published:
    """One published number with its unit, source and the confidence in the reading.

    The unit is empty for a plain ratio. The value is NaN where the paper states one
    that no source gives.
    """

    file: str
    id: str
    column: str
    value: float
    unit: str
    source: str
    confidence: str

    @property
    def known(self) -> bool:
        """Whether a source gives the number."""
        return math.isfinite(self.value)


@dataclass(frozen=True)
class TableSettings:
    """What ``tables.yaml`` says of a file."""

    title: Annotated[str, NotEmpty()]
    """What the table holds, for a reader."""
    paper: Annotated[str, NotEmpty()]
    """The key of the paper that it belongs to, in resources/papers.yaml."""
    why: Annotated[str, NotEmpty()]
    """What the rows are for that no figure draws and no claim judges."""


@dataclass(frozen=True)
class PublishedTable:
    """A file of published numbers, every row of which has a source."""

    file: str
    title: str
    paper: str
    why: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]


def published_tables(
    directory: str | Path, papers: Collection[str] | None = None
) -> list[PublishedTable]:
    """All tables of ``directory`` in the order of ``tables.yaml``.

    ``papers`` are the keys that a table may name; None: any. Raises
    :class:`ClaimError`, one line naming file and row, for a table that ``tables.yaml``
    does not describe, a description without table, an unknown paper, and rows with too
    few or too many cells, without source, of unknown confidence or with an id used
    twice.
    """
    directory = Path(directory)
    described = _described(directory / TABLES_FILE)
    there = {path.name for path in directory.glob("*.csv")}
    for name in sorted(there - described.keys()):
        raise ClaimError(f"{TABLES_FILE}: {name}: is missing; allowed: an entry for every CSV file")
    tables = []
    for name, settings in described.items():
        if name not in there:
            raise ClaimError(
                f"{TABLES_FILE}: {name}: no such file; allowed: {', '.join(sorted(there))}"
            )
        if papers is not None and settings.paper not in papers:
            raise ClaimError(
                f"{TABLES_FILE}: {name}: paper: got {settings.paper!r}; allowed:"
                f" {', '.join(papers)}"
            )
        columns, rows = _read_rows(directory / name)
        tables.append(
            PublishedTable(name, settings.title, settings.paper, settings.why, columns, rows)
        )
    return tables


def read_published(
    directory: str | Path,
    file: str,
    row_id: str,
    column: str = "value",
    *,
    may_be_unknown: bool = False,
) -> Published:
    """The number in ``column`` of the row ``row_id``.

    An empty cell says that no source gives the number; it is allowed where nothing is
    compared with it. Raises ValueError naming the file and what it has instead.
    """
    path = Path(directory) / file
    if not path.is_file():
        names = ", ".join(sorted(item.name for item in Path(directory).glob("*.csv")))
        raise UserError(f"file: no {file} in {directory}; allowed: {names or 'none'}")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    found = [row for row in rows if row.get("id") == row_id]
    if len(found) != 1:
        known = ", ".join(row["id"] for row in rows[:8] if row.get("id"))
        raise UserError(
            f"id: {len(found)} rows of {file} have the id {row_id!r}; allowed: one id of the file"
            f" ({known}, ...)"
        )
    row = found[0]
    if column not in row:
        raise UserError(f"column: {file} has no {column!r}; allowed: {', '.join(row)}")
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value) and not (may_be_unknown and not row[column]):
        raise UserError(
            f"column: {column} of {row_id} in {file} is {row[column]!r}; allowed: a number"
        )
    unit = row.get("unit") or ""
    return Published(
        file, row_id, column, value, unit, row.get("source") or "", row.get("confidence") or ""
    )


def _described(path: Path) -> dict[str, TableSettings]:
    if not path.is_file():
        raise ClaimError(
            f"{path.name}: no such file in {path.parent}; allowed: one that names every CSV"
        )
    try:
        described: dict[str, TableSettings] = load(
            Annotated[dict[str, TableSettings], NotEmpty()], read_yaml(path)
        )
    except SettingsError as error:
        raise ClaimError(f"{path.name}: {error}") from None
    return described


def _read_rows(path: Path) -> tuple[tuple[str, ...], tuple[dict[str, str], ...]]:
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        columns = tuple(next(reader, ()))
        for needed in ("id", "source", "confidence"):
            if needed not in columns:
                raise ClaimError(
                    f"{path.name}: column {needed}: is missing; allowed: columns with id, source"
                    " and confidence among them"
                )
        rows = tuple(_checked(path.name, reader, columns))
    if not rows:
        raise ClaimError(f"{path.name}: has no rows; allowed: at least one")
    return columns, rows


def _checked(file: str, reader: _csv.Reader, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    seen: set[str] = set()
    for cells in reader:
        name = dict(zip(columns, cells, strict=False)).get("id") or "no id"
        where = f"{file}, line {reader.line_num} ({name})"
        if len(cells) != len(columns):
            raise ClaimError(
                f"{where}: has {len(cells)} cells; allowed: {len(columns)}, text with a comma in"
                " quotes"
            )
        row = dict(zip(columns, cells, strict=True))
        if not row["id"] or row["id"] in seen:
            raise ClaimError(f"{where}: id: got {row['id']!r}; allowed: an id of its own")
        if not row["source"].strip():
            raise ClaimError(
                f"{where}: source: is missing; allowed: words that say where the number stands"
            )
        if row["confidence"] not in CONFIDENCE:
            raise ClaimError(
                f"{where}: confidence: got {row['confidence']!r}; allowed: {', '.join(CONFIDENCE)}"
            )
        seen.add(row["id"])
        yield row
