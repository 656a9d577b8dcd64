"""What a figure declares: its settings, title, paper, tables and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from railx.figures.settings import CanvasSettings

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Drawn", "Figure", "FigureFiles", "FigureInput"]

#: What a figure is drawn from: the files under each input key.
FigureFiles = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class FigureInput:
    """A table that a figure reads.

    ``key`` is its name among the inputs of ``draw``. ``table`` names it by stage and
    output: ``network.bounds`` are the bounds of every topology, or of those in the
    settings' ``only``. ``published`` names a file of resources/published instead.
    ``columns`` are those that it must have. ``required`` is false where the figure does
    without it. ``plan_kind`` leaves out the plans of another kind (None: no plan is
    left out). Raises ValueError where both or neither of the sources are given.
    """

    key: str
    table: str = ""
    published: str = ""
    columns: tuple[str, ...] = ()
    required: bool = True
    plan_kind: Literal["sequence_parallel", "pipeline"] | None = None

    def __post_init__(self) -> None:
        if bool(self.table) == bool(self.published):
            raise ValueError(
                f"input {self.key}: got table {self.table!r} and published {self.published!r};"
                " allowed: one of them"
            )


@dataclass(frozen=True)
class Drawn:
    """A figure once it is drawn: the words to it and what it shows.

    ``caption`` is reStructuredText and ``alternative_text`` replaces the figure for a
    reader who cannot see it; both are written from the data. ``data`` is what is drawn,
    a row a mark. ``title`` and ``paper`` stand for the figure's own where one kind of
    figure is drawn from different tables; empty: the figure's.
    """

    caption: str
    alternative_text: str
    data: pd.DataFrame
    title: str = ""
    paper: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure, as its module declares it under the name ``FIGURE``.

    ``paper`` is a key of resources/papers.yaml, or ``all``. ``draw`` takes the
    settings, the files under each input key and the path of the image, which it writes
    with each ending (``railx.figures.theme.canvas``). It raises ValueError for a table
    that does not hold what it needs.
    """

    settings: type[CanvasSettings]
    title: str
    paper: str
    inputs: tuple[FigureInput, ...]
    draw: Callable[[Any, FigureFiles, Path], Drawn]
