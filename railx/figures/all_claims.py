"""Every claim as one dot: the result of the run over the number of the paper.

A row for each headline claim with the region in which it holds, one for the other
claims of its paper, and one for what this project derived or checks. Claims without a
ratio are in columns at the edge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, figure, reads
from railx.figures.marks import dot
from railx.figures.panels import beside, share_legend, ticks
from railx.figures.tables import refuse_unknown, where
from railx.figures.theme import FAINT, GREY, INK, PALETTE, label, lighter
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import phrases, quantity, span
from railx.settings import Between, NotEmpty

#: The colour of each group of verdicts, with the verdicts in it.
_GROUPS = {
    "held": (PALETTE[2], ("reproduced", "consistent")),
    "open": (PALETTE[1], ("direction only", "depends", "undecided")),
    "failed": (PALETTE[5], ("not reproduced",)),
    "not judged": (FAINT, ("not here", "not testable")),
}
_VERDICTS = {verdict: colour for colour, verdicts in _GROUPS.values() for verdict in verdicts}
#: The mark of each fidelity and its words.
_FIDELITIES = {
    "analytic": ("o", "calculated"),
    "flow": ("s", "flow simulation"),
    "packet": ("^", "packet simulation"),
    "replay": ("P", "replay"),
    "emulated": ("D", "emulated switches"),
    "measured_cpu": ("v", "measured, CPU"),
    "measured_gpu": ("*", "measured, GPU"),
}
_EDGES = ("No\nratio", "Un-\ndecided", "Not\njudged")
#: Heights in rows: a claim's row, a paper's name, dots one above another.
_ROW, _NAME, _STACKED = 1.0, 0.8, 0.32
#: Dots nearer than this (of ours over published, as a logarithm) are drawn one above
#: another, so many at most; others beside them.
_NEAR, _MOST = 0.05, 12
#: Dots side by side in a column at the edge, and the most of a row that are drawn;
#: more are written as their number, which leaves the rows' words room.
_ASIDE, _MOST_ASIDE = 5, 10
#: Numbers that are written beside the dots at an end of the axis; of more, their range.
_FEW = 2


@dataclass(frozen=True)
class AllClaimsSettings(CanvasSettings):
    """Every claim: ours over published."""

    largest_ratio: Annotated[float, Between(1.5, 1000)] = 4
    """Ours over published at the right end of the axis, and its inverse at the left;
    a value beyond is drawn at the end with its number."""
    paper: Annotated[str, NotEmpty()] | None = None
    """Paper whose published claims are shown alone, by place; null: all claims."""


@dataclass
class _Row:
    """A line of the figure: its words, its claims, and where it is."""

    words: str
    claims: DataFrame
    headline: bool = False
    height: float = _ROW
    y: float = 0.0


@figure("All claims: ours over published", "all", height=13)
@reads(
    claims="evidence.claims: claim kind headline paper place sentence published ours low high"
    " comparison tolerance fidelity verdict"
)
def all_claims(settings: AllClaimsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Rows of dots by paper on a logarithmic axis of ours over published."""
    frame = _with_ratios(tables.read("claims"), settings.largest_ratio)
    title = "All claims: ours over published"
    if settings.paper:
        refuse_unknown("paper", [settings.paper], frame["paper"])
        frame = where(frame, paper=settings.paper, kind="published")
        title = f"{label(settings.paper)}: ours over published"
    names, rows = _rows(frame, by_place=settings.paper is not None)
    counts = frame.loc[frame["kind"] == "published", "verdict"].value_counts()
    subtitle = f"""What this run found over what the paper states, {int(counts.sum())} published
        claims; shaded: where a headline claim holds. What lies beyond the axis stands at its end
        with its number, many with their range; more than ten without a ratio are a number.
        Bars: 95 % intervals over repeats or seeds."""
    fidelities = [name for name in _FIDELITIES if name in set(frame["fidelity"].dropna())]
    with canvas(subtitle, fidelities, title=title) as page:
        axes, edge = page.subplots(1, 2, sharey=True, width_ratios=[3.2, 1.3])
        _frame(axes, edge, names, rows, settings.largest_ratio)
        for row in rows:
            _dots(axes, edge, row, settings.largest_ratio)
        legend = {
            f"{label(group)}: {_counted(counts, verdicts) or 'none'}": dot(colour)
            for group, (colour, verdicts) in _GROUPS.items()
            if set(verdicts) & set(frame["verdict"])
        }
        for mark, words in (_FIDELITIES[name] for name in fidelities):
            legend[label(words)] = dot(GREY, marker=mark)
        share_legend(page, legend, 2)
    columns = """paper claim kind headline published ours low high ratio ratio_low ratio_high
        comparison fidelity verdict edge"""
    data = frame[columns.split()].assign(edge=frame["edge"].str.replace("\n", " "))
    published = where(frame, kind="published")
    others = len(frame) - len(published)
    by_paper = "; ".join(
        f"{label(paper)} {_counted(claims['verdict'].value_counts())}"
        for paper, claims in published.groupby("paper", sort=False)
    )
    failed = where(published, verdict="not reproduced", edge="")
    failed_words = phrases(failed, "``{claim}`` {ratio:q}", ", ")
    ratios = f"Not reproduced, ours over published: {failed_words}." if len(failed) else ""
    count = "one claim" if others == 1 else f"{others} claims"
    below = f"Below them the {count} that this project derived or checks." if others else ""
    caption = f"""The {len(published)} published claims: {_counted(counts)}. By paper:
        {by_paper}. {ratios} {below}"""
    inside = where(published, edge="")
    near = int(inside["ratio"].between(0.9, 1.1).sum())
    alternative = f"""Dots of ours over published by paper: {int(counts.sum())} published claims,
        {_counted(counts)}. Of {len(inside)} with a ratio and a verdict {near} lie within 10 % of
        the published number. Columns at the right edge hold those without a ratio, undecided and
        not judged."""
    return Drawn(caption, alternative, data, paper=settings.paper or "all", title=title)


def _with_ratios(frame: DataFrame, largest: float) -> DataFrame:
    """The claims with their ratio and the column at the edge of those without."""
    refuse_unknown("verdict", sorted(set(frame["verdict"])), _VERDICTS)
    published, ours = frame["published"].astype(float), frame["ours"].astype(float)
    has_ratio = (published > 0) & (ours > 0) & (frame["comparison"] != "trend")
    edge = has_ratio.map({True: "", False: _EDGES[0]})
    edge = edge.mask(frame["verdict"] == "undecided", _EDGES[1])
    edge = edge.mask(frame["verdict"].isin(_GROUPS["not judged"][1]), _EDGES[2])
    over = published.where(has_ratio)
    ratio = ours / over
    ends = {f"ratio_{end}": frame[end].astype(float) / over for end in ("low", "high")}
    return frame.assign(ratio=ratio, **ends, edge=edge, at=ratio.clip(1 / largest, largest))


def _rows(frame: DataFrame, by_place: bool = False) -> tuple[list[tuple[float, str]], list[_Row]]:
    """The papers' names with their heights, and the rows below them."""
    sections: list[tuple[str, list[_Row]]] = []
    for paper, claims in frame[frame["kind"] == "published"].groupby("paper", sort=False):
        section = [
            _Row(_words(str(claim.claim), str(paper)), claims.loc[[claim.Index]], headline=True)
            for claim in claims[claims["headline"]].itertuples()
        ]
        others = claims[~claims["headline"]]
        places = others["place"].astype(str).str.extract(r"([^,;]+)", expand=False)
        if by_place:
            section += [
                _Row(f"{place}, {len(part)}", part)
                for place, part in others.groupby(places, sort=False)
            ]
        elif len(others):
            kind = "other published" if section else "published"
            section.append(_Row(f"{len(others)} {kind}", others))
        sections.append((label(paper), section))
    derived = [
        _Row(f"{label(paper)}, {len(claims)}", claims)
        for paper, claims in frame[frame["kind"] != "published"].groupby("paper", sort=False)
    ]
    if derived:
        sections.append(("Derived or checked here", derived))
    names: list[tuple[float, str]] = []
    y = 0.0
    for name, section in sections:
        y += _NAME
        names.append((y - _NAME / 2, name))
        for row in section:
            # The range of those beyond the axis stands above its dots.
            above = _ROW * _has_range(row.claims)
            row.height = max(_ROW, (_tallest(row.claims) + 1) * _STACKED) + above
            row.y = y + (row.height + above) / 2
            y += row.height
    return names, [row for _, section in sections for row in section]


def _words(claim: str, paper: str) -> str:
    """The claim's name without its paper's."""
    words = claim.removeprefix(f"{paper}_").replace("_", " ")
    return words[:1].upper() + words[1:]


def _tallest(claims: DataFrame) -> int:
    """How many dots of a row are one above another."""
    inside = claims[claims["edge"] == ""]
    heaps = [min(len(heap), _MOST) for heap in _heaps(inside)]
    counts = claims["edge"].value_counts().drop("", errors="ignore")
    aside = [-(-count // _ASIDE) for count in counts[counts <= _MOST_ASIDE]]
    return max([1, *heaps, *aside])


def _has_range(claims: DataFrame) -> bool:
    """Whether more than a few dots lie beyond an end of the axis."""
    beyond = claims[(claims["edge"] == "") & (claims["ratio"] != claims["at"])]
    return bool((beyond["at"].value_counts() > _FEW).any())


def _heaps(claims: DataFrame) -> list[list[int]]:
    """Dots too near to stand side by side: their numbers, from left to right."""
    heaps: list[list[int]] = []
    start = -np.inf
    positions = np.log(claims["at"].to_numpy(dtype=float))
    for number in np.argsort(positions, kind="stable"):
        wide = _NEAR * -(-len(heaps[-1]) // _MOST) if heaps else 0.0
        if positions[number] - start > wide:
            heaps.append([])
            start = positions[number]
        heaps[-1].append(int(number))
    return heaps


def _frame(
    axes: Axes, edge: Axes, names: list[tuple[float, str]], rows: list[_Row], largest: float
) -> None:
    """Axes, words and the regions in which headline claims hold."""
    reach = largest**1.12
    bottom = rows[-1].y + rows[-1].height / 2
    axes.set(xlim=(1 / reach, reach), ylim=(bottom, 0), xlabel="Ours / published")
    ratios = (0.1, 0.25, 0.5, 0.8, 1, 1.25, 2, 4, 10)
    ticks(axes.xaxis, [ratio for ratio in ratios if 1 / largest <= ratio <= largest], "{x:g}", 2)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks([row.y for row in rows], [row.words for row in rows])
    axes.grid(visible=False, axis="y")
    for y, name in names:
        style: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right"}
        beside(axes, name, 0, y, -6, fontweight="bold", **style)
        for panel in (axes, edge):
            panel.axhline(y - _NAME / 2, color=GREY, linewidth=0.6)
    for row in rows:
        if row.headline:
            _region(axes, row, reach)
    edge.set_xlim(-0.5, len(_EDGES) - 0.5)
    edge.set_xticks(range(len(_EDGES)), _EDGES)
    edge.grid(visible=False)
    edge.tick_params(left=False)
    for position in range(1, len(_EDGES)):
        edge.axvline(position - 0.5, color=FAINT, linewidth=0.7)


def _region(axes: Axes, row: _Row, reach: float) -> None:
    claim = row.claims.iloc[0]
    kind, tolerance = claim["comparison"], float(claim["tolerance"])
    if kind in ("ratio", "at_most", "at_least") and claim["published"]:
        low = 1 / reach if kind == "at_most" else max(1 - tolerance, 1 / reach)
        high = reach if kind == "at_least" else 1 + tolerance
        style: dict[str, Any] = {"color": lighter(PALETTE[2], 0.8), "linewidth": 0, "zorder": 0.5}
        axes.fill_between([low, high], row.y - 0.36, row.y + 0.36, **style)


def _dots(axes: Axes, edge: Axes, row: _Row, largest: float) -> None:
    inside = row.claims[row.claims["edge"] == ""]
    for heap in _heaps(inside):
        columns = -(-len(heap) // _MOST)
        centre = float(inside["at"].iloc[heap].median())
        beyond = inside.iloc[heap]
        beyond = beyond[beyond["ratio"] != beyond["at"]]
        # At an end of the axis columns are drawn inwards of it.
        inwards = 0.0
        if len(beyond):
            inwards = (columns - 1) / 2 * (-1 if beyond["ratio"].iloc[0] > 1 else 1)
        for rank, number in enumerate(heap):
            claim = inside.iloc[number]
            column, level = divmod(rank, _MOST)
            aside = (column - (columns - 1) / 2 + inwards) * _NEAR
            levels = min(_MOST, len(heap) - _MOST * column)
            y = row.y + (level - (levels - 1) / 2) * _STACKED
            at = float(claim["at"]) if columns == 1 else centre * float(np.exp(aside))
            _dot(axes, at, y, claim)
            if np.isfinite(claim["ratio_low"]):
                ends = np.clip([claim["ratio_low"], claim["ratio_high"]], 1 / largest, largest)
                colour = _VERDICTS[claim["verdict"]]
                axes.plot(ends, [y, y], color=colour, linewidth=1.4, zorder=2.5)
        if len(beyond):
            _beyond(axes, beyond["ratio"], float(beyond["at"].iloc[0]), row, len(heap))
    for position, name in enumerate(_EDGES):
        claims = row.claims[row.claims["edge"] == name]
        if len(claims) > _MOST_ASIDE:
            edge.text(position, row.y, str(len(claims)), ha="center", va="center", color=GREY)
            continue
        for number in range(len(claims)):
            line, column = divmod(number, _ASIDE)
            lines = -(-len(claims) // _ASIDE)
            x = position + (column - (min(_ASIDE, len(claims) - _ASIDE * line) - 1) / 2) * 0.17
            _dot(edge, x, row.y + (line - (lines - 1) / 2) * _STACKED, claims.iloc[number])


def _beyond(axes: Axes, ratios: Series[Any], at: float, row: _Row, count: int) -> None:
    """The numbers of dots at an end of the axis; of many the range, above the dots."""
    aside, ha = (-1, "right") if at > 1 else (1, "left")
    if len(ratios) <= _FEW:
        beside(axes, "\n".join(map(quantity, ratios)), at, row.y, 7 * aside, ha=ha)
    else:
        above = (min(_MOST, count) + 1) / 2 * _STACKED
        text = f"{len(ratios)}: {span(ratios)}"
        beside(axes, text, at, row.y - above, -3 * aside, va="bottom", ha=ha)


def _dot(axes: Axes, x: float, y: float, claim: Series[Any]) -> None:
    colour = _VERDICTS[claim["verdict"]]
    style = {"marker": "x", "markeredgecolor": colour, "markeredgewidth": 1.4}
    if claim["fidelity"] in _FIDELITIES:
        mark = _FIDELITIES[claim["fidelity"]][0]
        style = {"marker": mark, "markeredgecolor": "white", "markeredgewidth": 0.6}
    axes.plot(x, y, **dot(colour, 6.5, zorder=3, **style))


def _counted(counts: Series[Any], verdicts: Iterable[str] = _VERDICTS) -> str:
    return ", ".join(f"{int(counts[name])} {name}" for name in verdicts if counts.get(name, 0))
