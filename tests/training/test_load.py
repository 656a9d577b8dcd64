"""The accounts of processor time: real processes, and readings whose sum is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training import load
from training.load import Reading, load_average, others_share, read_processors

pytestmark = pytest.mark.system

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

needs_proc = pytest.mark.skipif(
    not Path("/proc/stat").exists(), reason="this kernel does not tell its load"
)


def span(used_s: float, busy_s: float | None, machine: str = "a", cores: int = 4) -> Reading:
    return Reading(machine, 10.0, used_s, busy_s, None if busy_s is None else cores)


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        # 4 cores for 10 s; 12 s were busy, the ranks used 4 s of them.
        ([span(3, 12), span(1, 12)], 0.2),
        # Ranks that used more than the kernel's ticks saw.
        ([span(3, 2.9)], 0.0),
        ([span(0, 41)], 1.0),
        # The machine that was disturbed most counts; each has its own processes.
        ([span(2, 6), span(1, 21, "b"), span(2, 21, "b")], 0.45),
        ([span(3, None)], None),
        ([span(2, 6), span(1, None, "b")], None),
        ([], None),
    ],
)
def test_others_have_what_is_left(spans: list[Reading], share: float | None) -> None:
    assert others_share(spans) == (None if share is None else pytest.approx(share))


@needs_proc
def test_a_busy_neighbour_is_counted_and_a_helper_is_not() -> None:
    """A child computes for a known time: the machine was busy at least as long, and it
    is others' time unless the child is named as a helper.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", _COMPUTES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child, child.stdin, child.stdout:
        child.stdout.readline()
        before = read_processors(), read_processors(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        used_s = float(child.stdout.readline())
        alone, with_child = (
            after.since(earlier)
            for after, earlier in zip(
                (read_processors(), read_processors(child.pid)), before, strict=True
            )
        )
    assert alone.busy_s is not None
    assert alone.busy_s >= used_s - 2 * _TICK_S
    assert with_child.used_s >= used_s - 2 * _TICK_S
    assert alone.used_s < with_child.used_s
    share, without = others_share([alone]), others_share([with_child])
    assert share is not None
    assert without is not None
    assert 0 <= without < share <= 1


_COMPUTES = """
import sys, time
print("ready", flush=True)
sys.stdin.readline()
began = time.process_time()
while (used := time.process_time() - began) < 0.5:
    pass
print(used, flush=True)
sys.stdin.read()
"""


def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(load, "_PROC", tmp_path)
    reading = read_processors(os.getpid())
    assert (reading.busy_s, reading.cores) == (None, None)
    assert others_share([reading.since(reading)]) is None


def test_the_load_average_has_three_spans() -> None:
    average = load_average()
    assert average is None or len(average) == 3
