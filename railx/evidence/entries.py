"""Entries of claim files, joined with the published rows that they judge.

An entry makes a claim of each published row that ``published`` selects, once for each
mapping of its list ``each``. Its texts and its query are Jinja templates over

* the columns of the row, ``number`` and the name ``column`` of the one that holds it,
* the values of the mapping and those in ``with``, which may be templates themselves,
* the columns that ``lookups`` join to any of these by its value.

``query`` is a SELECT, or the name of one in ``queries``: the shape that many claims
share. What a template puts into a query can be no more than a part of a name, a literal
or a number. ``product`` gives the cross product of lists, for plans of a query; the
filter ``rounded`` writes a number with so many decimals.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import Annotated, Any

from jinja2 import Environment, StrictUndefined, TemplateError, Undefined
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from railx.evidence.published import Published, PublishedNumbers
from railx.settings import NotEmpty, SettingsError, load

#: What a claim says of the number that it is compared with.
_REFERENCE = ("file", "id", "column")
#: A value in a query: no quote, bracket, semicolon, line break or comment.
_BINDABLE = re.compile(r"(?!.*--)[\w .:>-]*", re.ASCII)


@dataclass(frozen=True)
class Definitions:
    """What the entries of a paper share."""

    queries: Mapping[str, str]
    """A SELECT by its name."""
    lookups: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """By the name of a column and its value: the columns joined to it."""


@dataclass(frozen=True)
class JudgedRow:
    """A claim on a published row: its settings as plain data and the published number.

    ``shape`` is the name of its query, empty where the entry has a query of its own.
    """

    settings: dict[str, Any]
    published: Published
    shape: str


@dataclass(frozen=True)
class RowSelection:
    """The rows of a published table that an entry judges, and the number in each."""

    file: Annotated[str, NotEmpty()]
    """A CSV file of resources/published."""
    id: str | None = None
    """The id of the only row; null: all rows that ``where`` selects."""
    where: dict[str, Any] = field(default_factory=dict)
    """What a row has in these columns: a value, or one of a list."""
    where_not: dict[str, Any] = field(default_factory=dict)
    """What a row does not have in all of these columns together."""
    column: str | tuple[str, ...] = "value"
    """The column that holds the number; a list: a claim for each of them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that hold a number."""
        return (self.column,) if isinstance(self.column, str) else self.column

    def rows(self, numbers: PublishedNumbers) -> list[dict[str, str]]:
        """The selected rows in the order of the file; at least one.

        Raises SettingsError naming the key that selects none.
        """
        table = numbers.rows(self.file)
        for name, columns in (("where", self.where), ("where_not", self.where_not)):
            for column in columns:
                if column not in table[0]:
                    got = f"{self.file} has no such column; allowed: {', '.join(table[0])}"
                    raise SettingsError(f"{name}.{column}", got)
        if self.id is not None:
            return [numbers.row(self.file, self.id)]
        selected = [
            row
            for row in table
            if _matches(row, self.where) and not (self.where_not and _matches(row, self.where_not))
        ]
        if not selected:
            raise SettingsError("where", f"selects no row of {self.file}; allowed: at least one")
        return selected


def expand(
    entry: Mapping[str, Any],
    definitions: Definitions,
    numbers: PublishedNumbers,
    keys: Collection[str],
) -> Iterator[JudgedRow]:
    """The claims of an entry, row by row.

    ``keys`` are those of a claim; a mapping of ``each`` may hold some, which take the
    place of the entry's. Raises SettingsError with the key.
    """
    mappings = Annotated[tuple[dict[str, Any], ...], NotEmpty()]
    cases: tuple[dict[str, Any], ...] = load(mappings, entry.get("each", [{}]), "each")
    common: dict[str, Any] = load(dict[str, Any], entry.get("with", {}), "with")
    for case in cases:
        claim = {key: value for key, value in entry.items() if key not in ("each", "with")}
        claim |= {key: value for key, value in case.items() if key in keys}
        values = {key: value for key, value in case.items() if key not in keys}
        values |= {key: value for key, value in common.items() if key not in values}
        shape, claim["query"] = _shape(claim.get("query"), definitions.queries)
        _check_used(values, claim, definitions)
        reference = _rendered(claim.pop("published", None), values, "published")
        try:
            judged = _numbers(reference, numbers, may_be_unknown=claim["query"] is None)
        except SettingsError as error:
            raise error.under("published") from None
        for row, published in judged:
            number = {"number": row[published.column], "column": published.column}
            try:
                columns = _joined({**row, **number, **values}, definitions.lookups)
                settings = {
                    key: _rendered(value, columns, key, in_sql=key == "query")
                    for key, value in claim.items()
                }
            except SettingsError as error:
                where = f"{error.message} (row {published.id} of {published.file})"
                raise SettingsError(error.key, where) from None
            settings["published"] = {key: getattr(published, key) for key in _REFERENCE}
            yield JudgedRow(settings, published, shape)


def _numbers(
    reference: Any, numbers: PublishedNumbers, *, may_be_unknown: bool
) -> list[tuple[dict[str, str], Published]]:
    """The selected rows, each with the number in each selected column."""
    selection: RowSelection = load(RowSelection, reference)
    return [
        (row, numbers.number(selection.file, row, column, may_be_unknown=may_be_unknown))
        for row in selection.rows(numbers)
        for column in selection.columns
    ]


def _matches(row: Mapping[str, str], values: Mapping[str, Any]) -> bool:
    return all(
        row[column] in map(str, value if isinstance(value, list) else [value])
        for column, value in values.items()
    )


def _shape(query: Any, queries: Mapping[str, str]) -> tuple[str, Any]:
    """The name of a query and its text; a SELECT, which is no single word, has none."""
    if not isinstance(query, str) or len(query.split()) != 1:
        return "", query
    if query not in queries:
        allowed = f"one SELECT, or one of queries: {', '.join(queries)}"
        raise SettingsError("query", f"got {query!r}; allowed: {allowed}")
    return query, queries[query]


def _joined(
    values: Mapping[str, Any], lookups: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """The columns of a row and those that lookups join to them.

    Where a lookup lacks the value, a template that uses one of its columns is refused.
    """
    columns: dict[str, Any] = {}
    lacking: dict[str, Undefined] = {}
    waiting = list(values.items())
    while waiting:
        name, value = waiting.pop(0)
        if name in columns:
            raise SettingsError(f"lookups.{name}", "is a column already; allowed: another name")
        columns[name] = _rendered(value, columns, name)
        lookup = lookups.get(name)
        if lookup is None:
            continue
        if str(columns[name]) in lookup:
            waiting = [*lookup[str(columns[name])].items(), *waiting]
        else:
            hint = f"got {columns[name]!r} for {name}; allowed: {', '.join(lookup)}"
            names = itertools.chain.from_iterable(lookup.values())
            lacking |= dict.fromkeys(names, StrictUndefined(hint))
    return {**lacking, **columns}


def _check_used(
    values: Mapping[str, Any], claim: Mapping[str, Any], definitions: Definitions
) -> None:
    """Refuse a value that nothing uses: most often a key that is mistyped."""
    unused = values.keys() - definitions.lookups.keys()
    # Most values are used by the claim itself; lookups are long.
    for texts in ([claim, values], list(definitions.lookups.values())):
        unused = unused.difference(*map(_names, _strings(texts))) if unused else unused
    for name in values:
        if name in unused:
            allowed = "a key of a claim, or a name that its texts use"
            raise SettingsError(name, f"unknown key; allowed: {allowed}")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _rendered(
    value: Any, columns: Mapping[str, Any], key: str = "", *, in_sql: bool = False
) -> Any:
    """``value`` with all templates in it filled in."""
    if isinstance(value, Mapping):
        return {name: _rendered(item, columns, key) for name, item in value.items()}
    if isinstance(value, list):
        return [_rendered(item, columns, key) for item in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    try:
        return _template(value, in_sql).render(columns)
    except (TemplateError, ArithmeticError, TypeError, ValueError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        names = ", ".join(name for name in columns if not isinstance(columns[name], Undefined))
        allowed = "" if "allowed: " in message else f"; allowed: a template over {names}"
        raise SettingsError(key, message + allowed) from None


def _bound(value: Any) -> Any:
    """A value that goes into a query.

    Raises ValueError for text that could be more than a part of a name or literal.
    """
    if not isinstance(value, Undefined) and not _BINDABLE.fullmatch(str(value)):
        raise ValueError(f"got {value!r}; allowed: letters, digits, spaces and _ . : - >")
    return value


def _rounded(value: Any, digits: int = 0) -> str:
    """A number with so many decimals, halves rounded up, and thousands separated."""
    return f"{Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):,}"


def _environment(**options: Any) -> Environment:
    return ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options
    )


_TEXTS, _QUERIES = _environment(), _environment(finalize=_bound)
_TEXTS.filters["rounded"] = _rounded
_QUERIES.globals["product"] = itertools.product


@cache
def _template(text: str, in_sql: bool) -> Any:
    return (_QUERIES if in_sql else _TEXTS).from_string(text)


@cache
def _names(text: str) -> frozenset[str]:
    """The names that a template uses; none where it is no template."""
    try:
        return frozenset(find_undeclared_variables(_TEXTS.parse(text)) if "{" in text else ())
    except TemplateError:
        return frozenset()
