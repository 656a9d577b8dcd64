"""What was composed or looked up once, kept in files for the next run.

A file is named by the digest of everything that its content was made from, so it never
goes out of date. What is in it is checked against a digest of its own, so a damaged
file counts as none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from railx import places

#: Configs kept; the oldest goes first.
LIMIT = 64

_PACKAGES = ("hydra-core", "omegaconf", "PyYAML")


def key(request: Sequence[str | None], sources: Iterable[Path]) -> str:
    """The name of what ``request`` asks for.

    A digest over it, the files that it is composed from and the versions of the
    packages that compose.
    """
    digest = hashlib.sha256(json.dumps([request, [version(name) for name in _PACKAGES]]).encode())
    for path in sorted(sources):
        content = path.read_bytes()
        digest.update(f"\0{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@cache
def code_digest() -> str:
    """A digest over all sources of the project.

    Lists such as that of the figures are imported by name: no walk along the imports
    finds what a check depends on.
    """
    packages = ("railx", "railx_torch", "training", "workflow")
    return key(
        [], (path for name in packages for path in places.package_folder(name).rglob("*.py"))
    )


def remembered(compute: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """A function without arguments whose value, of the code alone, is kept in a file.

    For facts of modules that take long to import.
    """

    @cache
    def value() -> dict[str, Any]:
        folder = places.cache("remembered")
        name = key([compute.__module__, compute.__qualname__, code_digest()], ())
        kept = read(folder, name)
        return keep(folder, name, compute()) if kept is None else kept

    return value


def read(folder: Path, key: str) -> dict[str, Any] | None:
    """The config kept under ``key``; None where there is none that can be trusted."""
    try:
        digest, _, text = (folder / f"{key}.json").read_bytes().partition(b"\n")
    except OSError:
        return None
    intact = hashlib.sha256(text).hexdigest().encode() == digest
    return cast("dict[str, Any]", json.loads(text)) if intact else None


def keep(folder: Path, key: str, config: dict[str, Any]) -> dict[str, Any]:
    """Keep ``config`` under ``key`` where the folder can be written to.

    Returns it as :func:`read` will.
    """
    # It loads pyarrow.
    from railx.io import atomic_path

    text = json.dumps(config).encode()
    with suppress(OSError):
        with atomic_path(folder / f"{key}.json") as path:
            path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        for _, old in sorted((path.stat().st_mtime_ns, path) for path in folder.glob("*.json"))[
            :-LIMIT
        ]:
            old.unlink(missing_ok=True)
    return cast("dict[str, Any]", json.loads(text))
