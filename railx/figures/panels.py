"""Parts of panels that figures share: ticks, rows of names, texts beside marks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from railx.figures.figure import CanvasSettings
from railx.figures.theme import APART, INK, label
from railx.figures.types import Axes, DataFrame, Page
from railx.figures.words import quantity

#: Mean width of a bold character of DejaVu Sans over its size.
_BOLD_WIDTH = 0.65


def ticks(
    axis: Any, at: Iterable[float] | None = None, text: Any = quantity, base: float | None = None
) -> None:
    """Write the ticks of an axis as numbers, those in ``at`` alone where it is given.

    ``text`` is a format or a function. There are no minor ticks. The axis
    is logarithmic where a ``base`` is given.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    if base is not None:
        getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=base)
    if at is not None:
        axis.set_major_locator(FixedLocator(list(at)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(text if isinstance(text, str) else lambda value, _: text(value))


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten in a range."""
    values = [digit * 10.0**power for power in range(8) for digit in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def name_rows(
    axes: Axes, names: Sequence[str], *, above: float | None = 0.5, below: float = 0.5
) -> None:
    """A row for each name, the first on top; ``above`` and ``below`` are free rows.

    Where ``above`` is None the margins are those of the bars.
    """
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False, axis="y")
    if above is not None:
        axes.set_ylim(len(names) - 1 + below, -above)
    elif not axes.yaxis_inverted():  # panels may share the axis
        axes.invert_yaxis()


def beside(
    axes: Axes, text: str, x: Any, y: Any, right: float = 7, up: float = 0, **style: Any
) -> None:
    """A text beside a point, ``right`` and ``up`` by so many typographic points."""
    style = {"textcoords": "offset points", "va": "center", **style}
    axes.annotate(text, (x, y), (right, up), **style)


def beside_apart(axes: Axes, text: str, x: Any, y: Any) -> None:
    """A text beside a point that moves off others when the page is laid out."""
    beside(axes, text, x, y, label=APART)


def at_edge(axes: Axes, text: str, y: Any, left: float = 6, up: float = 0, **style: Any) -> None:
    """A text that ends at the right edge of the panel, at a height of its data."""
    beside(axes, text, 1, y, -left, up, ha="right", xycoords=("axes fraction", "data"), **style)


def stacked(
    axes: Axes, parts: DataFrame, colours: Mapping[Any, Any], height: float, **style: Any
) -> None:
    """A horizontal bar for each row, at 0, 1 and so on, of its columns in turn."""
    left = 0.0 * parts.sum(axis=1)
    for name, values in parts.items():
        look = {"color": colours[name], "label": label(name), "height": height, **style}
        axes.barh(range(len(parts)), values, left=left, **look)
        left = left + values


def diagonal(axes: Axes, points: DataFrame) -> None:
    """Equal logarithmic axes around points and the line on which both values agree."""
    ends = (0.8 * float(points.min().min()), 1.25 * float(points.max().max()))
    axes.plot(ends, ends, color=INK, linewidth=1, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")


def tiles(
    page: Page,
    titles: Sequence[str],
    columns: int,
    settings: CanvasSettings,
    x: str = "",
    y: str = "",
    **shared: Any,
) -> list[Any]:
    """A panel under each title, line by line, ``columns`` side by side.

    The lowest panel of each column has the label ``x``, the first of each line ``y``;
    the rest of the page is empty.
    """
    grid = page.subplots(-(-len(titles) // columns), columns, squeeze=False, **shared)
    panels = list(grid.flat)[: len(titles)]
    for axes in grid.flat[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(panel_title(title, columns, settings))
    for axes in panels[::columns]:
        axes.set_ylabel(y)
    for axes in panels[-columns:]:
        axes.set_xlabel(x)
        axes.tick_params(labelbottom=True)
    return panels


def time_unit(longest_ms: float) -> tuple[str, float]:
    """The unit of a time axis, and the milliseconds in it."""
    return ("s", 1000.0) if longest_ms >= 10_000 else ("ms", 1.0)


def patch(facecolor: Any, **style: Any) -> Any:
    """A filled area for a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=facecolor, **style)


def panel_title(text: str, panels: int, settings: CanvasSettings) -> str:
    """A panel's title broken into lines that fit.

    ``panels`` panels stand side by side (bold type, medium size).
    """
    room_inches = settings.width_inches / panels - 0.75
    wide = max(10, int(room_inches * 72 / (_BOLD_WIDTH * settings.text_points)))
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, wide))


def share_legend(page: Page, entries: Mapping[str, Any], columns: int, *panels: Axes) -> None:
    """One legend for all panels, between them and the footnote.

    It has what ``panels`` have drawn with a label, then ``entries``: an artist, or the
    style of a line, by its text. The panels move up by the height of the legend.
    """
    from matplotlib.lines import Line2D

    artists: dict[str, Any] = {}
    for axes in panels:
        handles, texts = axes.get_legend_handles_labels()
        artists |= zip(texts, handles, strict=True)
    for text, entry in entries.items():
        artists[text] = Line2D([], [], **entry) if isinstance(entry, Mapping) else entry
    engine = page.get_layout_engine()
    assert engine is not None
    left, bottom, width, height = engine.get()["rect"]
    for columns_that_fit in range(columns, 0, -1):
        legend = page.legend(
            list(artists.values()),
            list(artists),
            loc="lower left",
            bbox_to_anchor=(left, bottom),
            ncols=columns_that_fit,
            columnspacing=1.4,
            handlelength=1.4,
            borderaxespad=0.1,
        )
        extent = legend.get_window_extent()
        if extent.x1 <= page.bbox.x1 or columns_that_fit == 1:
            break
        legend.remove()
    legend.set_in_layout(False)
    taken = extent.height / page.bbox.height
    engine.set(rect=(left, bottom + taken, width, height - taken))  # type: ignore[call-arg]
