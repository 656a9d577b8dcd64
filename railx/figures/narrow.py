"""The narrow form of a figure: its panels below one another, for a screen of a phone.

A figure draws both forms by the same code; the page of the narrow form stacks the
panels that it is asked for. A figure whose panels cannot be stacked, or whose text does
not fit, has no narrow form.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.transforms import Bbox

#: Which panels share an axis, as in matplotlib.
Sharing = bool | Literal["none", "all", "row", "col"]
#: 480 CSS pixels: on a screen of 400 pixels text of 9.5 points is 9.5 pixels high.
NARROW_INCHES = 5.0
#: A taller form is no help on a phone, nor is a lower panel.
_MOST_INCHES, _LEAST_PANEL_INCHES = 24.0, 1.6
#: Height of a stacked panel over its height beside others.
_PANEL_HEIGHT = 0.9
#: Two lines of text.
_TWO_LINES_INCHES = 0.35
#: Height of a stacked panel, with its title, for each letter of the label beside it.
_UPRIGHT_LETTER_INCHES = 0.09
#: Share of the smaller of two texts that the other may cover.
_MOST_COVERED = 0.2
#: Letters of a line of a title or a label, and of a row's name or a text beside a mark.
_MOST_LETTERS, _MOST_OF_A_ROW = 34, 24
#: Pixels by which a text may stand over an edge: its antialiased rim.
_RIM_PIXELS = 2.0


class NoNarrowForm(Exception):
    """The panels of a figure cannot stand below one another."""


class NarrowFigure(Figure):
    """A page whose panels stand below one another.

    ``frame`` draws title, subtitle and footnote for a height in inches.
    """

    frame: Callable[[float], None]

    def subplots(
        self,
        nrows: int = 1,
        ncols: int = 1,
        *,
        sharex: Sharing = False,
        sharey: Sharing = False,
        **shape: Any,
    ) -> Any:
        """The grid as it was asked for, in one column; shared axes stay shared."""
        panels: Any = super().subplots(nrows, ncols, sharex=sharex, sharey=sharey, **shape)
        if ncols > 1:
            self._stack(list(np.ravel(panels)))
            grid = np.reshape(panels, (nrows, ncols))
            lines = [] if sharey in (False, "none", "col") else [(list(line), "y") for line in grid]
            columns: Any = [] if sharex in (False, "none", "row") else grid.T
            self._labels = [*lines, *((list(column), "x") for column in columns)]
        return panels

    def _stack(self, panels: list[Axes]) -> None:
        """Put the panels below one another, on a page as long as they need."""
        factor = _stack(self, panels)
        if len(panels) * _LEAST_PANEL_INCHES > _MOST_INCHES:
            raise NoNarrowForm("its panels are too many")
        self._frame_at(self.get_figheight() * factor * _PANEL_HEIGHT)

    def _frame_at(self, inches: float) -> None:
        self.set_figheight(min(_MOST_INCHES, inches))
        self.frame(self.get_figheight())

    def subplot_mosaic(  # type: ignore[override]
        self, mosaic: Any, *, sharex: bool = False, sharey: bool = False, **shape: Any
    ) -> dict[str, Axes]:
        """The panels of a mosaic in one column, each as high as its line."""
        named = super().subplot_mosaic(mosaic, sharex=sharex, sharey=sharey, **shape)
        panels = list(named.values())
        self._stack(panels)
        self._labels = [(panels, "y")] if sharey else []
        self._columns = [panels] if sharex else []
        return named

    def subfigures(  # type: ignore[override]
        self, nrows: int = 1, ncols: int = 1, *, height_ratios: Sequence[float] | None = None
    ) -> Any:
        """Parts below one another; each stacks the grid that it is asked for."""
        if ncols > 1:
            raise NoNarrowForm("it has parts beside one another")
        grid = self.add_gridspec(nrows, 1, height_ratios=height_ratios)
        parts: list[Any] = [self.add_subfigure(grid[row]) for row in range(nrows)]
        ratios = np.ones(nrows) if height_ratios is None else np.array(height_ratios)
        inches = self.get_figheight() * ratios / ratios.sum()

        def stacked(row: int, nrows: int = 1, ncols: int = 1, **shape: Any) -> Any:
            panels = FigureBase.subplots(parts[row], nrows, ncols, **shape)
            if ncols > 1:
                inches[row] *= _stack(parts[row], list(np.ravel(panels))) * _PANEL_HEIGHT
                grid.set_height_ratios(inches)
                self._frame_at(inches.sum())
                self._labels = [(list(np.ravel(panels)), "y")] if shape.get("sharey") else []
            return panels

        for row, part in enumerate(parts):
            part.subplots = functools.partial(stacked, row)
        return parts

    def complete_labels(self) -> None:
        """Break long titles and labels.

        Stacked panels get the label of an axis that one of them had for all.
        """
        for panels, way in getattr(self, "_labels", []):
            texts = [text for axes in panels if (text := getattr(axes, f"get_{way}label")())]
            for axes in panels:
                if texts and not getattr(axes, f"get_{way}label")():
                    getattr(axes, f"set_{way}label")(texts[0])
        for panels in getattr(self, "_columns", []):
            # The lowest panel has the label of an axis that all share.
            labels = [axes.xaxis.label for axes in panels]
            text = max((label.get_text() for label in labels), key=len)
            for label in labels:
                label.set_text(text if label is labels[-1] else "")
        for axes in self.axes:
            for text in (axes.title, axes._left_title, axes.xaxis.label):  # type: ignore[attr-defined]
                text.set_text(_broken(text.get_text(), _MOST_LETTERS))
            for text in axes.texts:
                text.set_text(_broken(text.get_text(), _MOST_OF_A_ROW))
            names = [label.get_text() for label in axes.get_yticklabels()]
            broken = [_broken(" ".join(name.split()), _MOST_OF_A_ROW) for name in names]
            room = self.get_figheight() / len(self.axes)
            if broken != names and len(names) * _TWO_LINES_INCHES < room:
                axes.set_yticks(axes.get_yticks(), broken)

    def break_upright_labels(self) -> None:
        """Break the labels beside many panels that share an axis, with their scale."""
        room = self.get_figheight() / max(1, len(self.axes))
        for axes in itertools.chain(*getattr(self, "_columns", [])):
            beside = axes.yaxis.label
            beside.set_text(_broken(beside.get_text(), round(room / _UPRIGHT_LETTER_INCHES)))


def _broken(text: str, letters: int) -> str:
    """A text whose lines have so many letters at most."""
    return "\n".join(part for line in text.splitlines() for part in wrap(line, letters) or [""])


def _stack(page: FigureBase, panels: Sequence[Axes]) -> float:
    """Put the panels of a grid into one column, each as high as its lines.

    How many times as high as the grid the column is.
    """
    specs: list[Any] = [axes.get_subplotspec() for axes in panels]
    ratios = specs[0].get_gridspec().get_height_ratios()
    heights = [sum(ratios[row] for row in spec.rowspan) for spec in specs]
    column = page.add_gridspec(len(panels), 1, height_ratios=heights)
    for row, axes in enumerate(panels):
        axes.set_subplotspec(column[row])
        axes.tick_params(which="both", labelbottom=True, labelleft=True)
        for axis in (axes.xaxis, axes.yaxis):
            axis.offsetText.set_visible(True)
    return float(sum(heights) / sum(ratios))


def cut_off(figure: Figure) -> str:
    """What of a finished figure cannot be read: a text over an edge or over another.

    A panel without room, too.

    Empty: nothing.
    """
    page = figure.bbox
    for axes in figure.axes:
        box = axes.get_position()
        if axes.axison and (box.width < 0.3 or box.height * figure.get_figheight() < 0.5):
            return f"a panel of {box.width:.2f} x {box.height:.2f}"
    for words, box in _texts(figure):
        if box.x0 < page.x0 - _RIM_PIXELS or box.x1 > page.x1 + _RIM_PIXELS:
            return repr(words)
    for axes in figure.axes:
        low, high = sorted(axes.get_ylim())
        labels = [
            label
            for label, at in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
            if low <= at <= high and axes.axison and axes.yaxis.get_tick_params()["labelleft"]
        ]
        for texts in (axes.texts, labels):
            boxes = [text.get_window_extent() for text in texts if text.get_text().strip()]
            for one, other in itertools.combinations(boxes, 2):
                common = Bbox.intersection(one, other)
                smaller = min(one.width * one.height, other.width * other.height)
                covered = common.width * common.height if common else 0.0
                if covered > _MOST_COVERED * smaller:
                    return "a text over another"
    return ""


def _texts(figure: Figure) -> Iterator[tuple[str, Any]]:
    """Every text that is drawn, and where; the numbers of an axis as one."""
    from matplotlib.text import Text

    numbers = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            numbers |= {id(text) for text in axis.findobj(Text)}
            box = axis.get_tightbbox() if axes.axison else None
            if box is not None:
                yield axis.get_label_text(), box
    for text in figure.findobj(Text):
        if id(text) not in numbers and text.get_visible() and text.get_text().strip():
            yield text.get_text(), text.get_window_extent()
