"""Errors: a user's mistake, shown as one line, and bugs, with their traceback."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

#: The errors of a system that has no room for a file.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Names that one line lists in full; of more it has the nearest.
_LISTED, _NEAREST = 12, 3


class UserError(ValueError):
    """A mistake of the user, or an input that cannot be used.

    Its message is one line: the value got and those allowed, or which
    file is damaged and what to do. Any other exception that ends a job or a command is
    a bug and keeps its traceback.
    """


def is_explained(error: BaseException) -> bool:
    """Whether the message of ``error`` explains it without a traceback.

    So does that of a :class:`UserError`, of an error of the operating system (a missing
    file, a full disk, a refused connection) and of a lack of memory.
    """
    if isinstance(error, OSError):
        return error.errno is not None or isinstance(error, UserError)
    return isinstance(error, UserError | MemoryError)


def allowed_names(got: object, names: Iterable[object]) -> str:
    """The allowed names, or the three nearest to ``got`` and how many there are."""
    listed = list(dict.fromkeys(map(str, names)))
    if len(listed) <= _LISTED:
        return ", ".join(listed)
    nearest = get_close_matches(str(got), listed, n=_NEAREST, cutoff=0.0)
    return f"{', '.join(nearest)}, ... ({len(listed)} in all)"


class _Terminated(SystemExit):
    """SIGTERM within :func:`unwound_by_sigterm`."""


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM leave the block in order, so that its temporary files are removed.

    The process then ends by the signal, a second one ends it at once. Nothing changes
    outside the main thread, and where SIGTERM has a handler.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def unwind(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Terminated(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    except _Terminated:
        os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
