"""When a rank computes: spans between its communications, for the trace.

Communication happens in the middle of a forward or backward pass, so a pass is several
compute spans. The backend records the communication itself; here the compute span is
closed before and opened again after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

__all__ = ["SpanRecorder", "Timeline"]


class SpanRecorder(Protocol):
    """What a timeline writes to (``training.trace.Recorder``)."""

    def span(
        self, kind: str, *, phase: str, group: tuple[int, ...] = (), bytes: int = 0
    ) -> AbstractContextManager[object]: ...


class Timeline:
    """Compute spans of one rank, each with the phase it belongs to.

    Without a recorder nothing is kept.
    """

    def __init__(self, recorder: SpanRecorder | None = None) -> None:
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
