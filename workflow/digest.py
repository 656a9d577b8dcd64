"""Digests of code, so that a changed module reruns the stages that import it and no
others.

Snakemake watches the script of a rule but not the libraries behind it. Each rule
therefore carries, among its params, a digest of the project's own modules that its
stage imports, directly or through others. Imports are read from the source, nothing is
executed.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

__all__ = ["code_digest", "code_modules"]

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("railx", "training", "workflow")


def code_modules(*modules: str) -> list[str]:
    """The project's modules that ``modules`` (dotted names) import, themselves
    included, sorted by name.

    Raises ValueError for a name that is no module of the project.
    """
    found: set[str] = set()
    waiting = list(modules)
    for module in modules:
        if _source(module) is None:
            raise ValueError(f"{module}: no module of {', '.join(_PACKAGES)}")
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(_imports(module))
    return sorted(found)


def code_digest(*modules: str) -> str:
    """A short SHA-256 over the sources of :func:`code_modules`."""
    digest = hashlib.sha256()
    for module in code_modules(*modules):
        digest.update(module.encode() + b"\0" + _read(module) + b"\0")
    return digest.hexdigest()[:16]


def _source(module: str) -> Path | None:
    if module.split(".")[0] not in _PACKAGES:
        return None
    base = _ROOT.joinpath(*module.split("."))
    for candidate in (base / "__init__.py", base.with_suffix(".py")):
        if candidate.is_file():
            return candidate
    return None


@cache
def _read(module: str) -> bytes:
    source = _source(module)
    return source.read_bytes() if source else b""


@cache
def _imports(module: str) -> tuple[str, ...]:
    tree = ast.parse(_read(module))
    source = _source(module)
    package = (
        module if source is not None and source.name == "__init__.py" else module.rpartition(".")[0]
    )
    names = set(_with_parents(module))
    for node in ast.walk(tree):
        names.update(_named(node, package))
    return tuple(sorted(name for name in names if _source(name)))


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _with_parents(alias.name)
    elif isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        origin = ".".join(filter(None, (base, node.module)))
        yield from _with_parents(origin)
        for alias in node.names:
            yield f"{origin}.{alias.name}"


def _with_parents(module: str) -> Iterable[str]:
    parts = module.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))
