"""Times of a device on the host's clock, with a device whose clock is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.gpu.clocks import DeviceClock


class Machine:
    """A host and a device, whose clock drifts and whose events take a launch."""

    def __init__(self, drift: float, seed: int) -> None:
        self.host_ns, self._drift, self._draw = 10**15, drift, random.Random(seed)

    def now_ns(self) -> int:
        return self.host_ns

    def record(self) -> Event:
        self.host_ns += self._draw.randrange(5_000, 3_000_000)
        return Event(self)

    def device_ms(self) -> float:
        return (self.host_ns - 10**15) * (1 + self._drift) / 1e6 + 1234.5


class Event:
    """An event that the device passed when it was made."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.host_ns, self._ms = machine.host_ns, machine.device_ms()

    def synchronize(self) -> None:
        self._machine.host_ns += self._machine._draw.randrange(1_000, 100_000)

    def elapsed_time(self, end: Event) -> float:
        return end._ms - self._ms


@given(drift=st.floats(-1e-4, 1e-4), seed=st.integers(0, 1000), gap_s=st.integers(0, 100))
def test_a_moment_is_off_by_no_more_than_is_said(drift: float, seed: int, gap_s: int) -> None:
    machine = Machine(drift, seed)
    clock = DeviceClock(machine.record, machine.now_ns)
    events = []
    for _ in range(5):
        machine.host_ns += gap_s * 10**9
        events.append(Event(machine))
    clock.close()
    assert clock.error_ms < 1.0, "the closest of several comparisons"
    for event in events:
        assert clock.ns(event) == pytest.approx(event.host_ns, abs=1e6 * clock.error_ms + 1)
