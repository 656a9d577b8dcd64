"""What stages write: files, JSON objects, and tables with their columns.

Columns are names with their Arrow types. This module imports no pyarrow, so that a dry
run starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from railx.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns in their order, each with the word for its Arrow type.
Columns = Mapping[str, str]

#: Words for the Arrow types of most columns; others are by pyarrow's own names.
_WORDS = {"text": "string", "integer": "int64", "real": "double", "flag": "bool"}


def columns(declared: str) -> dict[str, str]:
    """Columns as a type and the names that have it, such as ``text a b, real c``.

    Types are ``text``, ``integer``, ``real``, ``flag`` (yes or no), pyarrow's own, and
    ``category``: few words that repeat, stored as a dictionary.
    """
    listed: dict[str, str] = {}
    for part in declared.split(","):
        word, *names = part.split()
        listed |= dict.fromkeys(names, _WORDS.get(word, word))
    return listed


def arrow_schema(columns: Columns) -> pa.Schema:
    """The Arrow schema of declared columns."""
    import pyarrow as pa

    kinds = {"category": pa.dictionary(pa.int8(), pa.string())}
    return pa.schema(
        [(name, kinds.get(word) or pa.type_for_alias(word)) for name, word in columns.items()]
    )


def typed_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as an Arrow array of a type; pyarrow's ArrowInvalid or ArrowTypeError
    where one is of another type.
    """
    import pyarrow as pa

    # Told the type at once, pyarrow cuts 1.5 to 1 without a word; cast to it, it reads
    # words as numbers.
    converted, inferred = pa.array(values, kind), pa.array(values)
    # A cast loads pyarrow.compute, a tenth of a second: most values need none.
    if inferred.type == kind:
        return inferred
    return converted if pa.types.is_null(inferred.type) else inferred.cast(kind)


@dataclass(frozen=True)
class Output:
    """A file that a stage writes.

    Its path is below the stage's folder, with the item in braces; where it is empty,
    the file is in the folder of the item and called as the output, with the ending of
    its kind. ``claims``: whether verdicts and ``railx sql`` may read it.
    """

    path: str = field(default="", kw_only=True)
    claims: bool = field(default=True, kw_only=True)
    ending: ClassVar[str] = ""


@dataclass(frozen=True)
class Json(Output):
    """A JSON object.

    ``keys`` are those that claims may name, as columns with their types: nested keys
    joined by underscores. They are checked before any job; what is not declared is not.
    """

    ending: ClassVar[str] = ".json"
    keys: Columns = field(default_factory=dict, kw_only=True)

    def check(self, path: Path) -> None:
        """ValueError where the object in ``path`` lacks a declared key."""
        if not self.keys:
            return
        from railx.io import leaves, read_json

        present = {key for key, _ in leaves(read_json(path))}
        missing = [key for key in self.keys if key not in present]
        if missing:
            raise ValueError(f"{path}: lacks the declared keys {', '.join(missing)}")


@dataclass(frozen=True)
class File(Output):
    """A file that only its own readers understand."""

    path: str
    claims: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Table(Output):
    """A Parquet table and its columns, a function where only a library knows them.

    A text of columns is read by :func:`columns`. ``optional`` columns follow the others
    in the tables that have them, all or none. ``printed`` is the title under which the
    report prints the table, with the item in braces; empty: it does not.
    """

    ending: ClassVar[str] = ".parquet"
    columns: str | Columns | Callable[[], Columns]
    optional: Columns = field(default_factory=dict, kw_only=True)
    printed: str = field(default="", kw_only=True)

    def declared(self) -> Columns:
        """The columns that the table always has."""
        if isinstance(self.columns, str):
            return columns(self.columns)
        return self.columns() if callable(self.columns) else self.columns

    def check(self, path: Path) -> None:
        """ValueError where the table in ``path`` has other columns than declared."""
        import pyarrow.parquet as pq

        stored = pq.read_schema(path).remove_metadata()
        declared = self.declared()
        schemas = [arrow_schema(declared), arrow_schema({**declared, **self.optional})]
        if not any(stored.equals(schema) for schema in schemas):
            expected = {(column.name, str(column.type)) for column in schemas[0]}
            got = {(column.name, str(column.type)) for column in stored}
            differing = sorted({name for name, _ in expected ^ got}) or ["their order"]
            raise UserError(
                f"{path}: columns differ from the declared ones: {', '.join(differing)}; allowed:"
                f" {', '.join(f'{column.name} ({column.type})' for column in schemas[1])}"
            )
