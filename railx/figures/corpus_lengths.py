"""Survival function of sequence lengths: the share of sequences longer than a length.

One line per corpus, on logarithmic axes. A long tail, few sequences that hold many of
the tokens, is what adaptive parallelism lives on (FlexSP, section 2; InfiniPipe,
section II).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from railx.figures.figure import Canvas, Choice, Drawn, Tables, figure, reads
from railx.figures.panels import entries, share_legend
from railx.figures.published import PUBLISHED_MARK, published_marks
from railx.figures.tables import refuse, stack, to_frame
from railx.figures.theme import PUBLISHED, colours, dot, label
from railx.figures.types import DataFrame
from railx.figures.words import quantity
from railx.io import read_metadata, read_table
from railx.settings import Between, SettingsError

_KINDS = {
    "real_text": "real text",
    "real_lengths": "real lengths",
    "published_quantiles": "drawn from published quantiles",
    "synthetic": "synthetic",
}

#: Tokens of a long sequence, in the caption.
_LONG = 32_000
_FOOTNOTE = """Real text and real lengths are data as they are; synthetic ones are drawn from a
    distribution that the config states"""


@dataclass(frozen=True)
class CorpusLengthsSettings(Choice):
    """Survival function of sequence lengths."""

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


@dataclass(frozen=True)
class _Corpus:
    """Sorted lengths of a corpus, and the words for it."""

    name: str
    kind: str
    lengths: NDArray[np.int64]

    @property
    def words(self) -> str:
        return _KINDS.get(self.kind, self.kind)

    def share(self, tokens: Any) -> Any:
        """The share of sequences with at least so many tokens."""
        return 1 - np.searchsorted(self.lengths, tokens, side="left") / len(self.lengths)

    def steps(self, points: int) -> NDArray[np.int64]:
        """At most so many lengths, denser in the tail, where few sequences decide."""
        count = len(self.lengths)
        tail = np.round(count - np.geomspace(1, count, points)).astype(np.int64)
        return self.lengths[np.unique(tail)]


@figure("Sequence lengths of the corpora", "flexsp", height=5.4)
@reads(sequences="corpus.sequences", published="wikipedia_length_quantiles.csv: kind key value")
def corpus_lengths(settings: CorpusLengthsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One line per corpus with dots at ``settings.quantiles``."""
    corpora = [_read(name, path) for name, path in tables.files("sequences", settings.only)]
    shares = ", ".join(f"{100 * quantile:g} %" for quantile in settings.quantiles)
    subtitle = f"""Share of sequences with at least the given number of tokens. Dots: {shares} of
        sequences are shorter. Hollow diamonds: published."""
    published = tables.query(
        """
        select key::bigint + 1 as length_tokens, value::double as share
        from published where kind = 'ccdf_frac_seqs_gt' order by rowid_
        """
    )
    table = tables.read("published")
    count = int(float(table.loc[table["key"] == "count", "value"].iloc[0]))
    with canvas(subtitle, _FOOTNOTE, title="Sequence lengths") as page:
        axes = page.subplots()
        colour = colours(corpus.name for corpus in corpora)
        for corpus in corpora:
            words = f"{label(corpus.name)} ({corpus.words}; {len(corpus.lengths):,} sequences)"
            steps, last = corpus.steps(settings.points), len(corpus.lengths) - 1
            stairs: dict[str, Any] = {"drawstyle": "steps-pre", "label": words}
            axes.plot(steps, corpus.share(steps), color=colour[corpus.name], **stairs)
            marks = corpus.lengths[[min(int(q * (last + 1)), last) for q in settings.quantiles]]
            style = dot(colour[corpus.name], 5, markeredgecolor="white")
            axes.plot(marks, corpus.share(marks), **style)
        axes.set(xscale="log", yscale="log", xlabel="Sequence length (tokens)")
        axes.set_ylabel("Share of sequences")
        lowest = min(published["share"].min(), *(1 / len(corpus.lengths) for corpus in corpora))
        axes.set_ylim(0.5 * lowest, 1.6)
        axes.yaxis.set_major_formatter(lambda value, _: f"{quantity(100 * value)} %")
        axes.xaxis.set_major_formatter(lambda value, _: _tokens(value))
        published_marks(axes, published["length_tokens"], published["share"])
        words = f"Wikipedia, {PUBLISHED} ({count:,} lengths of FlexSP's public code)"
        share_legend(page, entries(axes) | {words: PUBLISHED_MARK}, 1)
    texts = "; ".join(
        f"{label(corpus.name)} {100 * corpus.share(1e3):.3g} % from 1K tokens on,"
        f" {100 * corpus.share(1e5):.2g} % from 100K on"
        for corpus in corpora
    )
    parts = [published.assign(corpus="wikipedia", kind=PUBLISHED)]
    for corpus in corpora:
        steps = corpus.steps(settings.points)
        part = to_frame({"length_tokens": steps, "share": corpus.share(steps)})
        parts.append(part.assign(corpus=corpus.name, kind=corpus.kind))
    alternative = f"Falling lines of the share of sequences with at least a given length: {texts}."
    data = stack(parts)[["corpus", "kind", "length_tokens", "share"]]
    return Drawn(_caption(corpora, published), alternative, data)


def _read(name: str, path: Path) -> _Corpus:
    lengths = np.sort(read_table(path, ["length_tokens"])["length_tokens"].to_numpy())
    if not len(lengths):
        refuse(f"{path}: the corpus has no sequences", "one or more")
    return _Corpus(name, str(read_metadata(path).get("kind", "unknown")), lengths)


def _tokens(value: float) -> str:
    for scale, suffix in ((1e6, "M"), (1e3, "K")):
        if value >= scale:
            return f"{value / scale:g}{suffix}"
    return f"{value:g}"


def _caption(corpora: Sequence[_Corpus], published: DataFrame) -> str:
    parts, off = [], ""
    for corpus in corpora:
        lengths = corpus.lengths
        occupied = float(lengths[lengths >= _LONG].sum() / lengths.sum())
        parts.append(f"""{label(corpus.name)} ({corpus.words}) median
            {quantity(np.median(lengths))}, longest {quantity(lengths[-1])},
            {100 * corpus.share(_LONG):.2g} % of sequences with {_tokens(_LONG)} tokens or more hold
            {100 * occupied:.3g} % of the tokens""")
        if corpus.name == "wikipedia":
            seen = published[published["share"] * len(lengths) >= 10]
            ratios = corpus.share(seen["length_tokens"]) / seen["share"].to_numpy()
            off = f"""Our Wikipedia lengths are within {100 * np.abs(ratios - 1).max():.2g} % of the
                published shares wherever ten or more of them are longer."""
    return f"""Sequence lengths in tokens: {"; ".join(parts)}. {off} A long straight tail, few
        sequences with many of the tokens, is what adaptive parallelism lives on."""
