"""Digests of code: a changed module reruns the stages that import it and no others.

Snakemake watches the script of a rule but not the libraries behind it. Each rule
therefore carries, among its params, a digest of the project's own modules that its
stage imports, directly or through others, and of the versions of the third-party
packages that those modules import. grimp reads the imports from the source; nothing is
executed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata

from railx import places
from workflow.composed import remembered

__all__ = ["code_digest", "code_modules", "module_digest", "package_versions"]

_PACKAGES = ("railx", "railx_torch", "training", "workflow")
#: The list of all stages is no part of any: a new stage reruns none of the others.
_LISTS = frozenset({"workflow.stages"})
#: Distributions that are not called what they are imported as. Asking every installed
#: one instead takes longer than a dry run may.
_DISTRIBUTIONS = {"hydra": "hydra-core", "yaml": "PyYAML"}


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
    """A short SHA-256 over the sources of :func:`code_modules` and the versions of
    :func:`package_versions`.
    """
    digest = hashlib.sha256()
    for module in code_modules(*modules):
        digest.update(module.encode() + b"\0" + _source(module) + b"\0")
    for name, version in package_versions(*modules).items():
        digest.update(f"{name}=={version}".encode() + b"\0")
    return digest.hexdigest()[:16]


def module_digest(module: str) -> str:
    """A short SHA-256 over the source of one of the project's modules."""
    return hashlib.sha256(_source(module)).hexdigest()[:16]


def _reached(modules: tuple[str, ...]) -> list[str]:
    """What the modules import, ours and others', sorted."""
    imports, reached, waiting = _imports(), set(_LISTS), list(modules)
    for module in modules:
        if module not in imports or not _is_ours(module):
            raise ValueError(f"{module}: no module of {', '.join(_PACKAGES)}")
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += _packages_of(module) if _is_ours(module) else ()
            waiting += imports.get(module, ())
    return sorted(reached - _LISTS)


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

    graph = grimp.build_graph(
        *_PACKAGES,
        include_external_packages=True,
        # They never run.
        exclude_type_checking_imports=True,
        cache_dir=str(places.cache("imports")),
    )
    return {
        module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }


@cache
def _source(module: str) -> bytes:
    name, *parts = module.split(".")
    base = places.package_folder(name).joinpath(*parts)
    package = base / "__init__.py"
    return (package if package.is_file() else base.with_suffix(".py")).read_bytes()


def _packages_of(module: str) -> Iterator[str]:
    """Python runs the packages on the way to a module too."""
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))
