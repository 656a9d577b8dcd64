"""What a figure declares: its settings, words, tables and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from railx.figures.settings import CanvasSettings

__all__ = ["Figure", "FigureFiles", "FigureInput"]

#: What a figure is drawn from: the files under each input key.
FigureFiles = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class FigureInput:
    """A table that a figure reads.

    ``key`` is its name among the inputs of ``draw``. ``table`` names it by stage and
    output: ``network.bounds`` are the bounds of every topology, or of those in the
    settings' ``only``. ``required`` is false where the figure does without it.
    ``plan_kind`` leaves out the plans of another kind (None: no plan is left out).
    """

    key: str
    table: str
    required: bool = True
    plan_kind: Literal["sequence_parallel", "pipeline"] | None = None


@dataclass(frozen=True)
class Figure:
    """A figure, as its module declares it under the name ``FIGURE``.

    ``alternative_text`` replaces it for a reader who cannot see it. ``caption`` is
    reStructuredText. ``draw`` takes the settings, the files under each input key and
    the path of the image, which it writes with .svg and .png. It raises ValueError for
    a table that does not hold what it needs.
    """

    settings: type[CanvasSettings]
    title: str
    alternative_text: str
    caption: str
    inputs: tuple[FigureInput, ...]
    draw: Callable[[Any, FigureFiles, Path], None]
