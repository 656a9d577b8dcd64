"""The entry point of ``torch.backends``: makes the backend ``railx`` known to torch.

torch calls :func:`register` at the end of ``import torch`` in every program of an
environment where this package is installed, also in programs that never use railx. The
package therefore has a top-level name of its own, imports no other module of the
project before a program creates a group, and never makes ``import torch`` fail.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

__all__ = ["register"]

#: The packages of the project that the backend is made of.
_PACKAGES = ("railx", "training")


def register() -> None:
    """Let torch.distributed create groups of the backend ``railx``."""
    try:
        import torch.distributed as dist

        if dist.is_available():
            dist.Backend.register_backend(
                "railx", _create_group, extended_api=True, devices=["cpu", "cuda"]
            )
    except Exception as error:
        warnings.warn(f"railx: the backend is unavailable: {error}", stacklevel=2)


def _create_group(options: Any, _: Any) -> Any:
    """A process group of the backend.

    Raises RuntimeError where another module of the program has the name of one of our
    packages: the program's own module is the one that it imports.
    """
    for name in _PACKAGES:
        ours, imported = Path(__file__).resolve().parents[1] / name, _origin(name)
        if imported is None or Path(imported).resolve().parent != ours:
            raise RuntimeError(
                f"railx: the backend is unavailable: import {name} finds"
                f" {imported or 'no such package'}, not {ours}; rename that module"
            )
    return importlib.import_module("training.backend").create_group(options)


def _origin(name: str) -> str | None:
    """The file that ``import name`` runs, or has run."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = importlib.util.find_spec(name)
    return spec.origin if spec else None
