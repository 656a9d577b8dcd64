"""Keys of cached values (:mod:`railx.file_cache`): digests of what they come from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from railx import places
from railx.file_cache import cached


@cache
def _versions() -> list[str]:
    """The versions of the packages that compose."""
    return [version(name) for name in ("hydra-core", "omegaconf", "PyYAML")]


def cache_key(request: Sequence[str | None], sources: Iterable[Path]) -> str:
    """The key of ``request``, composed from ``sources`` by packages, whose versions
    count.

    Files count by their place beside the code, so that a copy of both has the same key.
    """
    digest = hashlib.sha256(json.dumps([request, _versions()]).encode())
    for path in sorted(sources):
        content = path.read_bytes()
        place = os.path.relpath(path, places.SHIPPED)
        digest.update(f"\0{place}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@cache
def code_digest() -> str:
    """A digest over all sources of the project.

    Lists such as that of the figures are imported by name: no walk along the imports
    finds what a check depends on.
    """
    packages = ("railx", "railx_torch", "training", "workflow")
    return cache_key(
        [], (path for name in packages for path in places.package_folder(name).rglob("*.py"))
    )


def remembered(compute: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """A function of the code alone, slow to import, whose value is kept in a file."""

    @cache
    def value() -> dict[str, Any]:
        name = cache_key([compute.__module__, compute.__qualname__, code_digest()], ())
        return cached(places.cache("remembered"), name, compute)

    return value
