"""Events of a CUDA device on the host's clock, and how far the two may be apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Comparisons of an anchor, of which the closest counts.
_TRIES = 20


@dataclass(frozen=True)
class _Anchor:
    """An event that an idle device passed between two readings of the host's clock."""

    event: Any
    before_ns: int
    after_ns: int

    @property
    def middle_ns(self) -> float:
        return (self.before_ns + self.after_ns) / 2

    @property
    def error_ns(self) -> float:
        return (self.after_ns - self.before_ns) / 2


class DeviceClock:
    """Compares the clocks now and when ``close`` is called; both find the device idle.

    ``record`` records an event with timing on an idle stream and returns it. A launch
    delays an anchor, and the two clocks drift: so the host reads its clock on both
    sides of each anchor, the closest of several counts, and moments between the first
    and the last anchor lie on the line through both.
    """

    def __init__(
        self, record: Callable[[], Any], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._record, self._now_ns = record, now_ns
        self._first = self._last = self._compare()

    def close(self) -> None:
        """Compare the clocks once more, before the first call of ``ns``."""
        self._last = self._compare()

    @property
    def error_ms(self) -> float:
        """The most by which a moment may be off."""
        return max(self._first.error_ns, self._last.error_ns) / 1e6

    def ns(self, event: Any) -> float:
        """The host's time in ns at which the device passed an event."""
        first, last = self._first, self._last
        device_ms = first.event.elapsed_time(last.event)
        share = first.event.elapsed_time(event) / device_ms
        return first.middle_ns + share * (last.middle_ns - first.middle_ns)

    def _compare(self) -> _Anchor:
        return min((self._anchor() for _ in range(_TRIES)), key=lambda anchor: anchor.error_ns)

    def _anchor(self) -> _Anchor:
        before_ns = self._now_ns()
        event = self._record()
        # The one wait that spins: a thread that sleeps reads the clock too late.
        event.synchronize()
        return _Anchor(event, before_ns, self._now_ns())
