"""What settings classes say of their fields: strings below each, from the source."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from pathlib import Path


def class_doc(cls: type) -> str:
    """The docstring of a class as one paragraph of plain text after the other.

    That of the function ``described_by`` where the class has one instead of a source.
    """
    described = getattr(cls, "described_by", cls)
    text = _class_docs(cls.__module__).get((cls.__qualname__, None), described.__doc__)
    return _plain(inspect.cleandoc(text or ""))


def field_doc(cls: type, name: str) -> str:
    """The string below a field, of the class or the nearest base; else empty."""
    for base in cls.__mro__:
        text = _class_docs(base.__module__).get((base.__qualname__, name))
        if text is not None:
            return _plain(inspect.cleandoc(text))
    return ""


def _plain(text: str) -> str:
    """Paragraphs in one line each, without the marks of reStructuredText."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(paragraphs).replace("``", "`").replace(":class:", "")


@functools.cache
def _class_docs(module: str) -> dict[tuple[str, str | None], str]:
    """The texts of a module by class and field (None: of the class itself)."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:
        return {}
    docs: dict[tuple[str, str | None], str] = {}
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef):
            continue
        docs[node.name, None] = ast.get_docstring(node) or ""
        for statement, below in zip(node.body, node.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = _string(below)
                if text is not None:
                    docs[node.name, statement.target.id] = text
    return docs


def _string(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else None
    return None
