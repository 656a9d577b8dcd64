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

from railx.evidence.errors import ClaimError
from railx.evidence.papers import read_settings
from railx.settings import NotEmpty, SettingsError

if TYPE_CHECKING:
    import _csv


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
    def available(self) -> bool:
        """Whether a source gives the number."""
        return math.isfinite(self.value)


@dataclass(frozen=True)
class _TableSettings:
    """What ``tables.yaml`` says of a file."""

    title: Annotated[str, NotEmpty()]
    """What the table holds, for a reader."""
    paper: Annotated[str, NotEmpty()]
    """The key of the paper that it belongs to, in resources/papers.yaml."""
    why: Annotated[str, NotEmpty()]
    """What the rows are for that no figure draws and no claim judges."""
    every_row_judged: bool = False
    """Whether each row has a claim, so that one without is an error."""


@dataclass(frozen=True, kw_only=True)
class PublishedTable(_TableSettings):
    """A file of published numbers, every row of which has a source."""

    file: str
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
    path = directory / TABLES_FILE
    if not path.is_file():
        allowed = "one that names every CSV"
        raise ClaimError(f"{TABLES_FILE}: no such file in {directory}; allowed: {allowed}")
    hint = Annotated[dict[str, _TableSettings], NotEmpty()]
    described: dict[str, _TableSettings] = read_settings(hint, path)
    files = {path.name for path in directory.glob("*.csv")}
    for name in sorted(files - described.keys()):
        raise ClaimError(f"{TABLES_FILE}: {name}: is missing; allowed: an entry for every CSV file")
    tables = []
    for name, settings in described.items():
        if name not in files:
            allowed = ", ".join(sorted(files))
            raise ClaimError(f"{TABLES_FILE}: {name}: no such file; allowed: {allowed}")
        if papers is not None and settings.paper not in papers:
            got = f"paper: got {settings.paper!r}; allowed: {', '.join(papers)}"
            raise ClaimError(f"{TABLES_FILE}: {name}: {got}")
        columns, rows = _read_rows(directory / name)
        tables.append(PublishedTable(**vars(settings), file=name, columns=columns, rows=rows))
    return tables


class PublishedNumbers:
    """The numbers in the tables of a folder; each table is read once."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._rows: dict[str, list[dict[str, str]]] = {}

    def rows(self, file: str) -> list[dict[str, str]]:
        """A table's rows, at least one; SettingsError names the files there are."""
        if file not in self._rows:
            path = self._directory / file
            if not path.is_file():
                names = ", ".join(sorted(item.name for item in self._directory.glob("*.csv")))
                got = f"no {file} in {self._directory}; allowed: {names or 'none'}"
                raise SettingsError("file", got)
            with path.open(encoding="utf-8", newline="") as lines:
                self._rows[file] = list(csv.DictReader(lines))
            if not self._rows[file]:
                raise SettingsError("file", f"{file} has no rows; allowed: at least one")
        return self._rows[file]

    def row(self, file: str, row_id: str) -> dict[str, str]:
        """The only row with an id; raises SettingsError naming some that there are."""
        rows = self.rows(file)
        matches = [row for row in rows if row.get("id") == row_id]
        if len(matches) != 1:
            shown = ", ".join(row["id"] for row in rows[:8] if row.get("id"))
            got = f"{len(matches)} rows of {file} have the id {row_id!r}"
            raise SettingsError("id", f"{got}; allowed: one id of the file ({shown}, ...)")
        return matches[0]

    def number(
        self, file: str, row: dict[str, str], column: str, *, may_be_unknown: bool = False
    ) -> Published:
        """The number in a column of a row.

        An empty cell says that no source gives the number; it is allowed where nothing
        is compared with it. Raises SettingsError with what is there instead.
        """
        if column not in row:
            raise SettingsError("column", f"{file} has no {column!r}; allowed: {', '.join(row)}")
        try:
            value = float(row[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value) and not (may_be_unknown and not row[column]):
            got = f"{column} of {row['id']} in {file} is {row[column]!r}"
            raise SettingsError("column", f"{got}; allowed: a number")
        words = [row.get(name) or "" for name in ("unit", "source", "confidence")]
        return Published(file, row["id"], column, value, *words)


def _read_rows(path: Path) -> tuple[tuple[str, ...], tuple[dict[str, str], ...]]:
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        columns = tuple(next(reader, ()))
        for needed in ("id", "source", "confidence"):
            if needed not in columns:
                allowed = "columns with id, source and confidence among them"
                raise ClaimError(f"{path.name}: column {needed}: is missing; allowed: {allowed}")
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
            allowed = f"{len(columns)}, text with a comma in quotes"
            raise ClaimError(f"{where}: has {len(cells)} cells; allowed: {allowed}")
        row = dict(zip(columns, cells, strict=True))
        if not row["id"] or row["id"] in seen:
            raise ClaimError(f"{where}: id: got {row['id']!r}; allowed: an id of its own")
        if not row["source"].strip():
            allowed = "words that say where the number stands"
            raise ClaimError(f"{where}: source: is missing; allowed: {allowed}")
        if row["confidence"] not in CONFIDENCE:
            got = f"got {row['confidence']!r}; allowed: {', '.join(CONFIDENCE)}"
            raise ClaimError(f"{where}: confidence: {got}")
        seen.add(row["id"])
        yield row
