"""Compute spans are closed during communication and carry the phase around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from training.timeline import Timeline


class Log:
    """A recorder that writes down what begins and ends."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def span(
        self, kind: str, *, phase: str, group: tuple[int, ...] = (), bytes: int = 0
    ) -> Iterator[None]:
        self.events.append(f"{kind} {phase} begins")
        yield
        self.events.append(f"{kind} {phase} ends")


def test_communication_parts_a_phase() -> None:
    log = Log()
    timeline = Timeline(log)
    with timeline.phase("forward"), timeline.communication():
        log.events.append("communication")
    with timeline.communication():
        log.events.append("outside")
    assert log.events == [
        *(
            "compute forward begins",
            "compute forward ends",
            "communication",
            "compute forward begins",
            "compute forward ends",
        ),
        "outside",
    ]


def test_a_failed_phase_is_closed() -> None:
    log = Log()
    timeline = Timeline(log)
    with pytest.raises(RuntimeError), timeline.phase("backward"):
        raise RuntimeError
    with timeline.communication():
        pass
    assert log.events == ["compute backward begins", "compute backward ends"]


def test_without_a_recorder_nothing_is_kept() -> None:
    timeline, ran = Timeline(), []
    with timeline.phase("forward"), timeline.communication():
        ran.append(True)
    assert ran == [True]
