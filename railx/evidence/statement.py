"""What a query may be: exactly one SELECT that reads the run's tables and nothing else.

The parsed statement is looked at before it runs. It may name tables, columns and
functions whose value depends on their arguments alone; it may not change a table, call
a table function (which could open a file) or ask for the time, chance or settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import duckdb

from railx.evidence.errors import ClaimError

_ALLOWED = "allowed: one SELECT over the run's tables"
#: Table functions that make rows from their arguments alone.
_ROW_MAKERS = frozenset({"generate_series", "range", "unnest"})
#: DuckDB's macros whose value depends on their arguments alone, beside those on lists.
_PURE_MACROS = frozenset(
    {"date_add", "fdiv", "fmod", "geomean", "geometric_mean", "if", "nullif", "split_part"}
    | {"lowest", "wavg", "weighted_avg"}
)
_QUERY_NODES = frozenset({"CTE_NODE", "RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"})
#: Words that read as columns and are functions of the moment or the session.
_MOMENTS = frozenset(
    {"current_catalog", "current_date", "current_role", "current_schema", "current_time"}
    | {"current_timestamp", "current_user", "localtime", "localtimestamp", "session_user", "user"}
)


def tables_of(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[str, ...]:
    """The tables that a query names, with dots, in the order of the text.

    Raises ClaimError (one line) for all that is not one SELECT over tables.
    """
    _only_select(connection, sql)
    parsed = json.loads(connection.execute("select json_serialize_sql(?)", [sql]).fetchall()[0][0])
    if parsed.get("error", True):
        raise ClaimError(f"query: {first_paragraph(parsed.get('error_message', 'cannot be read'))}")
    nodes = list(_nodes(parsed["statements"]))
    for node in nodes:
        _check_node(node)
    return _tables(nodes)


def first_paragraph(text: Any) -> str:
    """The first paragraph of a message as one line."""
    return " ".join(str(text).split("\n\n")[0].split())


def _only_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise ClaimError(f"query: got {first_paragraph(error)}; {_ALLOWED}") from None
    if len(statements) != 1:
        raise ClaimError(f"query: got {len(statements)} statements; {_ALLOWED}")
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        raise ClaimError(f"query: got a statement of type {kind.name}; {_ALLOWED}")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """The mappings of a tree, each before those in it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += reversed(node.values())
        elif isinstance(node, list):
            waiting += reversed(node)


@cache
def _pure_functions() -> frozenset[str]:
    """DuckDB's functions that always give the same value for the same arguments."""
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute(
            "select function_name, bool_and(coalesce(stability = 'CONSISTENT', false))"
            " from duckdb_functions() group by function_name"
        ).fetchall()
    return _PURE_MACROS | {
        name for name, pure in rows if pure or name.startswith(("array_", "list_"))
    }


def _check_node(node: dict[str, Any]) -> None:
    kind = str(node.get("type", ""))
    if kind.endswith("_NODE") and kind not in _QUERY_NODES:
        raise ClaimError(f"query: got {kind.removesuffix('_QUERY_NODE')} inside; {_ALLOWED}")
    if kind == "SHOW_REF":
        raise ClaimError(f"query: got DESCRIBE, SHOW or SUMMARIZE; {_ALLOWED}")
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in _ROW_MAKERS:
            makers = ", ".join(sorted(_ROW_MAKERS))
            raise ClaimError(f"query: got the table function {name}; {_ALLOWED}, and {makers}")
    elif "function_name" in node:
        name = str(node["function_name"]).lower()
        if name not in _pure_functions() and name not in _ROW_MAKERS:
            allowed = "functions of their arguments alone"
            raise ClaimError(f"query: got the function {name}; allowed: {allowed}")
    if kind == "COLUMN_REF":
        names = [str(name).lower() for name in node.get("column_names", ())]
        if len(names) == 1 and names[0] in _MOMENTS:
            raise ClaimError(f"query: got {names[0]}; allowed: columns of the run's tables")


def _tables(nodes: list[dict[str, Any]]) -> tuple[str, ...]:
    """The tables named, without the names that the query itself gives (WITH).

    A name of one part that the query does not give would be a file or one of DuckDB's
    own tables.
    """
    aliases = {
        str(entry["key"]).lower()
        for node in nodes
        if isinstance(node.get("cte_map"), dict)
        for entry in node["cte_map"].get("map", ())
    }
    aliases |= {str(node["cte_name"]).lower() for node in nodes if "cte_name" in node}
    named = []
    for node in nodes:
        if node.get("type") != "BASE_TABLE":
            continue
        keys = ("catalog_name", "schema_name", "table_name")
        parts = [str(node[key]).lower() for key in keys if node.get(key)]
        if len(parts) > 1:
            named.append(".".join(parts))
        elif parts[0] not in aliases:
            allowed = "STAGE.TABLE or STAGE.ITEM.TABLE, as economics.summary"
            raise ClaimError(f"query: no table {parts[0]}; allowed: {allowed}")
    return tuple(dict.fromkeys(named))
