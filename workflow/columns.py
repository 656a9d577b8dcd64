"""Columns of tables as stages declare them: names with their Arrow types.

This module imports no pyarrow, so that a dry run starts fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Columns",
    "arrow_schema",
    "category",
    "flag",
    "integer",
    "real",
    "text",
    "typed",
    "typed_array",
]

#: Columns in their order, each with the word for its Arrow type.
Columns = Mapping[str, str]


def typed(word: str, *names: str) -> dict[str, str]:
    """Columns of one Arrow type, by pyarrow's word for it."""
    return dict.fromkeys(names, word)


def text(*names: str) -> dict[str, str]:
    """Columns of words."""
    return typed("string", *names)


def integer(*names: str) -> dict[str, str]:
    """Columns of whole numbers."""
    return typed("int64", *names)


def real(*names: str) -> dict[str, str]:
    """Columns of real numbers."""
    return typed("double", *names)


def flag(*names: str) -> dict[str, str]:
    """Columns of yes and no."""
    return typed("bool", *names)


def category(*names: str) -> dict[str, str]:
    """Columns of few words that repeat, stored as a dictionary."""
    return typed("category", *names)


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
