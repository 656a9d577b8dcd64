"""Numbers of the pages in docs/findings, computed from values recorded in git.

A comment below a bullet, a paragraph or a table names its entry in
resources/findings.yaml::

    <!-- computed: flexsp_over_deepspeed -->

A table's entry is claims, or a query whose rows resources/recorded/findings.yaml has.
That of a text has the source of each of its numbers, in the order of the text, where
code and link targets do not count:

* ``EXPERIMENT CLAIM``, our value in resources/expected, or its ``low``, ``high``,
  ``samples``, or the ``published`` number;
* ``TABLE COLUMN ROW``, a cell of the rows of a query or of a CSV file such as
  ``published.opus``; ROW is the text of its first column and may be left out where
  there is one row;
* ``FILE.yaml KEY``, a setting, with dots between the parts of its key;
* ``-``, a number that is no value: part of a name, or of an arithmetic in the text;

each with steps of arithmetic, a sign (``x / + -``) and a number. A number's digits in
the text are its format.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa

from railx.errors import UserError
from railx.evidence.expected import Recorded
from railx.evidence.papers import read_settings
from railx.settings import AtLeast, SettingsError

#: Where a query finds the recorded verdicts.
VERDICTS = "expected"

#: A number as a page shows it, as in 1.22x: no part of a name such as 7B or ZeRO-3.
_NUMBER = re.compile(r"(?<![\w.,-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?!\.?\d|(?!x\b)\w)")
#: Code and link targets.
_NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)")
_COMMENT = re.compile(r"<!--\s*computed:\s*(?P<entry>\S*)\s*-->")
_STEP = re.compile(r"^(?P<rest>.*\S)\s+(?P<sign>[x/+-])\s(?P<number>-?\d+(?:\.\d+)?)$", re.DOTALL)
_PARTS = ("low", "high", "samples", "published")
_COLUMN_OF_LABELS = 1
_NO_VALUE = "-"


@dataclass(frozen=True)
class FindingsTable:
    """An entry of resources/findings.yaml: claims, a query or numbers of a text."""

    experiment: str = VERDICTS
    """The experiment whose values these are; ``expected``: the query asks what is in
    git, the recorded verdicts ``expected.EXPERIMENT`` and files such as
    ``published.opus``."""
    query: str | None = None
    """One SELECT over its tables, recorded in resources/recorded/findings.yaml."""
    claims: tuple[str, ...] = ()
    """Claims of each row; ``{a,b}`` in a name stands for several."""
    numbers: tuple[str, ...] = ()
    """References of the numbers of a text."""
    labels: Annotated[int, AtLeast(0)] = _COLUMN_OF_LABELS
    """Columns of the page's table whose numbers are part of the text."""

    def __post_init__(self) -> None:
        if [self.query is not None, bool(self.claims), bool(self.numbers)].count(True) != 1:
            raise SettingsError("query", "allowed: either a query, claims or numbers")
        if set(self.numbers) == {_NO_VALUE}:
            raise SettingsError("numbers", "allowed: at least one reference")


@dataclass(frozen=True)
class Sources:
    """What a page may name: verdicts by experiment, published numbers and tables.

    ``expected`` holds the recorded claims of each experiment, ``published`` the numbers
    by claim, ``tables`` the entries and ``rows`` the rows of queries and CSV files;
    ``settings`` reads a YAML file by its path below the repository.
    """

    expected: Mapping[str, Mapping[str, Recorded]]
    published: Mapping[str, float | None]
    tables: Mapping[str, FindingsTable]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    settings: Callable[[str], Any]

    def value(self, reference: str) -> float:
        """The number that a reference names; UserError for one that names none."""
        step = _STEP.match(reference.strip())
        if step is not None:
            left, right = self.value(step["rest"]), float(step["number"])
            sign = step["sign"]
            if sign in "x/":
                return left * right if sign == "x" else left / right
            return left + right if sign == "+" else left - right
        name, *rest = reference.split()
        if name.endswith(".yaml"):
            number = self._setting(name, rest)
        else:
            number = self._claim(name, rest) if name in self.expected else self._cell(name, rest)
        if number is None:
            got = f"got {reference!r}, which has no value"
            raise UserError(f"computed: {got}; allowed: one that has")
        return float(number)

    def grid(self, name: str) -> list[list[tuple[float | None, ...]]]:
        """The cells of a table: our value and the published one, or a query's value."""
        table = self.entry(name)
        if table.query is None:
            return [
                [
                    (None, None)
                    if claim == _NO_VALUE
                    else (self._claim(table.experiment, [claim]), self.published.get(claim))
                    for claim in _spelled_out(row)
                ]
                for row in table.claims
            ]
        cells = int | float | Decimal | None
        return [
            [(v if v is None else float(v),) for v in row.values() if isinstance(v, cells)]
            for row in self.rows[name]
        ]

    def entry(self, name: str) -> FindingsTable:
        """The entry of that name; UserError where there is none."""
        if name not in self.tables:
            raise UserError(f"computed: got {name!r}; allowed: an entry of resources/findings.yaml")
        return self.tables[name]

    def _claim(self, experiment: str, words: Sequence[str]) -> float | None:
        claim, part = words[0] if words else "", words[1] if len(words) > 1 else "ours"
        recorded = self.expected[experiment].get(claim)
        if recorded is None or part not in ("ours", *_PARTS) or len(words) > 2:
            allowed = f"a claim, then nothing or {', '.join(_PARTS)}"
            raise UserError(f"computed: got {experiment} {' '.join(words)}; allowed: {allowed}")
        values = vars(recorded) | {"published": self.published.get(claim)}
        number: float | None = values[part]
        return number

    def _cell(self, name: str, words: Sequence[str]) -> float | None:
        rows, label = self.rows.get(name, ()), " ".join(words[1:])
        chosen = [row for row in rows if not label or str(next(iter(row.values()))) == label]
        if len(chosen) != 1 or not words or words[0] not in chosen[0]:
            allowed = "TABLE COLUMN ROW of a recorded table"
            raise UserError(f"computed: got {name} {' '.join(words)}; allowed: {allowed}")
        value = chosen[0][words[0]]
        return float(value) if isinstance(value, int | float | Decimal) else None

    def _setting(self, file: str, words: Sequence[str]) -> float | None:
        try:
            value = self.settings(file)
        except FileNotFoundError:
            value = None
        for key in ".".join(words).split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"computed: got {file} {' '.join(words)}; allowed: a key with a number")
        return float(value)


def computed_page(text: str, sources: Sources, page: str) -> tuple[str, list[str]]:
    """A page with its numbers computed anew, and a line for each that was another.

    UserError, one line with the page, for a comment that cannot be followed.
    """
    pieces: list[str] = []
    changes: list[str] = []
    end = 0
    for comment in _COMMENT.finditer(text):
        begin = _block_start(text, end, comment.start())
        pieces.append(text[end:begin])
        block = text[begin : comment.start()]
        try:
            filled = _text if sources.entry(comment["entry"]).numbers else _table
            block, differences = filled(block, comment["entry"], sources)
        except UserError as error:
            raise UserError(f"{page}: {error}") from None
        pieces += [block, comment[0]]
        changes += [f"{page}: {change}" for change in differences]
        end = comment.end()
    return "".join([*pieces, text[end:]]), changes


def references(text: str) -> list[str]:
    """The entries that a page names."""
    return [comment["entry"] for comment in _COMMENT.finditer(text)]


def open_blocks(text: str) -> list[str]:
    """First lines of bullets, paragraphs and tables with numbers and without a source.

    Headings, code and the numbers inside code spans and links do not count.
    """
    bare = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    # The comment of a table stands below a blank line.
    bare = re.sub(r"\n[ ]*\n(?= *<!--\s*computed:)", "\n", bare)
    blocks = []
    for block in re.split(r"\n[ ]*\n|\n(?= *\* )", bare):
        words = _NO_PROSE.sub("", block)
        sourced = block.lstrip().startswith("#") or _COMMENT.search(block)
        if not sourced and _NUMBER.search(words):
            blocks.append(block.strip().splitlines()[0])
    return blocks


def read_findings_tables(path: str | Path) -> dict[str, FindingsTable]:
    """The tables of resources/findings.yaml; UserError names the key."""
    tables: dict[str, FindingsTable] = read_settings(dict[str, FindingsTable], Path(path))
    return tables


def verdicts_table(
    claims: Mapping[str, Recorded], published: Mapping[str, float | None]
) -> pa.Table:
    """Recorded verdicts as a table: ``claim``, the fields of each, ``published``."""
    numbers = ("ours", "low", "high", "samples")
    columns: dict[str, list[Any]] = {"claim": list(claims)}
    for key in ("verdict", "fidelity", *numbers):
        columns[key] = [getattr(entry, key) for entry in claims.values()]
    columns["published"] = [published.get(claim) for claim in claims]
    kinds = {key: pa.float64() for key in (*numbers, "published")}
    return pa.table({k: pa.array(v, kinds.get(k, pa.string())) for k, v in columns.items()})


def query_digest(query: str) -> str:
    """Eight letters that change with a query's words."""
    return hashlib.sha256(" ".join(query.split()).encode()).hexdigest()[:8]


def recorded_table(rows: Sequence[Mapping[str, Any]], query: str) -> dict[str, Any]:
    """What is recorded of a query: its digest and its rows as CSV."""
    lines = [",".join(rows[0]), *(",".join(_field(v) for v in row.values()) for row in rows)]
    return {"query": query_digest(query), "rows": "\n".join(lines) + "\n"}


def recorded_tables_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The file of recorded tables by name; rows are lines of text."""
    texts = []
    for name, table in sorted(tables.items()):
        head = {key: value for key, value in table.items() if key != "rows"}
        texts.append(f"{name}:\n" + "".join(f"  {k}: {json.dumps(v)}\n" for k, v in head.items()))
        texts.append("  rows: |\n" + textwrap.indent(table["rows"], "    "))
    return "".join(texts)


def recorded_rows(
    recorded: Mapping[str, Mapping[str, Any]], name: str, query: str
) -> list[dict[str, Any]]:
    """The rows of a recorded table, numbers as numbers.

    UserError where there is none, and where another query made it.
    """
    if name not in recorded:
        raise UserError(f"{name}: is not there; allowed: a table that `make findings` recorded")
    if recorded[name]["query"] != query_digest(query):
        raise UserError(f"{name}: another query made it; allowed: record it again (make findings)")
    return csv_rows(recorded[name]["rows"])


def csv_rows(text: str) -> list[dict[str, Any]]:
    """The rows of CSV, numbers as numbers; lines with # are comments."""
    data = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [{key: _plain(value) for key, value in row.items()} for row in data]


def _field(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text


def _plain(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _shaped(value: float, shown: str) -> str:
    """A value with the digits of the number shown."""
    decimals = len(shown.partition(".")[2])
    # Zero has no sign.
    rounded = round(value, decimals) or 0.0
    sign = "+" if shown.startswith("+") and rounded > 0 else ""
    return f"{sign}{rounded:,.{decimals}f}"


def _text(block: str, name: str, sources: Sources) -> tuple[str, list[str]]:
    """A text with today's numbers, and what changed."""
    numbers, shown = sources.entry(name).numbers, [match[0] for match in _numbers(block)]
    if len(numbers) != len(shown):
        there = f"{len(numbers)} numbers; the text has {', '.join(shown)}"
        raise UserError(f"computed: {name} has {there}")
    values = [None if word == _NO_VALUE else sources.value(word) for word in numbers]
    block, changes = _filled(block, values)
    return block, [
        f"{name}: {reference} {change}"
        for reference, change in zip(numbers, changes, strict=True)
        if change
    ]


def _table(block: str, name: str, sources: Sources) -> tuple[str, list[str]]:
    """A table with today's numbers, and what changed."""
    lines, changes = block.splitlines(keepends=True), []
    body = [index for index, line in enumerate(lines) if line.lstrip().startswith("|")][2:]
    grid = sources.grid(name)
    if len(body) != len(grid):
        raise UserError(f"computed: table {name} has {len(grid)} rows; the text has {len(body)}")
    for index, row in zip(body, grid, strict=True):
        cells = lines[index].split("|")
        at = sources.entry(name).labels + 1
        filled = [column for column in range(at, len(cells) - 1) if _numbers(cells[column])]
        values = _by_cell(row, [len(_numbers(cells[column])) for column in filled], name)
        for column, numbers in zip(filled, values, strict=True):
            cells[column], differences = _filled(cells[column], numbers)
            changes += [f"table {name}, {cells[1].strip()}: {c}" for c in differences if c]
        lines[index] = "|".join(cells)
    return "".join(lines), changes


def _by_cell(
    row: Sequence[tuple[float | None, ...]], counts: Sequence[int], name: str
) -> list[list[float | None]]:
    """The values of a row by the cells that show so many of them."""
    if all(len(values) > 1 for values in row) and len(row) == len(counts):
        return [list(values[:count]) for values, count in zip(row, counts, strict=True)]
    # Empty cells of the text have no number; a number without a value stays.
    fits = len(row) == sum(counts)
    flat = iter([values[0] for values in row if fits or values[0] is not None])
    taken = [list(itertools.islice(flat, count)) for count in counts]
    if [len(values) for values in taken] != list(counts) or next(flat, None) is not None:
        there = f"{len(row)} numbers in a row; the text has {sum(counts)}"
        raise UserError(f"computed: table {name} has {there}")
    return taken


def _numbers(text: str) -> list[re.Match[str]]:
    """The numbers of a text, without those of code and link targets."""
    return list(_NUMBER.finditer(_NO_PROSE.sub(lambda span: "`" * len(span[0]), text)))


def _filled(text: str, values: Sequence[float | None]) -> tuple[str, list[str]]:
    """A text with these values (None: as it is), and what changed, by number."""
    changes: list[str] = []
    for match, value in reversed(list(zip(_numbers(text), values, strict=True))):
        shown = match[0]
        now = shown if value is None else _shaped(value, shown)
        text = text[: match.start()] + now + text[match.end() :]
        changes.insert(0, f"is {now}; the text has {shown}" if now != shown else "")
    return text, changes


def _block_start(text: str, end: int, comment: int) -> int:
    """Where the block above a comment begins: a bullet, a paragraph or a table."""
    block = text[end:comment].rstrip()
    starts = [m.end() for m in re.finditer(r"\n[ ]*\n|\n(?= *\* )", block)]
    return end + (starts[-1] if starts else 0)


def _spelled_out(pattern: str) -> list[str]:
    """The names of a row: ``{a,b}`` stands for several, words are apart."""
    names: list[str] = []
    for word in pattern.split():
        parts = re.split(r"\{([^}]*)\}", word)
        choices = [part.split(",") if odd % 2 else [part] for odd, part in enumerate(parts)]
        names += ["".join(chosen) for chosen in itertools.product(*choices)]
    return names
