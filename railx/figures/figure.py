"""What a figure declares: settings, title, paper, input tables and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, Literal, cast, get_type_hints

from railx.figures.tables import FigureInput
from railx.figures.tables import Tables as Tables
from railx.figures.types import DataFrame, Page
from railx.settings import Between, NonNegative

AxisScale = Literal["linear", "log"]
Height = Annotated[float, Between(2, 30)]
#: Caption and alternative text of a figure.
Texts = tuple[str, str]
#: Opens the page of a figure and saves it at the end of the block: ``canvas(subtitle,
#: fidelities, note)``, where ``shows`` is that of :func:`fidelity_line` and ``title``
#: replaces the figure's own.
Canvas = Callable[..., AbstractContextManager[Page]]


@dataclass(frozen=True)
class CanvasSettings:
    """Size, resolution and type size of a figure."""

    figure: str
    """Which figure it is."""
    width_inches: Annotated[float, Between(3, 30)] = 10
    """Width on paper in inches."""
    height_inches: Height = 6
    """Height on paper in inches."""
    dpi: Annotated[int, Between(50, 600)] = 150
    """Pixels per inch of the PNG."""
    text_points: Annotated[float, Between(6, 16)] = 9.5
    """Size of all text in points, at the width on paper."""


@dataclass(frozen=True)
class Choice(CanvasSettings):
    """Settings of a figure that shows some of what its tables hold."""

    only: tuple[str, ...] = ()
    """Topologies, runs, plans or other items to show, in that order; empty: all that
    there are."""


@dataclass(frozen=True)
class PlanChoice(Choice):
    """Settings of a figure that shows one iteration of some of the plans."""

    iteration: Annotated[int, NonNegative()] = 0
    """Iteration to show."""


@dataclass(frozen=True)
class Drawn:
    """The words and the data of a figure that has been drawn.

    ``caption`` is reStructuredText and ``alternative_text`` replaces the figure for a
    reader who cannot see it; both are paragraphs written from the data, and white space
    in them is one space. ``data`` has a row for each mark. ``title`` and ``paper``
    replace the figure's own where they depend on the settings; empty: the figure's.
    """

    caption: str
    alternative_text: str
    data: DataFrame
    title: str = ""
    paper: str = ""


#: Draws a figure from its settings, the tables of its inputs and the canvas.
Draw = Callable[[Any, Tables, Canvas], Drawn]


@dataclass(frozen=True)
class Figure:
    """A figure, as its module declares it under its name.

    ``paper`` is a key of resources/papers.yaml, or ``all``. ``draw`` raises UserError
    for a table that lacks what it needs.
    """

    settings: type[CanvasSettings]
    title: str
    paper: str
    inputs: tuple[FigureInput, ...]
    draw: Draw


def figure(title: str, paper: str, /, *, height: float) -> Callable[[Draw], Figure]:
    """Declare the figure that the decorated function draws; it has the function's name.

    The type of the function's first argument has the options of the figure. ``height``
    is the default of its height on paper in inches. :func:`reads` declares its tables.
    """

    def declared(draw: Draw) -> Figure:
        return Figure(_settings(draw, height), title, paper, vars(draw)["inputs"], draw)

    return declared


def reads(**sources: str) -> Callable[[Draw], Draw]:
    """Declare the tables that a figure reads as ``key="stage.output: columns"``.

    :meth:`FigureInput.of` has the syntax of a source.
    """
    inputs = tuple(FigureInput.of(key, source) for key, source in sources.items())

    def declared(draw: Draw) -> Draw:
        vars(draw)["inputs"] = inputs
        return draw

    return declared


def _settings(draw: Draw, height: float) -> type[CanvasSettings]:
    """The options of a figure with its name and height as defaults."""
    options: type[CanvasSettings] = get_type_hints(draw)["settings"]
    name, literal = draw.__name__, cast("Any", Literal)
    fields = [("figure", literal[name], name), ("height_inches", Height, height)]
    has_options = options.__module__ == draw.__module__
    words = options.__qualname__ if has_options else f"{name.title().replace('_', '')}Settings"
    # Without options of its own the figure's docstring describes the class.
    described = {} if has_options else {"described_by": staticmethod(draw)}
    settings = make_dataclass(words, fields, bases=(options,), namespace=described, frozen=True)
    # Descriptions of fields are looked up in the source by module and class.
    settings.__module__, settings.__qualname__ = draw.__module__, words
    return settings
