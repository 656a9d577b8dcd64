"""The backend ``railx`` of torch.distributed, and torch's entry point to it.

torch calls :func:`register` at the end of ``import torch`` in every program of an
environment where this package is installed, also in programs that never use railx. The
package therefore imports no other module of the project before a program creates a
group, and never makes ``import torch`` fail. :mod:`railx_torch.backend` describes the
backend.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

__all__ = ["register"]


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


def _create_group(options: Any, pg_options: Any) -> Any:
    """A process group of the backend.

    Raises RuntimeError where another module of the program is called ``railx``: the
    program's module is the one that it imports.
    """
    ours, imported = Path(__file__).resolve().parents[1] / "railx", _origin("railx")
    if imported is None or Path(imported).resolve().parent != ours:
        raise RuntimeError(
            f"railx: the backend is unavailable: import railx finds"
            f" {imported or 'no such package'}, not {ours}; rename that module"
        )
    return importlib.import_module("railx_torch.backend").create_group(options, pg_options)


def _origin(name: str) -> str | None:
    """The file that ``import name`` runs, or has run."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = importlib.util.find_spec(name)
    return spec.origin if spec else None
