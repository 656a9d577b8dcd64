"""Loss of training runs against the step, and how far they are from one of them.

Plans that distribute the same batches in different ways should train alike
(InfiniPipe's convergence experiment): above, the curves lie on one another; below, what
is left between them, by the order in which sums are taken. Runs under electrical
switching alone are shown: what switches changes times and no loss. Repeats are drawn as
their median.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import LINE_POINTS, canvas, colours, quantity, share_legend
from railx.settings import NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "LossCurvesSettings"]

_COLUMNS = ("run", "mode", "iteration", "repeat", "rank", "loss", "fidelity")
# Curves that coincide would hide each other: each is narrower than the one below it.
_WIDTHS = (3.2, 2.0, 1.0)
_DASHES = ("-", (0, (5, 3)), (0, (1, 2)))
#: At the start and at the end, the mean of so many steps is told.
_TOLD = 5


@dataclass(frozen=True)
class LossCurvesSettings(CanvasSettings):
    """Loss against step for several runs on the same batches."""

    figure: Literal["loss_curves"]
    """Which figure it is."""

    runs: Annotated[dict[str, str], NotEmpty()]
    """Training runs to show, in that order, and the words for each; the others are held
    against the first."""


def draw(settings: LossCurvesSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """The losses above, below their distance from those of the first run.

    Raises ValueError where a run is not there or has no step in common with the first.
    """
    frame = read_frames(inputs, "iterations", _COLUMNS, "run", tuple(settings.runs))
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
    with canvas(
        settings,
        output,
        "One loss curve for every plan",
        subtitle,
        fidelity_line(frame["fidelity"]),
    ) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.8, 1])
        for number, (run, words) in enumerate(settings.runs.items()):
            own = points[points["run"] == run]
            look = number % len(_WIDTHS)
            above.plot(
                own["step"],
                own["loss"],
                color=colour[run],
                linewidth=_WIDTHS[look] * LINE_POINTS,
                linestyle=_DASHES[look],
                label=words,
            )
            if number:
                _distance(below, own, colour[run])
        above.set_ylabel("Loss (nats)")
        below.set_ylabel("Difference / loss")
        below.set_xlabel("Step")
        handles, words_shown = above.get_legend_handles_labels()
        share_legend(figure, handles, words_shown, len(settings.runs))
    return Drawn(_caption(points, settings), _alternative(points, settings), points)


def _points(frame: pd.DataFrame, runs: list[str]) -> pd.DataFrame:
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


def _distance(axes: Axes, own: pd.DataFrame, colour: str) -> None:
    """A mark at each step, on a logarithmic axis as soon as one differs."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    shown = own[own["difference"] > 0]
    axes.plot(shown["step"], shown["difference"], "o", color=colour, markersize=4)
    if len(shown):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _ends(points: pd.DataFrame) -> tuple[float, float]:
    """The mean loss of all runs over the first steps and over the last."""
    steps = sorted(set(points["step"]))
    first, last = (
        points[points["step"].isin(chosen)]["loss"].mean()
        for chosen in (steps[:_TOLD], steps[-_TOLD:])
    )
    return float(first), float(last)


def _largest(points: pd.DataFrame, settings: LossCurvesSettings) -> str:
    others = list(settings.runs.items())[1:]
    return ", ".join(
        f"{words.lower()} {quantity(float(points[points['run'] == run]['difference'].max()))}"
        for run, words in others
    )


def _caption(points: pd.DataFrame, settings: LossCurvesSettings) -> str:
    first, last = _ends(points)
    reference = next(iter(settings.runs.values()))
    told = min(_TOLD, points["step"].nunique())
    text = (
        f"Loss of {len(settings.runs)} runs on the same batches over"
        f" {points['step'].nunique()} steps: from {quantity(first)} (mean of the first {told}) to"
        f" {quantity(last)} (mean of the last {told})."
    )
    if len(settings.runs) > 1:
        text += (
            f" Largest difference at any step from {reference.lower()}, relative to the loss:"
            f" {_largest(points, settings)}."
        )
    return text


def _alternative(points: pd.DataFrame, settings: LossCurvesSettings) -> str:
    first, last = _ends(points)
    return (
        f"Lines of the loss over the step for {', '.join(settings.runs.values())}, from"
        f" {quantity(first)} to {quantity(last)}; below, dots of their relative difference"
        f" {'' if len(settings.runs) == 1 else 'of at most ' + _largest(points, settings)}".rstrip()
        + "."
    )


FIGURE = Figure(
    settings=LossCurvesSettings,
    title="One loss curve for every plan",
    paper="infinipipe",
    inputs=(FigureInput("iterations", "training.iterations", columns=_COLUMNS),),
    draw=draw,
)
