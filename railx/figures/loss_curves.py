"""Loss of training runs against the step, and how far they are from one of them.

Plans that distribute the same batches in different ways should train alike
(InfiniPipe's convergence experiment): above, the curves lie on one another; below, what
is left between them, by the order in which sums are taken. Runs under electrical
switching alone are shown: what switches changes times and no loss. Repeats are drawn as
their median.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from railx.errors import UserError
from railx.figures.canvas import share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import entries
from railx.figures.tables import FigureInput, Tables
from railx.figures.theme import LINE_POINTS, colours
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, quantity
from railx.settings import NotEmpty

__all__ = ["FIGURE", "LossCurvesSettings"]

# Curves that coincide would hide each other: each is narrower than the one below it.
_WIDTHS = (3.2, 2.0, 1.0)
_DASHES = ("-", (0, (5, 3)), (0, (1, 2)))
#: At the start and at the end, the mean of so many steps is told.
_MEAN_STEPS = 5


@dataclass(frozen=True)
class LossCurvesSettings(CanvasSettings):
    """Loss against step for several runs on the same batches."""

    figure: Literal["loss_curves"] = "loss_curves"
    height_inches: Height = 5.8

    runs: Annotated[dict[str, str], NotEmpty()] = field(
        default_factory=lambda: {
            "static_stdlib": "One degree for all",
            "flexsp_stdlib": "Groups that adapt",
            "pipeline_stdlib": "Elastic pipelines",
        }
    )
    """Training runs to show, in that order, and the words for each; the others are held
    against the first."""


def draw(settings: LossCurvesSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """The losses above, below their distance from those of the first run.

    Raises ValueError where a run is not there or has no step in common with the first.
    """
    frame = tables.read("iterations", "run", tuple(settings.runs))
    frame = frame[frame["mode"] == "electrical"]
    points = _points(frame, list(settings.runs))
    repeats = int(frame.groupby("run")["repeat"].nunique().min())
    times = "once" if repeats == 1 else f"{repeats} times"
    subtitle = (
        f"Mean loss of a token at each step; every run trained {times} under electrical"
        " switching, lines are medians of repeats. Below, steps at which the losses are equal"
        " to the last digit have no mark."
    )
    colour = dict(zip(settings.runs, colours(settings.runs).values(), strict=True))
    with canvas(subtitle, fidelity_line(frame["fidelity"])) as page:
        above, below = page.subplots(2, 1, sharex=True, height_ratios=[1.8, 1])
        for number, (run, words) in enumerate(settings.runs.items()):
            rows = points[points["run"] == run]
            look = number % len(_WIDTHS)
            above.plot(
                rows["step"],
                rows["loss"],
                color=colour[run],
                linewidth=_WIDTHS[look] * LINE_POINTS,
                linestyle=_DASHES[look],
                label=words,
            )
            if number:
                _distance(below, rows, colour[run])
        above.set_ylabel("Loss (nats)")
        below.set_ylabel("Difference / loss")
        below.set_xlabel("Step")
        share_legend(page, entries(above), len(settings.runs))
    return Drawn(_caption(points, settings), _alternative(points, settings), points)


def _points(frame: DataFrame, runs: list[str]) -> DataFrame:
    """A row per run and step: the median loss over repeats, and how far it is from that
    of the first run, relative to it.
    """
    missing = [run for run in runs if not (frame["run"] == run).any()]
    if missing:
        raise UserError(
            f"runs: {', '.join(missing)} has no iterations under electrical switching; allowed:"
            " runs that have some"
        )
    repeats = frame.groupby(["run", "iteration", "repeat"], sort=False)["loss"].mean()
    losses = repeats.groupby(["run", "iteration"], sort=False).median().reset_index()
    losses["run"] = losses["run"].astype("category").cat.set_categories(runs)
    points = losses.sort_values(["run", "iteration"]).astype({"run": str})
    first = points[points["run"] == runs[0]].set_index("iteration")["loss"]
    points["difference"] = (points["loss"] / points["iteration"].map(first) - 1).abs()
    apart = [run for run in runs if points[points["run"] == run]["difference"].isna().all()]
    if apart:
        raise UserError(
            f"runs: {', '.join(apart)} has no step in common with {runs[0]}; allowed: runs of the"
            " same steps"
        )
    # A step is counted from 1, as a reader does.
    points.insert(1, "step", points.pop("iteration") + 1)
    return points.reset_index(drop=True)


def _distance(axes: Axes, rows: DataFrame, colour: str) -> None:
    """A mark at each step, on a logarithmic axis as soon as one differs."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    shown = rows[rows["difference"] > 0]
    axes.plot(shown["step"], shown["difference"], "o", color=colour, markersize=4)
    if len(shown):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _ends(points: DataFrame) -> tuple[float, float]:
    """The mean loss of all runs over the first steps and over the last."""
    steps = sorted(set(points["step"]))
    first, last = (
        points[points["step"].isin(chosen)]["loss"].mean()
        for chosen in (steps[:_MEAN_STEPS], steps[-_MEAN_STEPS:])
    )
    return float(first), float(last)


def _largest(points: DataFrame, settings: LossCurvesSettings) -> str:
    others = list(settings.runs.items())[1:]
    return ", ".join(
        f"{words.lower()} {quantity(float(points[points['run'] == run]['difference'].max()))}"
        for run, words in others
    )


def _caption(points: DataFrame, settings: LossCurvesSettings) -> str:
    first, last = _ends(points)
    reference = next(iter(settings.runs.values()))
    shown = min(_MEAN_STEPS, points["step"].nunique())
    text = (
        f"Loss of {len(settings.runs)} runs on the same batches over"
        f" {points['step'].nunique()} steps: from {quantity(first)} (mean of the first {shown}) to"
        f" {quantity(last)} (mean of the last {shown})."
    )
    if len(settings.runs) > 1:
        text += (
            f" Largest difference at any step from {reference.lower()}, relative to the loss:"
            f" {_largest(points, settings)}."
        )
    return text


def _alternative(points: DataFrame, settings: LossCurvesSettings) -> str:
    first, last = _ends(points)
    return (
        f"Lines of the loss over the step for {', '.join(settings.runs.values())}, from"
        f" {quantity(first)} to {quantity(last)}; below, dots of their relative difference"
        f" {'' if len(settings.runs) == 1 else 'of at most ' + _largest(points, settings)}".rstrip()
        + "."
    )


FIGURE = Figure(
    LossCurvesSettings,
    "One loss curve for every plan",
    "infinipipe",
    (
        FigureInput(
            "iterations", "training.iterations", "run mode iteration repeat rank loss fidelity"
        ),
    ),
    draw,
)
