"""Numbers of the pages in docs/findings, computed from values recorded in git.

A comment below a bullet, a paragraph or a table says where its numbers come from::

    <!-- computed: 1.92 = paper flexsp_speedup_wikipedia; 4 = slower least x 100 -->
    <!-- computed: table flexsp_over_deepspeed -->

Left of an equals sign stands the number as the text shows it, in the order of the text;
its digits are the format. Right of it stands one of

* ``EXPERIMENT CLAIM``, our value in resources/expected, or its ``low``, ``high``,
  ``samples``, or the ``published`` number;
* ``TABLE COLUMN ROW``, a cell of a recorded table; ROW is the text of its first column
  and may be left out where there is one row;

and steps of arithmetic, each a sign (``x / + -``) and a number. A table's numbers are
those of a table of resources/findings.yaml, row by row: claims, or the rows of a query
recorded in resources/recorded/findings.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa

from railx.errors import UserError
from railx.evidence.expected import Recorded
from railx.evidence.papers import read_yaml
from railx.settings import AtLeast, SettingsError, load

__all__ = [
    "VERDICTS",
    "FindingsTable",
    "Sources",
    "computed_page",
    "open_blocks",
    "query_digest",
    "read_findings_tables",
    "read_recorded_table",
    "recorded_table_text",
    "references",
    "verdicts_table",
]

#: Where a query finds the recorded verdicts.
VERDICTS = "expected"

#: A number as a page shows it, as in 1.22x: no part of a name such as 7B or ZeRO-3.
_NUMBER = re.compile(r"(?<![\w.,-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\.?\d|(?!x\b)\w)")
_COMMENT = re.compile(r"<!--\s*computed:(?P<content>.*?)-->", re.DOTALL)
_STEP = re.compile(r"^(?P<rest>.*\S)\s+(?P<sign>[x/+-])\s(?P<number>-?\d+(?:\.\d+)?)$", re.DOTALL)
_PARTS = ("low", "high", "samples", "published")
_COLUMN_OF_LABELS = 1


@dataclass(frozen=True)
class FindingsTable:
    """A table of resources/findings.yaml: claims of an experiment, or a query."""

    experiment: str
    """The experiment whose values these are; ``expected``: the query asks the recorded
    verdicts, tables ``expected.EXPERIMENT``."""
    query: str | None = None
    """One SELECT over its tables, recorded in resources/recorded/findings."""
    claims: tuple[str, ...] = ()
    """Without a query: claims of each row; ``{a,b}`` in a name stands for several."""
    labels: Annotated[int, AtLeast(0)] = _COLUMN_OF_LABELS
    """Columns of the page's table whose numbers are part of the text."""

    def __post_init__(self) -> None:
        if (self.query is None) == (not self.claims):
            raise SettingsError("query", "allowed: either a query or claims")


@dataclass(frozen=True)
class Sources:
    """What a page may name: verdicts by experiment, published numbers and tables.

    ``expected`` holds the recorded claims of each experiment, ``published`` the numbers
    by claim, ``tables`` the definitions and ``rows`` the rows of those with a query.
    """

    expected: Mapping[str, Mapping[str, Recorded]]
    published: Mapping[str, float | None]
    tables: Mapping[str, FindingsTable]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]

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
        number = self._claim(name, rest) if name in self.expected else self._cell(name, rest)
        if number is None:
            raise UserError(
                f"computed: got {reference!r}, which has no value; allowed: one that has"
            )
        return float(number)

    def grid(self, name: str) -> list[list[tuple[float | None, ...]]]:
        """The cells of a table: our value and the published one, or a query's value."""
        table = self._table(name)
        if table.query is None:
            return [
                [
                    (None, None)
                    if claim == "-"
                    else (self._claim(table.experiment, [claim]), self.published.get(claim))
                    for claim in _spelled_out(row)
                ]
                for row in table.claims
            ]
        return [
            [
                (None if value is None else float(value),)
                for value in row.values()
                if _is_cell(value)
            ]
            for row in self.rows[name]
        ]

    def labels(self, name: str) -> int:
        """Columns of text of a table."""
        return self._table(name).labels

    def _table(self, name: str) -> FindingsTable:
        if name not in self.tables:
            raise UserError(f"computed: got {name!r}; allowed: a table of resources/findings.yaml")
        return self.tables[name]

    def _claim(self, experiment: str, words: Sequence[str]) -> float | None:
        claim, part = words[0] if words else "", words[1] if len(words) > 1 else "ours"
        recorded = self.expected[experiment].get(claim)
        if recorded is None or part not in ("ours", *_PARTS) or len(words) > 2:
            raise UserError(
                f"computed: got {experiment} {' '.join(words)}; allowed: a claim, then nothing or"
                f" {', '.join(_PARTS)}"
            )
        number: float | None = (
            self.published.get(claim) if part == "published" else getattr(recorded, part)
        )
        return number

    def _cell(self, name: str, words: Sequence[str]) -> float | None:
        self._table(name)
        rows, label = self.rows.get(name, ()), " ".join(words[1:])
        chosen = [row for row in rows if not label or str(next(iter(row.values()))) == label]
        if len(chosen) != 1 or not words or words[0] not in chosen[0]:
            raise UserError(
                f"computed: got {name} {' '.join(words)}; allowed: TABLE COLUMN ROW of a recorded"
                " table"
            )
        value = chosen[0][words[0]]
        return float(value) if isinstance(value, int | float | Decimal) else None


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
        block, content = text[begin : comment.start()], comment["content"]
        try:
            if content.split()[0] == "table":
                block, differences = _table(block, content.split()[1], sources)
                source = comment[0]
            else:
                block, source, differences = _sentence(block, comment[0], content, sources)
        except (UserError, IndexError) as error:
            raise UserError(f"{page}: {error}") from None
        pieces += [block, source]
        changes += [f"{page}: {change}" for change in differences]
        end = comment.end()
    return "".join([*pieces, text[end:]]), changes


def references(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of shown number and reference, and of ``table`` and name."""
    for comment in _COMMENT.finditer(text):
        words = comment["content"].split()
        if words[:1] == ["table"]:
            yield "table", words[1]
        else:
            yield from _entries(comment["content"])


def open_blocks(text: str) -> list[str]:
    """First lines of bullets, paragraphs and tables with numbers and without a source.

    Headings, code and the numbers inside code spans and links do not count.
    """
    bare = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    # The comment of a table stands below a blank line.
    bare = re.sub(r"\n[ ]*\n(?= *<!--\s*computed:)", "\n", bare)
    blocks = []
    for block in re.split(r"\n[ ]*\n|\n(?= *\* )", bare):
        words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", block)
        sourced = block.lstrip().startswith("#") or _COMMENT.search(block)
        if not sourced and _NUMBER.search(words):
            blocks.append(block.strip().splitlines()[0])
    return blocks


def read_findings_tables(path: str | Path) -> dict[str, FindingsTable]:
    """The tables of resources/findings.yaml; UserError names the key."""
    try:
        tables: dict[str, FindingsTable] = load(dict[str, FindingsTable], read_yaml(Path(path)))
    except SettingsError as error:
        raise UserError(f"{Path(path).name}: {error}") from None
    return tables


def verdicts_table(
    claims: Mapping[str, Recorded], published: Mapping[str, float | None]
) -> pa.Table:
    """Recorded verdicts as a table: ``claim``, the fields of each, ``published``."""
    columns: dict[str, list[Any]] = {"claim": list(claims)}
    columns |= {key: [getattr(c, key) for c in claims.values()] for key in ("verdict", "fidelity")}
    numbers = ("ours", "low", "high", "samples")
    for key in numbers:
        columns[key] = [getattr(entry, key) for entry in claims.values()]
    columns["published"] = [published.get(claim) for claim in claims]
    kinds = {key: pa.float64() for key in (*numbers, "published")}
    return pa.table({k: pa.array(v, kinds.get(k, pa.string())) for k, v in columns.items()})


def query_digest(query: str) -> str:
    """Eight letters that change with a query's words."""
    return hashlib.sha256(" ".join(query.split()).encode()).hexdigest()[:8]


def recorded_table_text(rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, object]) -> str:
    """The file of a recorded table: comments with its provenance, then CSV."""
    head = [f"# {key}: {value}" for key, value in provenance.items()]
    lines = [",".join(rows[0]), *(",".join(_field(v) for v in row.values()) for row in rows)]
    return "\n".join([*head, *lines]) + "\n"


def read_recorded_table(path: str | Path, query: str) -> list[dict[str, Any]]:
    """The rows of a recorded table, numbers as numbers.

    UserError where there is none, and where another query made it.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: is not there; allowed: a table that `make findings` recorded")
    lines = path.read_text(encoding="utf-8").splitlines()
    if f"# query: {query_digest(query)}" not in lines:
        raise UserError(f"{path}: another query made it; allowed: record it again (make findings)")
    data = csv.DictReader(line for line in lines if not line.startswith("#"))
    return [{key: _plain(value) for key, value in row.items()} for row in data]


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, int | float | Decimal)


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
    if "e" in shown:
        digits = len(shown.split("e")[0].partition(".")[2])
        mantissa, exponent = f"{value:.{digits}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = len(shown.partition(".")[2])
    # Zero has no sign.
    rounded = round(value, decimals) or 0.0
    text = f"{rounded:,.{decimals}f}" if abs(rounded) >= 1000 else f"{rounded:.{decimals}f}"
    if abs(rounded) >= 1000 and "," not in shown and len(re.sub(r"\D", "", shown)) > 3:
        text = text.replace(",", "")
    return f"+{text}" if shown.startswith("+") and rounded > 0 else text


def _entries(content: str) -> Iterator[tuple[str, str]]:
    for entry in content.split(";"):
        shown, equals, reference = entry.partition("=")
        if not equals or not _NUMBER.fullmatch(shown.strip()):
            raise UserError(f"computed: got {entry.strip()!r}; allowed: NUMBER = REFERENCE")
        yield shown.strip(), " ".join(reference.split())


def _sentence(
    block: str, comment: str, content: str, sources: Sources
) -> tuple[str, str, list[str]]:
    """A block and its comment with today's numbers, and what changed."""
    changes, at = [], 0
    for shown, reference in _entries(content):
        now = _shaped(sources.value(reference), shown)
        match = next((m for m in _NUMBER.finditer(block, at) if m[0] == shown), None)
        if match is None:
            raise UserError(f"computed: {shown} = {reference}: the text has no {shown} there")
        block, at = block[: match.start()] + now + block[match.end() :], match.start() + len(now)
        if now != shown:
            changes.append(f"{reference} is {now}; the text has {shown}")
            # The comment may be wrapped anywhere.
            before = rf"(?<![\w.,+-]){re.escape(shown)}(?=\s*=\s)"
            comment = re.sub(before, now, comment, count=1)
    return block, comment, changes


def _table(block: str, name: str, sources: Sources) -> tuple[str, list[str]]:
    """A table with today's numbers, and what changed."""
    lines, changes = block.splitlines(keepends=True), []
    body = [index for index, line in enumerate(lines) if line.lstrip().startswith("|")][2:]
    grid = sources.grid(name)
    if len(body) != len(grid):
        raise UserError(f"computed: table {name} has {len(grid)} rows; the text has {len(body)}")
    for index, row in zip(body, grid, strict=True):
        cells = lines[index].split("|")
        at = sources.labels(name) + 1
        filled = [column for column in range(at, len(cells) - 1) if _NUMBER.search(cells[column])]
        values = _by_cell(row, [len(_NUMBER.findall(cells[column])) for column in filled], name)
        for column, numbers in zip(filled, values, strict=True):
            cells[column], differences = _cell_text(cells[column], numbers)
            changes += [f"table {name}, {cells[1].strip()}: {change}" for change in differences]
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
        raise UserError(
            f"computed: table {name} has {len(row)} numbers in a row; the text has {sum(counts)}"
        )
    return taken


def _cell_text(cell: str, numbers: Sequence[float | None]) -> tuple[str, list[str]]:
    changes, waiting = [], iter(numbers)

    def today(match: re.Match[str]) -> str:
        value = next(waiting, None)
        if value is None:
            return match[0]
        now = _shaped(value, match[0])
        if now != match[0]:
            changes.append(f"is {now}; the text has {match[0]}")
        return now

    return _NUMBER.sub(today, cell), changes


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
