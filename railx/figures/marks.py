"""Marks of published numbers and of ours, the same in every figure.

Published numbers are hollow diamonds and dashed lines.
"""

from __future__ import annotations

from typing import Any

from railx.figures.theme import INK

#: The words for published numbers in every legend, and for what follows from a paper by
#: arithmetic.
PUBLISHED, DERIVED = "published", "derived from the paper"
PUBLISHED_MARK: dict[str, Any] = {
    "marker": "D",
    "markersize": 5.5,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 1.3,
    "linestyle": "none",
}
PUBLISHED_LINE: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.3}


def dot(colour: str, size: float | None = None, **style: Any) -> dict[str, Any]:
    """A mark without a line: the style of our numbers beside published ones."""
    sized = {} if size is None else {"markersize": size}
    return {"linestyle": "none", "marker": "o", "color": colour, **sized, **style}


def published_mark(colour: str) -> dict[str, Any]:
    """The mark of a published value of one of several things, in its colour."""
    return {**PUBLISHED_MARK, "markeredgecolor": colour}


def published_series(colour: str) -> dict[str, Any]:
    """Published values on a thin dashed line, in the colour of their series."""
    line = {"linestyle": (0, (4, 2)), "linewidth": 1.1, "color": colour}
    return published_mark(colour) | line
