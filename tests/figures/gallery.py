"""Figures drawn once for many tests, and what is looked for before they are saved."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Gallery:
    """Every shipped figure, drawn once: its path without ending, and the texts that lie
    on one another.
    """

    paths: dict[str, Path]
    clashes: dict[str, list[str]]


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
