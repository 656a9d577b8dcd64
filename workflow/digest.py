"""Digests of code: a changed module reruns the stages that import it and no others.

Snakemake does not watch the libraries behind a rule. Each rule therefore carries, among
its params, a digest of the project's own modules that its stage imports, directly or
through others, and of the versions of the third-party packages that those modules
import. grimp reads the imports from the source; nothing is executed.

A digest is taken of the syntax tree, so that comments and formatting do not count.
Strings that are statements (docstrings, and those below fields) count where code reads
them: in a module that names its ``__doc__``, and in every module of a stage that asks
another object for its docstring or source.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from railx import places
from railx.file_cache import read_cached, write_cached
from workflow.cache_keys import cache_key, remembered

_PACKAGES = ("railx", "railx_torch", "training", "workflow")
#: Modules that declarations ask before any job. Their answers are settings and inputs
#: of jobs, which Snakemake compares: a new stage or planner reruns none of the others.
_DECLARATIONS = frozenset({"workflow.cache_keys", "workflow.plan_kinds", "workflow.stages"})
#: Distributions that are not called what they are imported as. Asking every installed
#: one instead takes longer than a dry run may.
_DISTRIBUTIONS = {"hydra": "hydra-core", "yaml": "PyYAML"}
#: Names by which code gets at the docstrings or the source of something else.
_READERS = frozenset({"__doc__", "get_docstring", "getdoc", "getsource", "getsourcelines"})


def code_modules(*modules: str) -> list[str]:
    """The project's modules that ``modules`` import, sorted by name.

    ``modules`` are dotted names; they themselves and the packages on the way are
    included. Raises ValueError for a name that is no module of the project.
    """
    return [module for module in _reached(modules) if _is_ours(module)]


@cache
def package_versions(*modules: str) -> dict[str, str]:
    """The third-party packages that :func:`code_modules` import, with their versions.

    Packages are named as they are installed, in the order of their names. One that is
    not installed (torch on a machine that does not train) is ``"absent"``.
    """
    roots = {module for module in _reached(modules) if not _is_ours(module)}
    names = {_DISTRIBUTIONS.get(root, root) for root in roots - sys.stdlib_module_names}
    return {name: _version(name) for name in sorted(names, key=str.lower)}


@cache
def code_digest(*modules: str) -> str:
    """A short SHA-256 over the code of :func:`code_modules` and the versions of
    :func:`package_versions`.
    """
    names, digest = code_modules(*modules), hashlib.sha256()
    codes = [_codes()[name] for name in names]
    documented = any(code["reads_others"] for code in codes)
    for name, code in zip(names, codes, strict=True):
        whole = documented or code["reads_itself"]
        digest.update(f"{name}\0{code['documented' if whole else 'bare']}\0".encode())
    for name, version in package_versions(*modules).items():
        digest.update(f"{name}=={version}".encode() + b"\0")
    return digest.hexdigest()[:16]


def module_digest(module: str) -> str:
    """A short SHA-256 over the code of one of the project's modules, no docstrings."""
    return str(_codes()[module]["bare"])[:16]


@cache
def _reached(modules: tuple[str, ...]) -> tuple[str, ...]:
    """What the modules import, ours and others', sorted."""
    imports, reached, waiting = _imports(), set(_DECLARATIONS), list(modules)
    for module in modules:
        if module not in imports or not _is_ours(module):
            raise ValueError(f"{module}: no module of {', '.join(_PACKAGES)}")
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += _packages_of(module) if _is_ours(module) else ()
            waiting += imports.get(module, ())
    return tuple(sorted(reached - _DECLARATIONS))


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in _PACKAGES


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


@remembered
def _imports() -> dict[str, list[str]]:
    """What each module imports itself; a source that is as it was is not read again."""
    import grimp

    build = partial(
        grimp.build_graph,
        *_PACKAGES,
        include_external_packages=True,
        # They never run.
        exclude_type_checking_imports=True,
    )
    try:
        graph = build(cache_dir=str(places.cache("imports")))
    except OSError:  # a folder that cannot be written
        graph = build(cache_dir=None)
    return {
        module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }


@cache
def _codes() -> dict[str, dict[str, Any]]:
    """What :func:`_code` says of each module; a known source is not parsed again."""
    folder = places.cache("code")
    # Another Python has other syntax trees.
    name = cache_key(["code", *map(str, sys.version_info[:2])], [Path(__file__)])
    known = read_cached(folder, name) or {}
    sources = {module: _source(module) for module in _imports() if _is_ours(module)}
    names = {module: hashlib.sha256(source).hexdigest() for module, source in sources.items()}
    codes = {
        source: known[source] if source in known else _code(sources[module])
        for module, source in names.items()
    }
    if codes != known:
        write_cached(folder, name, codes)
    return {module: codes[source] for module, source in names.items()}


def _code(source: bytes) -> dict[str, Any]:
    """Digests of a module: ``documented`` counts strings that are statements, ``bare``
    does not. ``reads_itself``: it names its own docstring; ``reads_others``: it asks
    for the docstring or the source of something else.
    """
    words: list[Any] = []
    strings: list[Any] = []
    names: dict[type, set[str]] = {ast.Name: set(), ast.Attribute: set()}
    _flatten(ast.parse(source), words, strings, names)
    bare = hashlib.sha256(repr(words).encode())
    documented = bare.copy()
    documented.update(repr(strings).encode())
    return {
        "documented": documented.hexdigest(),
        "bare": bare.hexdigest(),
        "reads_itself": "__doc__" in names[ast.Name],
        "reads_others": bool(_READERS & (names[ast.Attribute] | (names[ast.Name] - {"__doc__"}))),
    }


def _flatten(
    node: ast.AST, words: list[Any], strings: list[Any], names: dict[type, set[str]]
) -> None:
    """Append a syntax tree to ``words``, node by node, without positions.

    Strings that are statements go to ``strings``, each after its place in ``words``.
    One pass over half a million nodes: most of a first run's start is spent here.
    """
    kind = node.__class__
    words.append(kind.__name__)
    if kind in names:
        names[kind].add(node.id if isinstance(node, ast.Name) else node.attr)  # type: ignore[attr-defined]
    for field in kind._fields:
        value = getattr(node, field, None)
        if value is None or value == [] or field == "ctx":
            continue
        words.append(field)
        if isinstance(value, list):
            for item in value:
                if not isinstance(item, ast.AST):
                    words.append(item)
                elif (text := _text(item)) is not None:
                    strings += (len(words), text)
                else:
                    _flatten(item, words, strings, names)
            words.append(")")
        elif isinstance(value, ast.AST):
            _flatten(value, words, strings, names)
        else:
            words.append(value)


def _text(node: ast.AST) -> str | None:
    """The string of a statement that is nothing else."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else None
    return None


def _source(module: str) -> bytes:
    name, *parts = module.split(".")
    base = places.package_folder(name).joinpath(*parts)
    package = base / "__init__.py"
    return (package if package.is_file() else base.with_suffix(".py")).read_bytes()


def _packages_of(module: str) -> Iterator[str]:
    """Python runs the packages on the way to a module too."""
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))
