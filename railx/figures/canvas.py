"""The page of a figure: its frame with the fidelity line, and the legend of its panels.

All text has one size. A figure is refused with a legend over a panel or a bar that ends
at an edge; the label of a logarithmic axis says so. Figures are made without pyplot, so
that none stays open.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.figures.figure import CanvasSettings
from railx.figures.honest import refuse_hidden, say_compressed
from railx.figures.save import save, save_narrow, settle
from railx.figures.theme import FAINT, GREY, INK, LINE_POINTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["canvas", "narrow_canvas"]


#: Mean width of a character of DejaVu Sans over its size.
_WIDTH = 0.53

#: On top of seaborn's white grid.
_STYLE: dict[str, Any] = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.linewidth": 0.8,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.7,
    "lines.linewidth": LINE_POINTS,
    "lines.markersize": 5,
    "patch.edgecolor": "white",
    "patch.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "text.color": INK,
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
    "font.size",
    "axes.titlesize",
    "axes.labelsize",
    "xtick.labelsize",
    "ytick.labelsize",
    "legend.fontsize",
    "legend.title_fontsize",
    "figure.titlesize",
    "figure.labelsize",
)


@contextmanager
def canvas(
    settings: CanvasSettings, output: Path, subtitle: str, footnote: str, title: str
) -> Iterator[Figure]:
    """A figure with a title above and the fidelity line below.

    It is saved as ``output`` with all endings of ``railx.figures.save`` when the block
    ends. The layout engine keeps the axes, their labels and legends between the two
    bands of text.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    output = Path(output)
    with mpl.rc_context(_style(settings, output)):
        figure = Figure(
            figsize=(settings.width_inches, settings.height_inches), layout="constrained"
        )
        FigureCanvasAgg(figure)
        _frame(figure, settings, title, subtitle, footnote)
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
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from railx.figures.narrow import NARROW_INCHES, NarrowFigure, NoNarrowForm, cut_off

    settings = replace(settings, width_inches=NARROW_INCHES)
    with mpl.rc_context(_style(settings, output)):
        figure = NarrowFigure(figsize=(NARROW_INCHES, settings.height_inches), layout="constrained")
        FigureCanvasAgg(figure)

        def frame(height_inches: float) -> None:
            for text in list(figure.texts):
                text.remove()
            sized = replace(settings, height_inches=height_inches)
            _frame(figure, sized, title, subtitle, footnote)

        figure.frame = frame
        frame(settings.height_inches)
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
        save_narrow(figure, output)


def _style(settings: CanvasSettings, output: Path) -> Any:
    import seaborn as sns

    return {
        **sns.axes_style("whitegrid"),
        **_STYLE,
        **dict.fromkeys(_TEXTS, settings.text_points),
        "svg.hashsalt": output.stem,
    }


def _frame(
    figure: Figure, settings: CanvasSettings, title: str, subtitle: str, footnote: str
) -> None:
    size = settings.text_points
    inch = 1 / settings.height_inches
    left = 0.12 / settings.width_inches
    wide = int((settings.width_inches - 0.24) * 72 / (_WIDTH * size))
    subtitles, notes = (
        textwrap.wrap(" ".join(text.split()), wide) for text in (subtitle, footnote)
    )
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
    engine.set(
        rect=(left, bottom, 1 - 2 * left, top - bottom),
        w_pad=0.04,
        h_pad=0.06,
        wspace=0.03,
        hspace=0.04,
    )  # type: ignore[call-arg]
