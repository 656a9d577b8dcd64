"""The log of a rule: everything its script prints, an expected error as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["logged"]


@contextmanager
def logged(path: str | Path) -> Iterator[None]:
    """Send this process's output (and that of its children) to ``path``.

    A ValueError or a failed child ends it with one line.
    """
    with Path(path).open("wb") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    try:
        yield
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
