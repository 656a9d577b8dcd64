"""Every claim as one dot: what the run found over what the paper states.

A row for each headline claim with the region in which it holds, one for the other
claims of its paper, and one for what this project derived or checks. What has no ratio
stands in columns at the edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    FAINT,
    GREY,
    INK,
    PALETTE,
    canvas,
    label,
    lighter,
    quantity,
    share_legend,
)
from railx.settings import Between

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "AllClaimsSettings"]

_COLUMNS = (
    "claim",
    "kind",
    "headline",
    "paper",
    "sentence",
    "published",
    "ours",
    "low",
    "high",
    "comparison",
    "tolerance",
    "fidelity",
    "verdict",
)
_VERDICTS = {
    "reproduced": PALETTE[2],
    "partly": PALETTE[1],
    "not reproduced": PALETTE[5],
    "undecided": PALETTE[7],
    "not attempted": FAINT,
}
_MARKERS = {
    "analytic": "o",
    "flow": "s",
    "packet": "^",
    "replay": "P",
    "emulated": "D",
    "measured_cpu": "v",
    "measured_gpu": "*",
}
_FIDELITIES = {
    "analytic": "calculated",
    "flow": "flow simulation",
    "packet": "packet simulation",
    "replay": "replay",
    "emulated": "emulated switches",
    "measured_cpu": "measured, CPU",
    "measured_gpu": "measured, GPU",
}
_EDGES = ("No\nratio", "Un-\ndecided", "Not\nattempted")
#: Height of a claim's row, of a paper's name and of dots that stand on each other, in
#: rows.
_ROW, _NAME, _STACKED = 1.0, 0.8, 0.32
#: Dots nearer than this (of ours over published, as a logarithm) stand on each other,
#: so many at most; others beside them.
_NEAR, _MOST = 0.05, 5
#: Numbers that stand beside the dots at an end of the axis; of more stands their range.
_FEW = 2


@dataclass(frozen=True)
class AllClaimsSettings(CanvasSettings):
    """Every claim: ours over published."""

    figure: Literal["all_claims"]
    """Which figure it is."""

    largest_ratio: Annotated[float, Between(1.5, 1000)]
    """Ours over published at the right end of the axis, and its inverse at the left;
    what lies beyond stands at the end with its number."""


@dataclass
class _Row:
    """A line of the figure: its words, its claims, and where it is."""

    words: str
    claims: pd.DataFrame
    headline: bool = False
    height: float = _ROW
    y: float = 0.0


def draw(settings: AllClaimsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Rows of dots by paper on a logarithmic axis of ours over published.

    Raises ValueError for a verdict that is not known.
    """
    from matplotlib.lines import Line2D

    frame = _placed(read_frames(inputs, "claims", _COLUMNS), settings.largest_ratio)
    names, rows = _rows(frame)
    counts = frame.loc[frame["kind"] == "published", "verdict"].value_counts()
    subtitle = (
        f"What this run found over what the paper states, {int(counts.sum())} published claims;"
        " shaded: where a headline claim holds. What lies beyond the axis stands"
        " at its end with its number, many with their range; dots that would hide one another stand"
        " side by side. Bars: 95 % intervals over repeats or seeds."
    )
    note = fidelity_line(frame.loc[frame["fidelity"].isin(_MARKERS), "fidelity"])
    with canvas(settings, output, "All claims: ours over published", subtitle, note) as figure:
        axes, edge = figure.subplots(1, 2, sharey=True, width_ratios=[3.2, 1.3])
        _frame(axes, edge, names, rows, settings.largest_ratio)
        for row in rows:
            _dots(axes, edge, row, settings.largest_ratio)
        verdicts = [name for name in _VERDICTS if name in set(frame["verdict"])]
        handles: list[Any] = [
            Line2D([], [], linestyle="none", marker="o", color=_VERDICTS[name]) for name in verdicts
        ]
        texts = [f"{label(name)}: {int(counts.get(name, 0))} published" for name in verdicts]
        shown = [name for name in _MARKERS if name in set(frame["fidelity"].dropna())]
        handles += [
            Line2D([], [], linestyle="none", marker=_MARKERS[name], color=GREY) for name in shown
        ]
        texts += [label(_FIDELITIES[name]) for name in shown]
        share_legend(figure, handles, texts, 4)
    return Drawn(_caption(frame, counts), _alternative(frame, counts), _data(frame))


def _placed(frame: pd.DataFrame, largest: float) -> pd.DataFrame:
    """The claims with their ratio and the column at the edge of those without."""
    unknown = sorted(set(frame["verdict"]) - set(_VERDICTS))
    if unknown:
        raise UserError(f"verdict: got {', '.join(unknown)}; allowed: {', '.join(_VERDICTS)}")
    published = frame["published"].astype(float)
    has_ratio = (
        (published > 0) & (frame["ours"].astype(float) > 0) & (frame["comparison"] != "trend")
    )
    divisor = published.where(has_ratio)
    edge = np.select(
        [frame["verdict"] == "not attempted", frame["verdict"] == "undecided", ~has_ratio],
        [_EDGES[2], _EDGES[1], _EDGES[0]],
        default="",
    )
    ratios = {name: frame[name].astype(float) / divisor for name in ("ours", "low", "high")}
    return frame.assign(
        ratio=ratios["ours"],
        ratio_low=ratios["low"],
        ratio_high=ratios["high"],
        edge=edge,
        at=ratios["ours"].clip(1 / largest, largest),
    )


def _rows(frame: pd.DataFrame) -> tuple[list[tuple[float, str]], list[_Row]]:
    """The papers' names with their places, and the rows below them."""
    names: list[tuple[float, str]] = []
    rows: list[_Row] = []
    y = 0.0
    published = frame[frame["kind"] == "published"]
    sections: list[tuple[str, list[_Row]]] = []
    for paper, own in published.groupby("paper", sort=False):
        section = [
            _Row(_words(str(claim.claim), str(paper)), own.loc[[claim.Index]], headline=True)
            for claim in own[own["headline"]].itertuples()
        ]
        others = own[~own["headline"]]
        if len(others):
            what = "other published" if section else "published"
            section.append(_Row(f"{len(others)} {what}", others))
        sections.append((label(str(paper)), section))
    ours = [
        _Row(f"{label(str(paper))}, {len(own)}", own)
        for paper, own in frame[frame["kind"] != "published"].groupby("paper", sort=False)
    ]
    if ours:
        sections.append(("Derived or checked here", ours))
    for name, section in sections:
        y += _NAME
        names.append((y - _NAME / 2, name))
        for row in section:
            row.height = max(_ROW, (_tallest(row.claims) + 1) * _STACKED)
            row.y = y + row.height / 2
            y += row.height
        rows += section
    return names, rows


def _words(claim: str, paper: str) -> str:
    """The claim's name without its paper's."""
    words = claim.removeprefix(f"{paper}_").replace("_", " ")
    return words[:1].upper() + words[1:]


def _tallest(claims: pd.DataFrame) -> int:
    """How many dots of a row stand on each other."""
    inside = claims[claims["edge"] == ""]
    heaps = [min(len(heap), _MOST) for heap in _heaps(inside["at"].to_numpy(dtype=float))]
    # At the edge five stand side by side.
    beside = [-(-count // 5) for count in claims["edge"].value_counts().drop("", errors="ignore")]
    return max([1, *heaps, *beside])


def _heaps(ratios: np.ndarray) -> list[list[int]]:
    """Dots too near to stand side by side: their numbers, from left to right."""
    heaps: list[list[int]] = []
    start = -np.inf
    places = np.log(ratios)
    for number in np.argsort(places, kind="stable"):
        wide = _NEAR * -(-len(heaps[-1]) // _MOST) if heaps else 0.0
        if places[number] - start > wide:
            heaps.append([])
            start = places[number]
        heaps[-1].append(int(number))
    return heaps


def _frame(
    axes: Axes, edge: Axes, names: list[tuple[float, str]], rows: list[_Row], largest: float
) -> None:
    """Axes, words and the regions in which headline claims hold."""
    bottom = max(row.y + row.height / 2 for row in rows)
    axes.set_xscale("log", base=2)
    reach = largest**1.12
    axes.set(xlim=(1 / reach, reach), ylim=(bottom, 0), xlabel="Ours / published")
    ticks = [
        tick for tick in (0.1, 0.25, 0.5, 0.8, 1, 1.25, 2, 4, 10) if 1 / largest <= tick <= largest
    ]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks([row.y for row in rows], [row.words for row in rows])
    axes.grid(visible=False, axis="y")
    for y, name in names:
        axes.annotate(
            name,
            (0, y),
            xycoords=("axes fraction", "data"),
            xytext=(-6, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontweight="bold",
        )
        for panel in (axes, edge):
            panel.axhline(y - _NAME / 2, color=GREY, linewidth=0.6)
    for row in rows:
        if row.headline:
            _region(axes, row, reach)
    edge.set_xlim(-0.5, len(_EDGES) - 0.5)
    edge.set_xticks(range(len(_EDGES)), _EDGES)
    edge.grid(visible=False)
    edge.tick_params(left=False)
    for place in range(1, len(_EDGES)):
        edge.axvline(place - 0.5, color=FAINT, linewidth=0.7)


def _region(axes: Axes, row: _Row, reach: float) -> None:
    claim = row.claims.iloc[0]
    if claim["comparison"] not in ("ratio", "at_most", "at_least") or not claim["published"]:
        return
    tolerance = float(claim["tolerance"])
    low = 1 / reach if claim["comparison"] == "at_most" else max(1 - tolerance, 1 / reach)
    high = reach if claim["comparison"] == "at_least" else 1 + tolerance
    axes.fill_between(
        [low, high],
        row.y - 0.36,
        row.y + 0.36,
        color=lighter(PALETTE[2], 0.8),
        linewidth=0,
        zorder=0.5,
    )


def _dots(axes: Axes, edge: Axes, row: _Row, largest: float) -> None:
    inside = row.claims[row.claims["edge"] == ""]
    for heap in _heaps(inside["at"].to_numpy(dtype=float)):
        columns = -(-len(heap) // _MOST)
        centre = float(inside["at"].iloc[heap].median())
        beyond = inside.iloc[heap]
        beyond = beyond[beyond["ratio"] != beyond["at"]]
        # At an end of the axis columns stand inwards of it.
        inwards = 0.0
        if len(beyond):
            inwards = (columns - 1) / 2 * (-1 if beyond["ratio"].iloc[0] > 1 else 1)
        for rank, number in enumerate(heap):
            claim = inside.iloc[number]
            column, level = divmod(rank, _MOST)
            beside = (column - (columns - 1) / 2 + inwards) * _NEAR
            levels = min(_MOST, len(heap) - _MOST * column)
            y = row.y + (level - (levels - 1) / 2) * _STACKED
            at = float(claim["at"]) if columns == 1 else centre * float(np.exp(beside))
            _dot(axes, at, y, claim)
            if np.isfinite(claim["ratio_low"]):
                axes.plot(
                    np.clip([claim["ratio_low"], claim["ratio_high"]], 1 / largest, largest),
                    [y, y],
                    color=_VERDICTS[claim["verdict"]],
                    linewidth=1.4,
                    zorder=2.5,
                )
        if len(beyond):
            _beyond(axes, beyond["ratio"], float(beyond["at"].iloc[0]), row, len(heap))
    for place, name in enumerate(_EDGES):
        own = row.claims[row.claims["edge"] == name]
        for number in range(len(own)):
            line, column = divmod(number, 5)
            lines = -(-len(own) // 5)
            beside = min(5, len(own) - 5 * line)
            x = place + (column - (beside - 1) / 2) * 0.17
            _dot(edge, x, row.y + (line - (lines - 1) / 2) * _STACKED, own.iloc[number])


def _beyond(axes: Axes, ratios: pd.Series, at: float, row: _Row, dots: int) -> None:
    """The numbers of dots at an end of the axis; of many the range, above the dots."""
    right = at > 1
    few = len(ratios) <= _FEW
    text = "\n".join(quantity(float(ratio)) for ratio in ratios)
    if not few:
        least, most = quantity(float(ratios.min())), quantity(float(ratios.max()))
        text = f"{len(ratios)}: {least} to {most}"
    above = 0 if few else (min(_MOST, dots) + 1) / 2 * _STACKED
    aside = 7 if few else -3
    axes.annotate(
        text,
        (at, row.y - above),
        (-aside if right else aside, 0),
        textcoords="offset points",
        va="center" if few else "bottom",
        ha="right" if right else "left",
    )


def _dot(axes: Axes, x: float, y: float, claim: pd.Series) -> None:
    colour = _VERDICTS[claim["verdict"]]
    known = claim["fidelity"] in _MARKERS
    axes.plot(
        x,
        y,
        linestyle="none",
        marker=_MARKERS[claim["fidelity"]] if known else "x",
        markersize=6.5,
        color=colour,
        markeredgecolor="white" if known else colour,
        markeredgewidth=0.6 if known else 1.4,
        zorder=3,
    )


def _data(frame: pd.DataFrame) -> pd.DataFrame:
    data = frame[
        [
            *("paper", "claim", "kind", "headline", "published", "ours", "low", "high"),
            *("ratio", "ratio_low", "ratio_high", "comparison", "fidelity", "verdict", "edge"),
        ]
    ]
    return data.assign(edge=data["edge"].str.replace("\n", " "))


def _counted(counts: pd.Series) -> str:
    parts = [f"{int(counts[name])} {name}" for name in _VERDICTS if counts.get(name, 0)]
    return ", ".join(parts)


def _caption(frame: pd.DataFrame, counts: pd.Series) -> str:
    published = frame[frame["kind"] == "published"]
    others = frame["kind"].ne("published").sum()
    by_paper = "; ".join(
        f"{label(str(paper))} {_counted(own['verdict'].value_counts())}"
        for paper, own in published.groupby("paper", sort=False)
    )
    text = (
        f"The {len(published)} published claims, one dot each: {_counted(counts)}. By paper:"
        f" {by_paper}."
    )
    failed = published[(published["verdict"] == "not reproduced") & (published["edge"] == "")]
    if len(failed):
        text += (
            " Not reproduced, ours over published: "
            + ", ".join(
                f"``{claim}`` {quantity(ratio)}"
                for claim, ratio in zip(failed["claim"], failed["ratio"], strict=True)
            )
            + "."
        )
    if others:
        count = "one claim" if others == 1 else f"{others} claims"
        text += f" Below them the {count} that this project derived or checks."
    return text


def _alternative(frame: pd.DataFrame, counts: pd.Series) -> str:
    inside = frame[(frame["kind"] == "published") & (frame["edge"] == "")]
    near = int(inside["ratio"].between(0.9, 1.1).sum())
    return (
        f"Dots of ours over published by paper: {int(counts.sum())} published claims,"
        f" {_counted(counts)}. Of {len(inside)} with a ratio and a verdict {near} lie within 10 %"
        " of the published number. Columns at the right edge hold those without a ratio, undecided"
        " and not attempted."
    )


FIGURE = Figure(
    settings=AllClaimsSettings,
    title="All claims: ours over published",
    paper="all",
    inputs=(FigureInput("claims", "evidence.claims"),),
    draw=draw,
)
