"""What can be wrong with the query of a claim before there is any result."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from railx.evidence.claims import Claim
from railx.evidence.database import open_schemas
from railx.evidence.errors import ClaimError
from railx.evidence.judge import check_columns

_TEXT = re.compile(r"'(?:[^']|'')*'")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
#: What can be the table of an item, as in network.torus_2d.bounds.
_ITEM_TABLE = re.compile(r"\b(\w+)\.(\w+)\.(\w+)")
#: A column by its number, as in ``order by 2``.
_NUMBERED_COLUMN = re.compile(r"\bby\s+\d", re.IGNORECASE)


def check_queries(claims: Sequence[Claim], declared: Mapping[str, pa.Schema | None]) -> None:
    """Check every query against the tables that a run could have.

    ``declared`` holds their schemas by name, with a star where the name of an item
    stands (``network.*.bounds``). A schema of None is not known beforehand: of a query
    that names such a table only the tables are checked. Raises :class:`ClaimError`, one
    line naming file, claim and what is allowed.
    """
    asked = [
        (claim, _shape(claim.settings.query, declared))
        for claim in claims
        if claim.settings.query is not None
    ]
    named: dict[str, tuple[str, ...]] = {}
    schemas: dict[str, pa.Schema | None] = {}
    with open_schemas({}) as database:
        for claim, shape in asked:
            if shape in named:
                continue
            try:
                tables = named[shape] = database.named(claim.settings.query or "")
                schemas |= {name: _declared(name, declared) for name in tables}
            except ClaimError as error:
                raise _of(claim, error) from None
    declared_schemas = {name: schema for name, schema in schemas.items() if schema is not None}
    columns: dict[str, tuple[str, ...]] = {}
    with open_schemas(declared_schemas) as database:
        for claim, shape in asked:
            if not declared_schemas.keys() >= set(named[shape]):
                continue
            try:
                if shape not in columns:
                    columns[shape] = database.columns(claim.settings.query or "", named[shape])
                check_columns(claim, columns[shape])
            except ClaimError as error:
                raise _of(claim, error) from None


def _shape(query: str, declared: Collection[str]) -> str:
    """A query without its texts and numbers, items numbered in the order of the text:
    which they are changes neither columns nor what is declared.

    In a query with comments or quoted names a quotation mark may stand for itself.
    """
    if any(mark in query for mark in ("--", "/*", '"', "$")):
        return query
    items: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        stage, item, table = match.groups()
        if f"{stage}.*.{table}" not in declared:
            return match[0]
        return f"{stage}.{items.setdefault(item, len(items))}.{table}"

    shape = _ITEM_TABLE.sub(numbered, _TEXT.sub("''", query))
    return shape if _NUMBERED_COLUMN.search(shape) else _NUMBER.sub("0", shape)


def _declared(name: str, declared: Mapping[str, pa.Schema | None]) -> pa.Schema | None:
    parts = name.split(".")
    for pattern, schema in declared.items():
        declared_parts = pattern.split(".")
        if len(parts) == len(declared_parts) and all(
            allowed in ("*", part) for allowed, part in zip(declared_parts, parts, strict=True)
        ):
            return schema
    near = [pattern for pattern in declared if pattern.split(".")[0] == parts[0]]
    shown = ", ".join(pattern.replace("*", "NAME") for pattern in near or declared)
    raise ClaimError(f"query: no stage makes a table {name}; allowed: {shown}")


def _of(claim: Claim, error: ClaimError) -> ClaimError:
    return ClaimError(f"{claim.file}: claim {claim.id}: {error}")
