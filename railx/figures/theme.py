"""The look that all figures share: type, colours, the frame.

All text has one size. Colours stay with what they stand for: a topology family, planner
or fabric mode has the same colour in every figure. The colour-blind can tell them
apart, and they are dark enough to be seen on white. The frame has the fidelity line. A
figure is refused with a legend over a panel or a bar that ends at an edge; a
logarithmic axis says so by itself. Figures are made without pyplot, so that nothing is
left open. The plotting libraries are imported when something is drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from railx.figures.contrast import contrast
from railx.figures.honest import refuse_hidden, say_compressed
from railx.figures.save import save, settle
from railx.figures.settings import CanvasSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "DERIVED",
    "FAINT",
    "GREY",
    "INK",
    "LINE_POINTS",
    "MODE_LABELS",
    "PALETTE",
    "PUBLISHED",
    "PUBLISHED_MARK",
    "canvas",
    "colours",
    "degree_colours",
    "label",
    "lighter",
    "panel_title",
    "published_handle",
    "published_line",
    "published_marks",
    "quantity",
    "share_legend",
    "text_colour",
]

#: The order in which unnamed things take their colours. Each has a contrast of 3 or
#: more with white.
PALETTE: tuple[str, ...] = (
    "#0072b2",
    "#b58a13",
    "#33825a",
    "#cf73a1",
    "#004b68",
    "#ce3700",
    "#6f4000",
    "#573a99",
)
INK = "#22272e"
GREY = "#626a76"
#: Lines that only guide the eye: grid, edges of panels.
FAINT = "#868e99"
#: The one width of a line that stands for data.
LINE_POINTS = 1.8

#: The word for published numbers in every legend, and how they are drawn.
PUBLISHED = "published"
#: The word for what follows from a paper by arithmetic; drawn in grey.
DERIVED = "derived from the paper"
PUBLISHED_MARK: dict[str, Any] = {
    "marker": "D",
    "markersize": 5.5,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 1.3,
    "linestyle": "none",
}
PUBLISHED_LINE: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.3}

#: Mean width of a character of DejaVu Sans over its size, plain and bold.
_WIDTH, _BOLD_WIDTH = 0.53, 0.65

_NAMED = {
    "railx_hyperx": "#0072b2",
    "railx_torus": "#004b68",
    "torus_2d": "#b58a13",
    "fat_tree": "#626a76",
    "rail_optimised": "#626a76",
    "opus_rails": "#ce3700",
    "static": "#626a76",
    "flexsp": "#33825a",
    "pipeline": "#cf73a1",
    "electrical": "#626a76",
    "on_demand": "#ce3700",
    "provisioned": "#0072b2",
}
_LABELS = {
    "railx": "RailX",
    "opus": "Opus",
    "infinipipe": "InfiniPipe",
    "railx_hyperx": "RailX 2D HyperX",
    "railx_torus": "RailX torus",
    "torus_2d": "2D torus",
    "fat_tree": "Fat tree",
    "railx_split": "RailX split",
    "railx_mixed": "RailX mixed",
    "railx_dragonfly": "RailX Dragonfly",
    "railx_twisted_torus": "RailX twisted torus",
    "hammingmesh": "HammingMesh",
    "torus_3d": "3D torus",
    "tpu_v4": "TPUv4",
    "dragonfly": "Dragonfly",
    "hyperx": "HyperX",
    "rail_only": "Rail-only",
    "rail_optimised": "Rail-optimised",
    "opus_rails": "Opus rails",
    "opus_400g": "Opus 400G",
    "static": "Static",
    "flexsp": "FlexSP",
    "pipeline": "Pipeline",
    "wikipedia": "Wikipedia",
    "h200": "H200",
    "gb200": "GB200",
    "ocs_port": "OCS port",
    "stdlib": "Python standard library",
    "github": "GitHub",
    "github_like": "GitHub-like",
    "commoncrawl": "CommonCrawl",
    "commoncrawl_like": "CommonCrawl-like",
}
MODE_LABELS = {
    "electrical": "Electrical (no switching)",
    "on_demand": "On demand",
    "provisioned": "Provisioned",
}

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
    settings: CanvasSettings, output: Path, title: str, subtitle: str, footnote: str
) -> Iterator[Figure]:
    """A figure with a title above and the fidelity line below.

    It is saved as ``output`` with each ending of ``railx.figures.save`` when the block
    ends. The layout engine keeps the axes, their labels and legends between the two
    bands of text.
    """
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    output = Path(output)
    style: Any = {
        **sns.axes_style("whitegrid"),
        **_STYLE,
        **dict.fromkeys(_TEXTS, settings.text_points),
        "svg.hashsalt": output.stem,
    }
    with mpl.rc_context(style):
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


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: its own, else the next of the palette not yet used.

    ``fat_tree_full`` takes that of ``fat_tree``.
    """
    chosen: dict[str, str] = {}
    distinct = list(dict.fromkeys(names))
    for name in distinct:
        own = _NAMED.get(_stem(name, _NAMED))
        if own is not None and own not in chosen.values():
            chosen[name] = own
    free = [colour for colour in PALETTE if colour not in chosen.values()] or list(PALETTE)
    others = [name for name in distinct if name not in chosen]
    chosen |= {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: chosen[name] for name in distinct}


def degree_colours(degrees: Iterable[int], largest: int) -> dict[int, str]:
    """Colours of sequence-parallel degrees, light to dark.

    They darken with the logarithm of the degree up to ``largest``. The scale belongs to
    ``largest`` alone, so that two plans on the same devices can be compared.
    """
    import seaborn as sns

    steps = max(largest.bit_length(), 2)
    scale = sns.color_palette("YlGnBu", n_colors=steps + 3).as_hex()[2:]
    return {
        degree: scale[min(degree.bit_length() - 1, len(scale) - 1)]
        for degree in sorted(set(degrees))
    }


def label(name: str) -> str:
    """A name as a reader sees it.

    Known ones are as the papers write them (also in front of a longer name), others
    have spaces.
    """
    if name in MODE_LABELS:
        return MODE_LABELS[name]
    stem = _stem(name, _LABELS)
    rest = name[len(stem) :].strip("_")
    rest = _LABELS.get(rest, rest.replace("_", " "))
    if not stem:
        return rest[:1].upper() + rest[1:]
    return f"{_LABELS[stem]}, {rest}" if rest else _LABELS[stem]


def lighter(colour: str, share: float) -> tuple[float, float, float]:
    """The colour mixed with ``share`` (0 to 1) of white."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return (red + (1 - red) * share, green + (1 - green) * share, blue + (1 - blue) * share)


def text_colour(fill: str) -> str:
    """White or ink, whichever stands out more from a filled area ``#rrggbb``."""
    return max(("#ffffff", INK), key=lambda text: contrast(text, fill))


def published_marks(axes: Axes, x: Any, y: Any, **style: Any) -> None:
    """Published numbers: hollow diamonds in ink, everywhere the same."""
    axes.plot(x, y, **{**PUBLISHED_MARK, "zorder": 5, **style})


def published_line(
    axes: Axes,
    value: float,
    across: Literal["x", "y"],
    span: tuple[float, float] | None = None,
    **style: Any,
) -> None:
    """A published number as a dashed line in ink.

    ``across`` is the axis that it is a value of; ``span`` says from where to where it
    goes on the other (None: all of it).
    """
    look: dict[str, Any] = {**PUBLISHED_LINE, "zorder": 4, **style}
    if span is None:
        (axes.axvline if across == "x" else axes.axhline)(value, **look)
    elif across == "x":
        axes.plot([value, value], span, **look)
    else:
        axes.plot(span, [value, value], **look)


def published_handle(*, line: bool = False) -> Any:
    """What stands before the word ``PUBLISHED`` in a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **(PUBLISHED_LINE if line else PUBLISHED_MARK))


def quantity(value: float) -> str:
    """A number with three significant digits and a thousands separator.

    For labels inside a figure.
    """
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def panel_title(text: str, panels: int, settings: CanvasSettings) -> str:
    """A panel's title broken into lines that fit.

    ``panels`` panels stand side by side (bold type, medium size).
    """
    room_inches = settings.width_inches / panels - 0.75
    wide = max(10, int(room_inches * 72 / (_BOLD_WIDTH * settings.text_points)))
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, wide))


def share_legend(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int
) -> None:
    """One legend for all panels, between them and the footnote.

    The panels move up by its height.
    """
    engine = figure.get_layout_engine()
    assert engine is not None
    left, bottom, width, height = engine.get()["rect"]
    legend = figure.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(left, bottom),
        ncols=columns,
        columnspacing=1.4,
        handlelength=1.4,
        borderaxespad=0.1,
    )
    legend.set_in_layout(False)
    taken = legend.get_window_extent().height / figure.bbox.height
    engine.set(rect=(left, bottom + taken, width, height - taken))  # type: ignore[call-arg]


def _stem(name: str, known: Iterable[str]) -> str:
    """The longest known name that ``name`` is, or starts with as whole words.

    Empty where there is none.
    """
    return max(
        (stem for stem in known if name == stem or name.startswith(f"{stem}_")), key=len, default=""
    )


def _frame(
    figure: Figure, settings: CanvasSettings, title: str, subtitle: str, footnote: str
) -> None:
    size = settings.text_points
    inch = 1 / settings.height_inches
    left = 0.12 / settings.width_inches
    wide = int((settings.width_inches - 0.24) * 72 / (_WIDTH * size))
    notes = textwrap.wrap(footnote, wide)
    subtitles = textwrap.wrap(subtitle, wide)
    line = size * 1.35 / 72 * inch
    top = 1 - 0.1 * inch
    figure.text(left, top, title, fontweight="bold", va="top")
    top -= line * 1.15
    figure.text(left, top, "\n".join(subtitles), color=GREY, va="top", linespacing=1.25)
    top -= line * len(subtitles) + 0.06 * inch
    figure.text(
        left,
        0.08 * inch,
        "\n".join(notes),
        color=GREY,
        va="bottom",
        linespacing=1.25,
    )
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
