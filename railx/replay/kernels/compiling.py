"""How the engine's loops are compiled, and kept on disk.

The compiler keeps what it made of a function by that function's file alone; of what is
called in other files it sees no change. So every loop takes the :class:`State`, and the
type of one of its arrays bears a digest of all files here (:data:`SOURCES`). Where one
of them has changed, the types are new ones, and everything is compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

__all__ = ["SOURCES", "called", "compiled"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _digest() -> str:
    found = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


#: A type whose one field is named after the texts of all files here.
SOURCES = np.dtype([(f"files_{_digest()}", np.int8)])


def called(function: Function) -> Function:
    """Compile on first use, for compiled callers; the result stays on disk.

    Nothing here allocates, so arrays go without reference counts.
    """
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Function", njit(cache=True, error_model="numpy", _nrt=False, **wrappers)(function))


def compiled(function: Function) -> Function:
    """Compile on first use and keep the result on disk."""
    return cast("Function", njit(cache=True, error_model="numpy")(function))
