"""Survival function of sequence lengths: the share of sequences longer than a length.

One line per corpus, on logarithmic axes. A long tail, few sequences that hold many of
the tokens, is what adaptive parallelism lives on (FlexSP, section 2; InfiniPipe,
section II).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from railx.errors import UserError
from railx.figures.canvas import share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import entries, published_marks
from railx.figures.tables import FigureInput, Tables, stack, to_frame
from railx.figures.theme import PUBLISHED, PUBLISHED_MARK, colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import quantity
from railx.io import read_metadata, read_table
from railx.settings import Between, SettingsError

__all__ = ["FIGURE", "CorpusLengthsSettings"]

_KINDS = {
    "real_text": "real text",
    "real_lengths": "real lengths",
    "published_quantiles": "drawn from published quantiles",
    "synthetic": "synthetic",
}


#: Tokens of a long sequence, in the caption.
_LONG = 32_000
_FOOTNOTE = (
    "Real text and real lengths are data as they are; synthetic ones are drawn from a distribution"
    " that the config states"
)


@dataclass(frozen=True)
class CorpusLengthsSettings(CanvasSettings):
    """Survival function of sequence lengths."""

    figure: Literal["corpus_lengths"] = "corpus_lengths"
    height_inches: Height = 5.4

    only: tuple[str, ...] = ()
    """Corpora to show, in that order; empty: all that there are."""

    points: Annotated[int, Between(20, 5000)] = 300
    """Most steps of a line."""

    quantiles: tuple[Annotated[float, Between(0, 1)], ...] = (0.5, 0.9, 0.99)
    """Shares of shorter sequences at which a line has a dot, ascending."""

    def __post_init__(self) -> None:
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise SettingsError(
                "quantiles",
                f"got {list(self.quantiles)}; allowed: distinct numbers in ascending order",
            )


def draw(settings: CorpusLengthsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One line per corpus with dots at ``settings.quantiles``.

    Raises ValueError for a corpus without sequences.
    """
    corpora: dict[str, tuple[NDArray[np.int64], str]] = {}
    for name, path in tables.files("sequences", settings.only):
        lengths = np.sort(read_table(path, ["length_tokens"])["length_tokens"].to_numpy())
        if not len(lengths):
            raise UserError(f"{path}: the corpus has no sequences; allowed: one or more")
        corpora[name] = (lengths, str(read_metadata(path).get("kind", "unknown")))
    subtitle = (
        "Share of sequences with at least the given number of tokens. Dots: "
        + ", ".join(f"{100 * q:g} %" for q in settings.quantiles)
        + " of sequences are shorter. Hollow diamonds: published."
    )
    table = tables.read("published")
    published = _published(table)
    count = int(float(table.loc[table["key"] == "count", "value"].iloc[0]))
    with canvas(subtitle, _FOOTNOTE, title="Sequence lengths") as page:
        axes = page.subplots()
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
        axes.set_ylim(0.5 * _lowest_share(corpora, published), 1.6)
        axes.yaxis.set_major_formatter(lambda value, _: f"{quantity(100 * value)} %")
        axes.xaxis.set_major_formatter(lambda value, _: _tokens(value))
        published_marks(axes, published["length_tokens"], published["share"])
        legend = entries(axes)
        legend[f"Wikipedia, {PUBLISHED} ({count:,} lengths of FlexSP's public code)"] = (
            PUBLISHED_MARK
        )
        share_legend(page, legend, 1)
    return Drawn(
        _caption(corpora, published),
        _alternative(corpora),
        _data(corpora, published, settings.points),
    )


def _line(
    axes: Axes, lengths: NDArray[np.int64], name: str, colour: str, settings: CorpusLengthsSettings
) -> None:
    """At most ``settings.points`` steps, denser in the tail.

    There few sequences decide.
    """
    count = len(lengths)
    tail = _places(count, settings.points)
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


def _places(count: int, points: int) -> NDArray[np.int64]:
    """Places among ``count`` sorted lengths, denser towards the longest."""
    return np.unique(np.round(count - np.geomspace(1, count, points)).astype(np.int64))


def _tokens(value: float) -> str:
    for scale, suffix in ((1e6, "M"), (1e3, "K")):
        if value >= scale:
            return f"{value / scale:g}{suffix}"
    return f"{value:g}"


def _published(table: DataFrame) -> DataFrame:
    """Published shares of Wikipedia's sequences that are longer than a length."""
    rows = table[table["kind"] == "ccdf_frac_seqs_gt"]
    return to_frame(
        {"length_tokens": rows["key"].astype(int) + 1, "share": rows["value"].astype(float)}
    )


def _lowest_share(
    corpora: Mapping[str, tuple[NDArray[np.int64], str]], published: DataFrame
) -> float:
    """The least share that is drawn."""
    return min(float(published["share"].min()), *(1 / len(rows) for rows, _ in corpora.values()))


def _share(lengths: NDArray[np.int64], lowest: float) -> float:
    """The share of sequences with at least so many tokens."""
    return 1 - float(np.searchsorted(lengths, lowest, side="left")) / len(lengths)


def _data(
    corpora: Mapping[str, tuple[NDArray[np.int64], str]], published: DataFrame, points: int
) -> DataFrame:
    parts = [published.assign(corpus="wikipedia", kind=PUBLISHED)]
    for name, (lengths, kind) in corpora.items():
        x = lengths[_places(len(lengths), points)]
        shares = [_share(lengths, length) for length in x]
        part = to_frame({"length_tokens": x, "share": shares})
        parts.append(part.assign(corpus=name, kind=kind))
    return stack(parts)[["corpus", "kind", "length_tokens", "share"]]


def _caption(corpora: Mapping[str, tuple[NDArray[np.int64], str]], published: DataFrame) -> str:
    parts = []
    for name, (lengths, kind) in corpora.items():
        occupied = float(lengths[lengths >= _LONG].sum() / lengths.sum())
        parts.append(
            f"{label(name)} ({_KINDS.get(kind, kind)}) median"
            f" {quantity(float(np.median(lengths)))}, longest {quantity(float(lengths[-1]))},"
            f" {100 * _share(lengths, _LONG):.2g} % of sequences with {_tokens(_LONG)} tokens or"
            f" more hold {100 * occupied:.3g} % of the tokens"
        )
    text = f"Sequence lengths in tokens: {'; '.join(parts)}."
    if "wikipedia" in corpora:
        lengths = corpora["wikipedia"][0]
        seen = published[published["share"] * len(lengths) >= 10]
        ours = np.array([_share(lengths, lowest) for lowest in seen["length_tokens"]])
        off = float(np.abs(ours / seen["share"].to_numpy() - 1).max())
        text += (
            f" Our Wikipedia lengths are within {100 * off:.2g} % of the published shares wherever"
            " ten or more of them are longer."
        )
    return (
        f"{text} A long straight tail, few sequences with many of the tokens, is what adaptive"
        " parallelism lives on."
    )


def _alternative(corpora: Mapping[str, tuple[NDArray[np.int64], str]]) -> str:
    parts = "; ".join(
        f"{label(name)} {100 * _share(lengths, 1e3):.3g} % from 1K tokens on,"
        f" {100 * _share(lengths, 1e5):.2g} % from 100K on"
        for name, (lengths, _) in corpora.items()
    )
    return f"Falling lines of the share of sequences with at least a given length: {parts}."


FIGURE = Figure(
    CorpusLengthsSettings,
    "Sequence lengths of the corpora",
    "flexsp",
    (
        FigureInput("sequences", "corpus.sequences"),
        FigureInput(
            "published", columns="kind key value", published="wikipedia_length_quantiles.csv"
        ),
    ),
    draw,
)
