"""Real text as documents, each a string of bytes.

The running interpreter's own sources and a user's folder of files.
"""

from __future__ import annotations

import itertools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

__all__ = ["folder_documents", "folder_files", "split_definitions", "stdlib_documents"]

# Third-party packages are no part of the interpreter, and its tests are left out
# because many distributions do not ship them.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
# A top-level definition starts at its first decorator, or at def or class where it has
# none.
_DEFINITION = re.compile(rb"(?m)^(?:@[^\n]*\n(?:[ \t@)#][^\n]*\n)*)?(?:async def |def |class )")


def stdlib_documents(unit: Literal["file", "definition"]) -> list[bytes]:
    """The interpreter's standard-library Python sources in the order of their paths.

    ``unit`` "file": a document is a file; "definition": a file is cut at its top-level
    functions and classes, which gives many short documents and a long tail. Raises
    ValueError where the interpreter has no sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _LEFT_OUT & set(path.relative_to(root).parts)
    ]
    documents = [document for path in files for document in _cut(path.read_bytes(), unit)]
    if not documents:
        raise ValueError(
            f"{root}: no Python sources of the standard library; allowed: an interpreter installed"
            " with them"
        )
    return documents


def folder_documents(folder: str | Path, pattern: str) -> list[bytes]:
    """The files below ``folder`` whose path matches ``pattern``, sorted by path.

    A glob, ``**`` for any depth. Empty files hold no sequence and are left out. Raises
    ValueError where the folder is missing or nothing remains.
    """
    return [text for path in folder_files(folder, pattern) if (text := path.read_bytes())]


def folder_files(folder: str | Path, pattern: str) -> list[Path]:
    """The files with text that :func:`folder_documents` reads, sorted by path.

    Raises what it raises, without reading any.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{folder}: no such folder; allowed: a folder of text files")
    try:
        files = sorted(path for path in root.glob(pattern) if path.is_file())
    except NotImplementedError:
        raise ValueError(
            f"{folder}: the pattern {pattern} begins at the root; allowed: one below the folder"
        ) from None
    if not files:
        raise ValueError(f"{folder}: no file matches {pattern}; allowed: at least one")
    filled = [path for path in files if path.stat().st_size]
    if not filled:
        raise ValueError(
            f"{folder}: all {len(files)} files that match {pattern} are empty; allowed: at least"
            " one with text"
        )
    return filled


def split_definitions(source: bytes) -> list[bytes]:
    """A Python source cut before each top-level function and class.

    Decorators are included; joined again it is unchanged.
    """
    starts = [match.start() for match in _DEFINITION.finditer(source)]
    bounds = [0, *(start for start in starts if start > 0), len(source)]
    return [source[start:stop] for start, stop in itertools.pairwise(bounds) if stop > start]


def _cut(source: bytes, unit: Literal["file", "definition"]) -> Iterator[bytes]:
    if unit == "definition":
        yield from split_definitions(source)
    elif source:
        yield source
