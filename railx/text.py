"""Values and tables as text for a terminal, and YAML that users wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def in_digits(value: Any) -> str:
    """A value of a table: numbers with six digits, nested values as JSON."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


@lru_cache(maxsize=1)
def yaml_loader() -> Any:
    """The safe loader of YAML from users: RecursionError where it is nested too deeply.

    libyaml reads the text. Its own composer would overflow the stack of the process.
    """
    import yaml

    if not hasattr(yaml, "CSafeLoader"):
        return yaml.SafeLoader
    # Before the parser, whose own composer it takes the place of.
    bases = (yaml.composer.Composer, *yaml.CSafeLoader.__bases__)

    def begin(self: Any, stream: Any) -> None:
        yaml.CSafeLoader.__init__(self, stream)
        yaml.composer.Composer.__init__(self)

    return type("Loader", bases, {"__init__": begin})
