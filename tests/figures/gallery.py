"""Figures drawn once for all tests of a run, and the texts in them that overlap."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from railx.io import read_json, write_json


@dataclass(frozen=True)
class Gallery:
    """The shipped figures, each drawn once in a run of the tests, when it is looked at.

    ``folder`` belongs to all workers of the run. ``draw`` draws a figure by name as a
    path without ending and returns the texts that lie on one another.
    """

    folder: Path
    draw: Callable[[str, Path], list[str]]

    def path(self, name: str) -> Path:
        """The files of a figure without their ending."""
        output, overlaps = self.folder / name, self.folder / f"{name}.overlaps.json"
        with FileLock(self.folder / f"{name}.lock"):
            if not overlaps.exists():
                write_json(overlaps, {"overlaps": self.draw(name, output)})
        return output

    def overlaps(self, name: str) -> list[str]:
        """The texts of a figure that lie on one another."""
        texts: list[str] = read_json(self.path(name).with_suffix(".overlaps.json"))["overlaps"]
        return texts


def clashes(figure: Any) -> list[str]:
    """Pairs of visible texts whose boxes overlap by more than a point."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    ticks = {
        id(text): _in_view(axis, tick)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for text in (tick.label1, tick.label2)
    }
    boxes = [
        (text.get_text(), text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_visible()
        and text.get_text().strip()
        and ticks.get(id(text), True)
        and (text.axes is None or text.axes.get_visible())
    ]
    point = figure.dpi / 72
    return [
        f"{one!r} over {other!r}"
        for (one, a), (other, b) in itertools.combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > point
        and min(a.y1, b.y1) - max(a.y0, b.y0) > 3 * point
    ]


def _in_view(axis: Any, tick: Any) -> bool:
    if not (axis.axes.axison and axis.get_visible()):
        return False
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    return bool(low - slack <= tick.get_loc() <= high + slack)
