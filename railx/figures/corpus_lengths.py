"""Survival function of sequence lengths: the share of sequences longer than a length.

One line per corpus, on logarithmic axes. A long tail, few sequences that hold many of
the tokens, is what adaptive parallelism lives on (FlexSP, section 2; InfiniPipe,
section II).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import named_files
from railx.figures.theme import canvas, colours, label, quantity, share_legend
from railx.io import read_metadata, read_table
from railx.settings import Between, SettingsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "CorpusLengthsSettings"]

_CAPTION = """\
Share of sequences with at least a given number of tokens. Both axes are logarithmic: a
long straight tail means few sequences that hold many of the tokens, which is what
adaptive parallelism makes use of. The legend says which corpora are real text, which
follow published quantiles and which are synthetic.
"""
_ALTERNATIVE = (
    "Lines of the share of sequences that are longer than a given length, one line per "
    "corpus, both axes logarithmic."
)

_KINDS = {
    "real_text": "real text",
    "real_lengths": "real lengths",
    "published_quantiles": "drawn from published quantiles",
    "synthetic": "synthetic",
}


_FOOTNOTE = (
    "Real text and real lengths are data as they are; synthetic ones are drawn from a distribution"
    " that the config states"
)


@dataclass(frozen=True)
class CorpusLengthsSettings(CanvasSettings):
    """Survival function of sequence lengths."""

    figure: Literal["corpus_lengths"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Corpora to show, in that order; empty: all that there are."""

    points: Annotated[int, Between(20, 5000)]
    """Most steps of a line."""

    quantiles: tuple[Annotated[float, Between(0, 1)], ...]
    """Shares of shorter sequences at which a line has a dot, ascending."""

    def __post_init__(self) -> None:
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise SettingsError(
                "quantiles",
                f"got {list(self.quantiles)}; allowed: distinct numbers in ascending order",
            )


def draw(settings: CorpusLengthsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """One line per corpus with dots at ``settings.quantiles``.

    Raises ValueError for a corpus without sequences.
    """
    corpora = {}
    for name, path in named_files(inputs, "sequences", settings.only):
        lengths = np.sort(read_table(path, ["length_tokens"])["length_tokens"].to_numpy())
        if not len(lengths):
            raise ValueError(f"{path}: the corpus has no sequences; allowed: one or more")
        corpora[name] = (lengths, str(read_metadata(path).get("kind", "unknown")))
    subtitle = (
        "Share of sequences with at least the given number of tokens. Dots: "
        + ", ".join(f"{100 * q:g} %" for q in settings.quantiles)
        + " of sequences are shorter."
    )
    with canvas(settings, output, "Sequence lengths", subtitle, _FOOTNOTE) as figure:
        axes = figure.subplots()
        colour = colours(corpora)
        for name, (lengths, kind) in corpora.items():
            _line(
                axes,
                lengths,
                f"{label(name)} ({_KINDS.get(kind, kind)}; {len(lengths):,} sequences)",
                colour[name],
                settings,
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="Sequence length (tokens)",
            ylabel="Share of sequences",
        )
        axes.set_ylim(top=1.6)
        axes.yaxis.set_major_formatter(lambda value, _: f"{quantity(100 * value)} %")
        axes.xaxis.set_major_formatter(lambda value, _: _tokens(value))
        handles, names = axes.get_legend_handles_labels()
        share_legend(figure, handles, names, 1)
    import pandas as pd

    data = pd.DataFrame(
        [
            {
                "corpus": name,
                "quantile": quantile,
                "length_tokens": float(np.quantile(own, quantile)),
            }
            for name, (own, _) in corpora.items()
            for quantile in settings.quantiles
        ]
    )
    return Drawn(_CAPTION, _ALTERNATIVE, data)


def _line(
    axes: Axes, lengths: NDArray[np.int64], name: str, colour: str, settings: CorpusLengthsSettings
) -> None:
    """At most ``settings.points`` steps, denser in the tail.

    There few sequences decide.
    """
    count = len(lengths)
    tail = np.unique(np.round(count - np.geomspace(1, count, settings.points)).astype(int))
    x, y = lengths[tail], 1 - np.searchsorted(lengths, lengths[tail], side="left") / count
    axes.plot(x, y, color=colour, linewidth=1.8, label=name, drawstyle="steps-pre")
    marks = np.array(
        [lengths[min(int(q * count), count - 1)] for q in settings.quantiles], dtype=np.int64
    )
    axes.plot(
        marks,
        1 - np.searchsorted(lengths, marks, side="left") / count,
        "o",
        color=colour,
        markersize=5,
        markeredgecolor="white",
    )


def _tokens(value: float) -> str:
    for scale, suffix in ((1e6, "M"), (1e3, "K")):
        if value >= scale:
            return f"{value / scale:g}{suffix}"
    return f"{value:g}"


FIGURE = Figure(
    settings=CorpusLengthsSettings,
    title="Sequence lengths of the corpora",
    paper="flexsp",
    inputs=(FigureInput("sequences", "corpus.sequences"),),
    draw=draw,
)
