"""Compute spans of a rank between its communications, for the trace.

Communication interrupts forward and backward passes, so a pass has several compute
spans. The backend records the communication itself; the timeline ends the compute span
before it and begins another after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from railx_torch.trace import Recorder


class Timeline:
    """Compute spans of one rank, each with its phase; discarded without a recorder."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = recorder
        self._phase: str | None = None
        self._open: AbstractContextManager[object] | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Computation of a phase (forward, backward, optimizer). Phases do not nest."""
        self._phase = name
        self._begin()
        try:
            yield
        finally:
            self._end()
            self._phase = None

    @contextmanager
    def communication(self) -> Iterator[None]:
        """A communication, inside a phase or outside of one."""
        self._end()
        try:
            yield
        finally:
            self._begin()

    def _begin(self) -> None:
        if self._recorder is not None and self._phase is not None:
            self._open = self._recorder.span("compute", phase=self._phase)
            self._open.__enter__()

    def _end(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
