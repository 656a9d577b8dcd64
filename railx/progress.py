"""Progress of long computations: units done and the estimated time left.

Loops count their units (:func:`counted`); nested loops are one count. The caller
reports it (:func:`told`): a thread writes a line every few seconds, and none for short
work. A child process publishes its count in the file named by ``RAILX_PROGRESS``. The
time left extrapolates the pace so far, weighted by the weights of the units.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from railx.errors import unwound_by_sigterm

T = TypeVar("T")

#: Seconds between two lines, and until the first.
EVERY_S = 10.0
#: The environment variable with the file of a child's count.
FILE = "RAILX_PROGRESS"


@dataclass
class Count:
    """A loop: its unit, the number of units, the work done and in total, its start."""

    what: str
    units: int
    total: float
    done_units: int = 0
    done: float = 0.0
    begun_s: float = field(default_factory=time.monotonic)

    def step(self, weight: float = 1.0) -> None:
        """Count one more unit."""
        self.done_units += 1
        self.done += weight


_OPEN: list[Count] = []


@contextlib.contextmanager
def counting(what: str, units: int, total: float | None = None) -> Iterator[Count]:
    """A count for the block, which calls :meth:`Count.step`."""
    count = Count(what, units, float(units if total is None else total))
    _OPEN.append(count)
    try:
        yield count
    finally:
        _OPEN.remove(count)


def counted(items: Iterable[T], what: str, weights: Sequence[float] | None = None) -> Iterator[T]:
    """Iterate over items; an item counts as done when the next one is requested.

    ``weights`` is the work of each item, by default 1. The items are listed at once.
    """
    listed = list(items)
    work = [1.0] * len(listed) if weights is None else [float(weight) for weight in weights]
    with counting(what, len(listed), sum(work)) as count:
        for item, weight in zip(listed, work, strict=True):
            yield item
            count.step(weight)


def publish(what: str, done: int, units: int) -> None:
    """Publish the count for the parent process, if it reports progress."""
    path = os.environ.get(FILE)
    if path is None:
        return
    # A reader sees the old line or the new one.
    with contextlib.suppress(OSError):
        beside = Path(f"{path}.{os.getpid()}")
        beside.write_text(json.dumps([what, done, units]), encoding="utf-8")
        beside.replace(path)


@contextlib.contextmanager
def told(
    name: str, say: Callable[[str], None] | None = None, every_s: float = EVERY_S
) -> Iterator[None]:
    """Report the block's progress every ``every_s``, by ``say`` or on stderr.

    SIGTERM leaves the block in order (:func:`railx.errors.unwound_by_sigterm`).
    """
    ended = threading.Event()
    begun_s = time.monotonic()
    inner = os.environ.get(FILE)
    with (
        unwound_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="railx-progress-") as folder,
    ):
        published = Path(folder) / "count"
        os.environ[FILE] = str(published)

        def tell() -> None:
            while not ended.wait(every_s):
                line = f"{name}: {_line(begun_s, time.monotonic(), published)}"
                with contextlib.suppress(OSError, ValueError):
                    (say or _to_stderr)(line)

        thread = threading.Thread(target=tell, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            if inner is None:
                del os.environ[FILE]
            else:
                os.environ[FILE] = inner


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _line(begun_s: float, now_s: float, published: Path) -> str:
    counts = list(_OPEN) or _published(published, begun_s)
    so_far = f"{duration(now_s - begun_s)} so far"
    if not counts:
        return so_far
    # An inner loop is a part of a unit of the outer loop.
    share = 0.0
    for count in reversed(counts):
        weight = count.total / count.units if count.units else 0.0
        share = min(1.0, (count.done + share * weight) / count.total) if count.total else 1.0
    words = ", ".join(f"{count.done_units} of {count.units} {count.what}" for count in counts)
    if not share:
        return f"{words}, {so_far}"
    # The outer loop's pace; other loops may have run before it.
    left_s = (now_s - counts[0].begun_s) * (1 - share) / share
    return f"{words} ({share:.0%}), {so_far}, about {duration(left_s)} left"


def _published(path: Path, begun_s: float) -> list[Count]:
    try:
        what, done, units = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [Count(what, units, float(units), done, float(done), begun_s)]


def duration(seconds: float) -> str:
    """Seconds in readable form: 12 s, 3 min 20 s, 2 h 5 min."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes, rest = divmod(rounded, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
