"""Values kept in files for the next run, each named by all that it depends on.

So it never goes out of date. What is in a file is checked against its own digest, so a
damaged file counts as none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")

#: Files of a folder by default; the oldest goes first.
LIMIT = 64


def read_cached(folder: Path, name: str) -> Any:
    """The value of a name; None where there is none that can be trusted."""
    try:
        digest, _, text = (folder / f"{name}.json").read_bytes().partition(b"\n")
    except OSError:
        return None
    return json.loads(text) if hashlib.sha256(text).hexdigest().encode() == digest else None


def write_cached(folder: Path, name: str, value: Any, limit: int | None = None) -> Any:
    """Store JSON data, where possible; returned as :func:`read_cached` will.

    ``limit``: files of the folder, else :data:`LIMIT`.
    """
    # It loads pyarrow.
    from railx.io import atomic_path

    text = json.dumps(value).encode()
    with suppress(OSError):
        with atomic_path(folder / f"{name}.json") as path:
            path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        for old in files[: -(limit or LIMIT)]:
            old.unlink(missing_ok=True)
    return json.loads(text)


def cached(folder: Path, name: str, compute: Callable[[], T]) -> T:
    """The value of a name, computed where it is not there."""
    value = read_cached(folder, name)
    return cast("T", write_cached(folder, name, compute()) if value is None else value)
