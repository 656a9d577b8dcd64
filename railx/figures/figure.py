"""What a figure declares: settings, title, paper, input tables and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from railx.figures.types import DataFrame, Page
from railx.settings import Between

if TYPE_CHECKING:
    from railx.figures.tables import Tables

__all__ = [
    "AxisScale",
    "Canvas",
    "CanvasSettings",
    "Drawn",
    "Figure",
    "FigureFiles",
    "FigureInput",
    "Height",
]


AxisScale = Literal["linear", "log"]
Height = Annotated[float, Between(2, 30)]
#: What a figure is drawn from: the files under each input key.
FigureFiles = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class CanvasSettings:
    """Size, resolution and type size of a figure."""

    figure: str
    """Which figure it is; a ``Literal`` with the figure's name in each of them."""

    width_inches: Annotated[float, Between(3, 30)] = 10
    """Width on paper in inches."""

    height_inches: Height = 6
    """Height on paper in inches."""

    dpi: Annotated[int, Between(50, 600)] = 150
    """Pixels per inch of the PNG."""

    text_points: Annotated[float, Between(6, 16)] = 9.5
    """Size of all text in points, at the width on paper."""


class Canvas(Protocol):
    """Opens the page of a figure and saves it at the end of the block.

    ``title`` replaces the figure's own.
    """

    def __call__(
        self, subtitle: str, footnote: str, title: str = ...
    ) -> AbstractContextManager[Page]: ...


@dataclass(frozen=True)
class FigureInput:
    """A table that a figure reads.

    ``key`` is its name among the inputs of ``draw``. ``table`` names it by stage and
    output: ``network.bounds`` are the bounds of every topology, or of those in the
    settings' ``only``. ``columns`` are those that it must have, separated by spaces.
    ``published`` names a file of resources/published instead of a table. ``required``
    is false where the figure does without it. ``plan_kind`` leaves out the plans of
    another kind (None: no plan is left out). Raises ValueError where both or neither of
    the sources are given.
    """

    key: str
    table: str = ""
    columns: str = ""
    published: str = ""
    required: bool = True
    plan_kind: Literal["sequence_parallel", "pipeline"] | None = None

    def __post_init__(self) -> None:
        if bool(self.table) == bool(self.published):
            raise ValueError(
                f"input {self.key}: got table {self.table!r} and published {self.published!r};"
                " allowed: one of them"
            )

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that the table must have."""
        return tuple(self.columns.split())


@dataclass(frozen=True)
class Drawn:
    """The words and the data of a figure that has been drawn.

    ``caption`` is reStructuredText and ``alternative_text`` replaces the figure for a
    reader who cannot see it; both are written from the data. ``data`` has a row for
    each mark. ``title`` and ``paper`` replace the figure's own where one kind of figure
    is drawn from different tables; empty: the figure's.
    """

    caption: str
    alternative_text: str
    data: DataFrame
    title: str = ""
    paper: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure, as its module declares it under the name ``FIGURE``.

    ``paper`` is a key of resources/papers.yaml, or ``all``. ``draw`` takes the
    settings, the tables of ``inputs`` and the canvas. It raises UserError for a table
    that lacks what it needs.
    """

    settings: type[CanvasSettings]
    title: str
    paper: str
    inputs: tuple[FigureInput, ...]
    draw: Callable[[Any, Tables, Canvas], Drawn]
