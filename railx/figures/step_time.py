"""Time of a training step by topology, stacked by what it is spent on.

One column per job, equal bandwidth above equal cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.figures.canvas import panel_title, share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.honest import cut_bars
from railx.figures.panels import entries
from railx.figures.tables import FigureInput, Tables
from railx.figures.theme import GREY, PALETTE, label
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import fidelity_line, quantity
from railx.settings import AtLeast

__all__ = ["FIGURE", "StepTimeSettings"]

_METHOD = """\
All groups of one kind of parallelism communicate at once; exact channel loads of their
traffic give the rate, and each transfer takes the fastest of sending directly, round a
ring, or one axis after the other. Nothing overlaps but the stages of the pipeline: an
upper bound for schedules that hide communication. Equal cost scales the ports of a
network to what the reference costs per chip; links inside nodes, boards and servers
(copper and scale-up switches) stand in no bill, which favours the networks with such
servers, and keep their rate. Networks without such links carry tensor parallelism on
their ports. The paper prints no step times: jobs and layouts are choices of this
project."""

_BASES = {"equal_bandwidth": "equal injection bandwidth", "equal_cost": "equal cost of the network"}
#: What a step is spent on, in the order of the stack.
_PARTS = {
    "compute": ("Compute", "#c3c8cf"),
    "bubble": ("Pipeline bubble", "#e3e6ea"),
    "tensor": ("Tensor", PALETTE[0]),
    "sequence": ("Sequence", PALETTE[4]),
    "expert": ("Expert (all-to-all)", PALETTE[1]),
    "data": ("Data", PALETTE[2]),
    "pipeline": ("Pipeline", PALETTE[3]),
}


@dataclass(frozen=True)
class StepTimeSettings(CanvasSettings):
    """Time of a training step by topology and job, stacked by what it is spent on."""

    figure: Literal["step_time"] = "step_time"
    height_inches: Height = 11

    only: tuple[str, ...] = ()
    """Mapped topologies to show, in that order; empty: all that there are."""

    cut_over_shortest: Annotated[float, AtLeast(1)] | None = 3.0
    """How many times longer than the shortest of its panel a bar is cut; null: none
    is."""

    named: tuple[str, ...] = ("railx_hyperx_m4n2", "railx_hyperx")
    """Topologies that the words name beside the shortest and longest step; those that
    are not mapped are left out."""


def draw(settings: StepTimeSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Horizontal bars in seconds, cut where much longer than the shortest.

    A note stands where there is no room or no price.
    """
    rows = tables.read("steps", "topology", settings.only)
    jobs = list(dict.fromkeys(rows["job"]))
    bases = [basis for basis in _BASES if basis in set(rows["basis"])]
    chips = ", ".join(f"{count:,}" for count in sorted(set(rows["chips"])))
    subtitle = (
        f"Jobs of {chips} chips: tensor parallelism in a node, the others along rows and columns of"
        " nodes. Nothing overlaps. Equal cost: ports scaled to the reference's cost; links inside"
        " nodes, boards and servers in no bill, one rate on both bases. A bar with a break is cut:"
        " its number is the whole time."
    )
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        panels = page.subplots(len(bases), len(jobs), sharey=True, squeeze=False)
        cut: dict[tuple[str, str], list[str]] = {}
        for across, basis in zip(panels, bases, strict=True):
            for axes, job in zip(across, jobs, strict=True):
                cut[job, basis] = _panel(axes, rows, job, basis, settings.cut_over_shortest)
                title = f"{label(job)}, {_BASES[basis]}"
                axes.set_title(panel_title(title, len(jobs), settings))
        share_legend(page, entries(panels[0, 0]), len(_PARTS))
    return Drawn(
        _caption(rows, jobs, bases, settings.named, cut),
        _alternative(rows, jobs, bases, settings.named),
        rows,
    )


def _panel(axes: Axes, rows: DataFrame, job: str, basis: str, cut: float | None) -> list[str]:
    """The bars of a job; the times of those that are cut are returned."""
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(rows["topology"]))
    without_room = set(rows.loc[(rows["job"] == job) & rows["reason"].notna(), "topology"])
    group = rows[(rows["job"] == job) & (rows["basis"] == basis)]
    seconds = (
        group[group["part"].notna()]
        .pivot_table(index="topology", columns="part", values="ms", aggfunc="sum")
        .reindex(names)
        / 1e3
    )
    total = seconds.sum(axis=1)
    drawn = total[total > 0]
    most = float(drawn.max()) if len(drawn) else 1.0
    limit = most if cut is None or drawn.empty else min(most, cut * float(drawn.min()))
    left = 0.0 * seconds.sum(axis=1)
    for part, (title, colour) in _PARTS.items():
        width = seconds[part].fillna(0) if part in seconds else left * 0
        end = (left + width).clip(upper=limit)
        axes.barh(range(len(names)), end - left, left=left, color=colour, label=title, height=0.74)
        left = end
    texts = [quantity(value) for value in total]
    shortened = cut_bars(axes, list(total), range(len(names)), limit, texts)
    for position, name in enumerate(names):
        if total[name] <= limit:
            _mark(axes, position, float(total[name]), name in without_room)
    axes.set_xlim(0, 1.2 * limit)
    axes.set_xlabel("Step time (s)")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    if not axes.yaxis_inverted():  # shared by all panels
        axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    return shortened


def _mark(axes: Axes, position: int, seconds: float, without_room: bool) -> None:
    """The number at the end of a bar, or the note in the place of a bar."""
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    if seconds > 0:
        axes.annotate(quantity(seconds), (seconds, position), (3, 0), **style)
    else:
        axes.annotate(
            "no room for the job" if without_room else "no price",
            (0, position),
            (3, 0),
            color=GREY,
            **style,
        )


def _steps(rows: DataFrame, job: str, basis: str) -> Series:
    """Seconds of a step by topology, shortest first."""
    part = rows[(rows["job"] == job) & (rows["basis"] == basis) & rows["part"].notna()]
    return part.groupby("topology", sort=False)["step_ms"].first().sort_values() / 1e3


def _span(rows: DataFrame, job: str, basis: str, named: Sequence[str]) -> str:
    """The shortest and longest step of a panel, and those of named topologies."""
    steps = _steps(rows, job, basis)
    ends = [str(steps.index[0]), str(steps.index[-1])]
    chosen = [name for name in named if name in steps.index]
    names = dict.fromkeys([ends[0], *chosen, ends[1]])
    return ", ".join(f"{quantity(float(steps[name]))} s on {label(name)}" for name in names)


def _caption(
    rows: DataFrame,
    jobs: list[str],
    bases: list[str],
    named: Sequence[str],
    cut: dict[tuple[str, str], list[str]],
) -> str:
    sentences = [
        f"{label(job)} at {_BASES[basis]}: {_span(rows, job, basis, named)}."
        for job in jobs
        for basis in bases
        if len(_steps(rows, job, basis))
    ]
    shortened = sum(map(len, cut.values()))
    if shortened:
        sentences.append(f"{shortened} bars are cut and have their whole time as a number.")
    return f"Estimated time of a training step. {' '.join(sentences)} {_METHOD}"


def _alternative(rows: DataFrame, jobs: list[str], bases: list[str], named: Sequence[str]) -> str:
    parts = [
        f"{label(job)}, {_BASES[basis]}, {_span(rows, job, basis, named)}"
        for job in jobs
        for basis in bases
        if len(_steps(rows, job, basis))
    ]
    return (
        f"Bars of the step time of {rows['topology'].nunique()} topologies, a panel per job and"
        " basis, stacked by compute, bubble and communication. Shortest, named and longest:"
        f" {'; '.join(parts)}."
    )


FIGURE = Figure(
    StepTimeSettings,
    "Time of a training step by topology",
    "railx",
    (
        FigureInput(
            "steps", "mapping.steps", "topology job basis part ms step_ms reason chips fidelity"
        ),
    ),
    draw,
)
