"""The tables of a run as a database in memory, for queries that can touch nothing else.

A table's name is its path below the results folder without the ending, dots for
slashes: ``network/railx_hyperx/bounds.parquet`` is ``network.railx_hyperx.bounds`` and
``economics/summary.parquet`` is ``economics.summary``. Without an item it is the tables
of all items of the stage, one below the other, with the item in the column ``item``:
``network.bounds``. A JSON object is a table of one row: nested keys are joined by
underscores, lists stay lists (``unnest`` makes rows of them). Tables are read by
pyarrow when a query names them; the database itself can open no file, and its
configuration is locked.

A column ``fidelity`` is ordered as ``railx.io.FIDELITIES``, so that comparing and
``min`` follow that order. ``lowest(fidelity)`` is the least faithful of a group and
``lowest(a.fidelity, b.fidelity)`` of two, null where any of them is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import duckdb
import pyarrow as pa

from railx.errors import UserError
from railx.evidence.errors import ClaimError, NotAvailable
from railx.evidence.statement import first_paragraph, tables_of
from railx.io import FIDELITIES, leaves, read_json, read_table

_ENDINGS = (".parquet", ".json")
_FIDELITY = f"enum ({', '.join(repr(name) for name in FIDELITIES)})"
_MACROS = (
    "create macro lowest(fidelity) as"
    " (case when count(*) = count(fidelity) then min(fidelity) end),"
    " (first, second) as"
    " (case when first is not null and second is not null then least(first, second) end)"
)
#: Nothing outside the tables can be reached, and no query can change that again.
_LOCKS = (
    "set threads = 1",
    "set memory_limit = '4GB'",
    "set temp_directory = ''",
    "set autoinstall_known_extensions = false",
    "set autoload_known_extensions = false",
    "set allow_community_extensions = false",
    "set python_enable_replacements = false",
    "set python_scan_all_frames = false",
    "set enable_external_access = false",
    "set lock_configuration = true",
)
#: DuckDB's types of the columns that stages declare.
_SQL_TYPES = {
    "binary": "blob",
    "bool": "bool",
    "double": "double",
    "int32": "int4",
    "int64": "int8",
    "string": "text",
}
_UNKNOWN_COLUMN = re.compile(
    r'Referenced column "(?P<bare>[^"]*)" not found'
    r'|does not have a column named "(?P<dotted>[^"]*)"'
)


def table_name(path: str | PurePosixPath) -> str:
    """The name in SQL of a result file, given by its path below the results folder.

    Names are in lower case: SQL does not tell upper from lower.

    Raises UserError for a path that is no table of a stage.
    """
    file = PurePosixPath(path)
    parts = file.with_suffix("").parts
    if file.is_absolute() or ".." in parts or file.suffix not in _ENDINGS:
        allowed = "a .parquet or .json path below the results folder"
        raise UserError(f"table: got {str(path)!r}; allowed: {allowed}")
    if len(parts) not in (2, 3):
        allowed = "STAGE/TABLE or STAGE/ITEM/TABLE with its ending"
        raise UserError(f"table: got {str(path)!r}; allowed: {allowed}")
    return ".".join(parts).lower()


class Database:
    """Tables of one run, or of none: a table is a file or, where it is to be empty, its
    schema.

    Made by :func:`open_database` and :func:`open_schemas`.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, paths: Mapping[str, Path | pa.Schema]
    ) -> None:
        self._connection = connection
        self._paths = dict(paths)
        self._columns: dict[str, tuple[str, ...]] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that can be asked, sorted."""
        return tuple(sorted(self._paths))

    def named(self, sql: str) -> tuple[str, ...]:
        """The tables that a query names, whether they are there or not; those of every
        item for a name without one.

        Raises ClaimError for what is not one SELECT.
        """
        return tuple(
            dict.fromkeys(
                table
                for name in tables_of(self._connection, sql)
                for table in self._items(name) or (name,)
            )
        )

    def query(self, sql: str) -> pa.Table:
        """The rows of a query, which must be exactly one SELECT.

        Raises NotAvailable where a table that it names is not among the results, and
        ClaimError (one line) for everything else that is wrong with it.
        """
        named = self._loaded(sql)
        self._connection.execute("begin transaction read only")
        try:
            return self._connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise ClaimError(f"query: {self._words(error, named)}") from None
        finally:
            self._connection.execute("rollback")

    def columns(self, sql: str, tables: Sequence[str] | None = None) -> tuple[str, ...]:
        """The columns that a query gives, without running it.

        ``tables`` are those that it names, if they are known.
        Raises what :meth:`query` raises.
        """
        named = self._loaded(sql, tables)
        try:
            return tuple(self._connection.sql(sql).columns)
        except duckdb.Error as error:
            raise ClaimError(f"query: {self._words(error, named)}") from None

    def _loaded(self, sql: str, tables: Sequence[str] | None = None) -> Sequence[str]:
        """The tables that a query names, or those given, copied into the database."""
        named = tables_of(self._connection, sql) if tables is None else tables
        for name in named:
            self._load(name)
        return named

    def _items(self, name: str) -> tuple[str, ...]:
        """The tables of the items of a stage that ``STAGE.TABLE`` stands for."""
        stage, _, table = name.partition(".")
        if name in self._paths:
            return ()
        return tuple(
            item
            for item in self.tables
            if _is_item(item) and item.startswith(f"{stage}.") and item.endswith(f".{table}")
        )

    def _load_items(self, name: str, items: Sequence[str]) -> None:
        """Copy the tables of all items of a stage into one."""
        for item in items:
            self._load(item)
        has_item = any("item" in self._columns[item] for item in items)
        rows = (
            f"select {'' if has_item else _text(item.split('.')[1]) + ' as item, '}*"
            f" from {_quoted(item)}"
            for item in items
        )
        try:
            contents = " union all by name ".join(rows)
            self._connection.execute(f"create table {_quoted(name)} as {contents}")
        except duckdb.Error as error:
            raise ClaimError(f"table: {name} is no table ({first_paragraph(error)})") from None
        described = self._connection.execute(f"describe {_quoted(name)}").fetchall()
        self._columns[name] = tuple(column for column, *_ in described)

    def _load(self, name: str) -> None:
        """Copy a table into the database, once."""
        if name in self._columns:
            return
        if items := self._items(name):
            self._load_items(name, items)
            return
        if name not in self._paths:
            same_stage = f"{name.split('.')[0]}."
            near = tuple(table for table in self.tables if table.startswith(same_stage))
            reason = f"{name} is not among the results of this experiment"
            raise NotAvailable(reason, there_is=near or self.tables)
        source = self._paths[name]
        if isinstance(source, pa.Schema):
            # A tenth of the time that DuckDB takes to look into an empty table.
            columns = ", ".join(f"{_quoted(field.name)} {_sql_type(field)}" for field in source)
            self._connection.execute(f"create table {_quoted(name)} ({columns})")
            self._columns[name] = tuple(source.names)
            return
        table = _read(source, name)
        self._connection.register("incoming", table)
        chosen = "*"
        if "fidelity" in table.column_names:
            chosen = f"* replace (fidelity::{_FIDELITY} as fidelity)"
        self._connection.execute(f"create table {_quoted(name)} as select {chosen} from incoming")
        self._connection.unregister("incoming")
        self._columns[name] = tuple(table.column_names)

    def _words(self, error: duckdb.Error, named: Iterable[str]) -> str:
        unknown = _UNKNOWN_COLUMN.search(str(error))
        if not unknown:
            return first_paragraph(error)
        columns = dict.fromkeys(column for name in named for column in self._columns[name])
        return f"no column {unknown['bare'] or unknown['dotted']}; allowed: {', '.join(columns)}"


@contextmanager
def open_database(
    results_dir: str | Path, files: Iterable[str | PurePosixPath]
) -> Iterator[Database]:
    """The tables of a run as a database, for the length of a ``with`` block.

    ``files`` names those that count, by their paths below ``results_dir``; one that was
    not made is no table. Raises UserError for a path that is no table of a stage and
    for two paths of one name.
    """
    named: dict[str, Path] = {}
    for file in files:
        name = table_name(file)
        if name in named:
            raise UserError(f"table: {name} is the name of two files; allowed: one")
        named[name] = Path(results_dir) / file
    paths = {name: path for name, path in named.items() if path.is_file()}
    with open_schemas({}, paths) as database:
        yield database


@contextmanager
def open_schemas(
    schemas: Mapping[str, pa.Schema], paths: Mapping[str, Path] | None = None
) -> Iterator[Database]:
    """Empty tables by name as a database, and the tables in the files of ``paths``."""
    sources: dict[str, Path | pa.Schema] = {**schemas, **(paths or {})}
    connection = duckdb.connect(":memory:")
    try:
        for stage in sorted({name.split(".")[0] for name in sources}):
            connection.execute(f"attach ':memory:' as {_quoted(stage)}")
        for schema in sorted({".".join(name.split(".")[:2]) for name in sources if _is_item(name)}):
            connection.execute(f"create schema {_quoted(schema)}")
        connection.execute(_MACROS)
        for lock in _LOCKS:
            connection.execute(lock)
        yield Database(connection, sources)
    finally:
        connection.close()


def _is_item(name: str) -> bool:
    return name.count(".") == 2


def _sql_type(field: pa.Field) -> str:
    """DuckDB's type of a declared column; a dictionary is one of words."""
    if field.name == "fidelity":
        return _FIDELITY
    return "text" if pa.types.is_dictionary(field.type) else _SQL_TYPES[str(field.type)]


def _quoted(name: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _read(path: Path, name: str) -> pa.Table:
    table = read_table(path) if path.suffix == ".parquet" else _single_row(path, name)
    if "fidelity" in table.column_names:
        for value in table.column("fidelity").unique().to_pylist():
            if value is not None and value not in FIDELITIES:
                allowed = ", ".join(FIDELITIES)
                raise ClaimError(f"fidelity: {name} has {value!r}; allowed: {allowed}")
    return table


def _single_row(path: Path, name: str) -> pa.Table:
    value = read_json(path)
    if not isinstance(value, dict):
        allowed = "an object whose keys can be named"
        raise ClaimError(f"table: {name} holds no JSON object; allowed: {allowed}")
    row: dict[str, Any] = {}
    for key, item in leaves(value):
        if key in row:
            raise ClaimError(f"table: {name} has two keys {key}; allowed: keys that differ")
        row[key] = item
    try:
        return pa.table({key: [item] for key, item in row.items()})
    except pa.ArrowInvalid as error:
        raise ClaimError(f"table: {name} is no table ({first_paragraph(error)})") from None
