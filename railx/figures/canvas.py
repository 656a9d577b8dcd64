"""The page of a figure: its frame with the fidelity line, and the legend of its panels.

All text has one size. A figure is refused with a legend over a panel or a bar that ends
at an edge; the label of a logarithmic axis says so. Figures are made without pyplot, so
that none stays open. It is written as SVG with real text, light and dark, PNG and PDF:
equal tables give equal files, no file has a date, and each SVG has identifiers of its
name, so that one page can hold several.
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.figures.figure import CanvasSettings
from railx.figures.theme import APART, FAINT, GREY, INK, LINE_POINTS, dark_colour
from railx.io import atomic_path, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Mean width of a character of DejaVu Sans over its size.
_WIDTH = 0.53

#: On top of seaborn's white grid.
_STYLE: dict[str, Any] = {
    "axes.edgecolor": FAINT,
    **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **{f"{way}tick.{kind}.size": 0 for way in "xy" for kind in ("major", "minor")},
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.linewidth": 0.8,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.7,
    "lines.linewidth": LINE_POINTS,
    "lines.markersize": 5,
    "patch.edgecolor": "white",
    "patch.linewidth": 0.6,
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "hatch.linewidth": 0.6,
}
#: What matplotlib sizes by itself: all of it gets the one size.
_TEXTS = (
    *("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"),
    *("legend.fontsize", "legend.title_fontsize", "figure.titlesize", "figure.labelsize"),
)


@contextmanager
def canvas(
    settings: CanvasSettings, output: Path, subtitle: str, footnote: str, title: str
) -> Iterator[Figure]:
    """A figure with a title above and the fidelity line below.

    It is saved as ``output`` with all endings of :func:`save` when the block ends. The
    layout engine keeps the axes, their labels and legends between the bands of text.
    """
    from matplotlib.figure import Figure

    with _page(Figure, settings, output, subtitle, footnote, title) as figure:
        yield figure
        say_compressed(figure)
        settle(figure)
        refuse_hidden(figure)
        save(figure, output, settings.dpi)


@contextmanager
def narrow_canvas(
    settings: CanvasSettings, output: Path, subtitle: str, footnote: str, title: str
) -> Iterator[Figure]:
    """The same for the narrow form, saved as ``output``.narrow.svg alone.

    Raises NoNarrowForm where the panels cannot be stacked or the text does not fit.
    """
    from railx.figures.narrow import NARROW_INCHES, NarrowFigure, NoNarrowForm, cut_off

    settings = replace(settings, width_inches=NARROW_INCHES)
    with _page(NarrowFigure, settings, output, subtitle, footnote, title) as figure:
        figure.frame = lambda height_inches: _frame(
            figure, replace(settings, height_inches=height_inches), title, subtitle, footnote
        )
        yield figure
        figure.complete_labels()
        with warnings.catch_warnings(action="error", category=UserWarning):
            try:
                say_compressed(figure)
                figure.break_upright_labels()
                settle(figure)
                refuse_hidden(figure)
            except (UserWarning, ValueError) as cramped:
                raise NoNarrowForm(str(cramped)) from None
        if outside := cut_off(figure):
            raise NoNarrowForm(f"it does not fit: {outside}")
        write_text(output.with_suffix(".narrow.svg"), _svg(figure, f"{output.stem}-narrow"))


@contextmanager
def _page(
    kind: Any, settings: CanvasSettings, output: Path, subtitle: str, footnote: str, title: str
) -> Iterator[Any]:
    """An empty figure with its texts, in the style of all figures."""
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    style: Any = {**sns.axes_style("whitegrid"), **_STYLE, "svg.hashsalt": output.stem}
    style |= dict.fromkeys(_TEXTS, settings.text_points)
    with mpl.rc_context(style):
        size = (settings.width_inches, settings.height_inches)
        figure = kind(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        _frame(figure, settings, title, subtitle, footnote)
        yield figure


def _frame(
    figure: Figure, settings: CanvasSettings, title: str, subtitle: str, footnote: str
) -> None:
    """Write the texts above and below the panels, in place of those that are there."""
    for text in list(figure.texts):
        text.remove()
    size = settings.text_points
    inch = 1 / settings.height_inches
    left = 0.12 / settings.width_inches
    wide = int((settings.width_inches - 0.24) * 72 / (_WIDTH * size))
    flowing = (" ".join(text.split()) for text in (subtitle, footnote))
    subtitles, notes = (textwrap.wrap(text, wide) for text in flowing)
    line = size * 1.35 / 72 * inch
    top = 1 - 0.1 * inch
    titles = textwrap.wrap(title, int(0.88 * wide))
    figure.text(left, top, "\n".join(titles), fontweight="bold", va="top", linespacing=1.25)
    top -= line * (len(titles) + 0.15)
    figure.text(left, top, "\n".join(subtitles), color=GREY, va="top", linespacing=1.25)
    top -= line * len(subtitles) + 0.06 * inch
    figure.text(left, 0.08 * inch, "\n".join(notes), color=GREY, va="bottom", linespacing=1.25)
    bottom = line * len(notes) + 0.14 * inch
    engine = figure.get_layout_engine()
    assert engine is not None
    room: dict[str, Any] = {"rect": (left, bottom, 1 - 2 * left, top - bottom)}
    engine.set(**room, w_pad=0.04, h_pad=0.06, wspace=0.03, hspace=0.04)  # type: ignore[call-arg]


#: What a viewer shows the text in: the first is what the figure is laid out with, the
#: others are as wide or narrower.
FONTS = "'DejaVu Sans', Verdana, Geneva, sans-serif"


def save(figure: Figure, output: Path, dpi: int) -> None:
    """Write the figure as SVG, light and dark, PNG and PDF."""
    light = _svg(figure, output.stem)
    write_text(output.with_suffix(".svg"), light)
    write_text(output.with_suffix(".dark.svg"), dark_svg(light, output.stem))
    with atomic_path(output.with_suffix(".png")) as beside:
        figure.savefig(beside, format="png", dpi=dpi, metadata={"Software": None})
    save_pdf(figure, output)


def save_pdf(figure: Figure, output: Path) -> None:
    """Write the figure as a PDF without a date, its fonts embedded."""
    undated = {"CreationDate": None, "Creator": None, "Producer": None}
    with atomic_path(output.with_suffix(".pdf")) as beside:
        figure.savefig(beside, format="pdf", metadata=undated)


def _svg(figure: Figure, name: str) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return tidy_svg(drawn.getvalue(), name)


def tidy_svg(text: str, name: str) -> str:
    """An SVG of matplotlib's that a page can embed beside others.

    Only elements that are referred to have an identifier, which starts with ``name``.
    Style rules of the document become attributes. Comments and metadata are removed.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    look = f"font-family: {FONTS}; stroke-linejoin: round; stroke-linecap: butt"
    text = text.replace("<svg ", f'<svg style="{look}" ', 1)
    text = re.sub(r"(font: [^;\"]*?px) [^;\"]+", r"\1 inherit", text)
    used = dict.fromkeys(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    identifiers = {old: f"{name}-{i}" for i, old in enumerate(used)}
    text = re.sub(r' id="([^"]+)"', lambda old: old[0] if old[1] in identifiers else "", text)
    names = r'( id="|url\(#|href="#)([^)"]+)'
    return re.sub(names, lambda old: old[1] + identifiers[old[2]], text)


def dark_svg(light: str, name: str) -> str:
    """The same SVG with the colours of a dark page."""
    text = re.sub(r"(?<=[:\"\s])#[0-9a-f]{6}\b", lambda match: dark_colour(match[0]), light)
    return re.sub(rf'(id="|url\(#|href="#){re.escape(name)}-', rf"\1{name}-dark-", text)


def settle(figure: Figure) -> None:
    """Lay the panels out once and round their positions.

    The solver's last digits depend on the order of objects in memory. Rounded positions
    give equal files for equal tables.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (
            round(float(value), 5) for value in axes.get_position(original=True).bounds
        )
        axes.set_position((left, bottom, width, height))
        _part_labels(axes, figure.dpi / 72)


def _part_labels(axes: Axes, point: float) -> None:
    """Move the labels of marks off one another and, where there is room, off marks.

    The highest first; each to the right or left of its mark, at most six lines up or
    down, in the panel.
    """
    from matplotlib.transforms import Bbox

    marks = [
        Bbox.from_extents(x - 3 * point, y - 3 * point, x + 3 * point, y + 3 * point)
        for line in axes.lines
        if line.get_marker() not in ("", "None", None)
        for x, y in line.get_transform().transform(line.get_xydata())
    ]
    labels: list[Any] = [text for text in axes.texts if text.get_label() == APART]
    labels.sort(key=lambda text: tuple(axes.transData.transform(text.xy))[::-1], reverse=True)
    levels = sorted(range(-6, 7), key=lambda level: (abs(level), -level))
    placed: list[Bbox] = []
    for text in labels:
        ways: list[Any] = []
        for level, side in itertools.product(levels, ("left", "right")):
            text.set_horizontalalignment(side)
            text.xyann = (7 if side == "left" else -7, 10 * level)
            box = text.get_window_extent()
            outside = box.x0 < axes.bbox.x0 or box.x1 > axes.bbox.x1
            outside |= box.y0 < axes.bbox.y0 or box.y1 > axes.bbox.y1
            faults = (box.count_overlaps(placed) + outside, box.count_overlaps(marks))
            ways.append((faults, len(ways), side, text.xyann, box))
        _, _, side, text.xyann, box = min(ways, key=lambda way: way[:2])
        text.set_horizontalalignment(side)
        placed.append(box)
        if text.xyann[1]:
            line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
            axes.annotate("", text.xy, text.xyann, textcoords="offset points", arrowprops=line)


def say_compressed(figure: Figure) -> None:
    """Name the scale in the label of every axis that is not linear.

    Raises ValueError where neither the axis nor one that shares it has a label.
    """
    for axes, way in itertools.product(figure.axes, "xy"):
        axis = getattr(axes, f"{way}axis")
        if axis.get_scale() == "linear" or not axes.get_visible() or not axes.axison:
            continue
        above = ""
        if axis.get_scale() == "symlog":
            above = f" above {axis.get_transform().linthresh:g}"
        said = [label for label in _labels(axes, way) if label.get_text()]
        if not said:
            got = f"panel {_title(axes)!r}: the {way} axis is compressed and has no label"
            raise ValueError(f"{got}; allowed: a label")
        for label in said:
            if f"logarithmic{above}" not in label.get_text():
                label.set_text(f"{label.get_text()}, logarithmic{above}")


def _labels(axes: Axes, way: str) -> Iterator[Any]:
    """Labels of an axis, of those that share it, and of the figures they stand in."""
    yield getattr(axes, f"{way}axis").label
    for other in getattr(axes, f"get_shared_{way}_axes")().get_siblings(axes):
        if other is not axes and other.get_visible():
            yield getattr(other, f"{way}axis").label
    holder: Any = axes.figure
    while holder is not None:
        if total := getattr(holder, f"_sup{way}label", None):
            yield total
        holder = getattr(holder, "_parent", None)


def refuse_hidden(figure: Figure) -> None:
    """Raise ValueError for a legend that covers a panel and for a bar cut by an edge.

    The figure is laid out.
    """
    from matplotlib.container import BarContainer
    from matplotlib.legend import Legend
    from matplotlib.transforms import Bbox

    panels = [axes for axes in figure.axes if axes.get_visible()]
    legends: list[Any] = figure.findobj(Legend)
    for legend, axes in itertools.product(legends, panels):
        covered = Bbox.intersection(legend.get_window_extent(), axes.get_window_extent())
        if covered and covered.width > 1 and covered.height > 1:
            where = f"panel {_title(legend.axes)!r}" if legend.axes else "figure"
            allowed = "share_legend, or a place outside"
            raise ValueError(f"{where}: the legend covers a panel; allowed: {allowed}")
    for axes in panels:
        right, top = max(axes.get_xlim()), max(axes.get_ylim())
        for bars in axes.containers:
            if not isinstance(bars, BarContainer):
                continue
            for box in (bar.get_bbox() for bar in bars.patches):
                horizontal = bars.orientation == "horizontal"
                end, edge = (box.xmax, right) if horizontal else (box.ymax, top)
                if end > edge + 1e-9 * abs(edge):
                    got = f"panel {_title(axes)!r}: a bar of {end:g} ends at the edge, {edge:g}"
                    raise ValueError(f"{got}; allowed: wider limits, or cut_bars")


def _title(axes: Axes) -> str:
    return axes.get_title(loc="left") or axes.get_title()
