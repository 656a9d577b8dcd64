"""Loss of training runs against the step, and how far they are from one of them.

Plans that distribute the same batches in different ways should train alike
(InfiniPipe's convergence experiment): above, the curves lie on one another; below, what
is left between them, by the order in which sums are taken. Runs under electrical
switching alone are shown: what switches changes times and no loss. Repeats are drawn as
their median.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import entries, share_legend
from railx.figures.tables import Tables, where
from railx.figures.theme import LINE_POINTS, colours, dot
from railx.figures.words import fidelity_line, quantity
from railx.settings import NotEmpty

__all__ = ["FIGURE", "LossCurvesSettings"]

# Curves that coincide would hide each other: each is narrower than the one below it.
_LINES: tuple[tuple[float, Any], ...] = ((3.2, "-"), (2.0, (0, (5, 3))), (1.0, (0, (1, 2))))
#: The words give the mean of so many steps at the start and at the end.
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
    frame = where(frame, mode="electrical")
    points = _points(frame, list(settings.runs))
    repeats = int(frame.groupby("run")["repeat"].nunique().min())
    times = "once" if repeats == 1 else f"{repeats} times"
    subtitle = f"""Mean loss of a token at each step; every run trained {times} under electrical
        switching, lines are medians of repeats. Below, steps at which the losses are equal to the
        last digit have no mark."""
    colour = dict(zip(settings.runs, colours(settings.runs).values(), strict=True))
    with canvas(subtitle, fidelity_line(frame["fidelity"])) as page:
        above, below = page.subplots(2, 1, sharex=True, height_ratios=[1.8, 1])
        for number, (run, words) in enumerate(settings.runs.items()):
            rows, (width, dashes) = where(points, run=run), _LINES[number % len(_LINES)]
            style = {"linewidth": width * LINE_POINTS, "linestyle": dashes, "label": words}
            above.plot(rows["step"], rows["loss"], color=colour[run], **style)
            if number:
                _distance(below, rows, colour[run])
        above.set_ylabel("Loss (nats)")
        below.set(ylabel="Difference / loss", xlabel="Step")
        share_legend(page, entries(above), len(settings.runs))
    reference, *others = settings.runs.items()
    largest = ", ".join(
        f"{words.lower()} {quantity(float(where(points, run=run)['difference'].max()))}"
        for run, words in others
    )
    steps = sorted(set(points["step"]))
    first, last = (
        quantity(float(points[points["step"].isin(chosen)]["loss"].mean()))
        for chosen in (steps[:_MEAN_STEPS], steps[-_MEAN_STEPS:])
    )
    shown = min(_MEAN_STEPS, len(steps))
    caption = f"""Loss of {len(settings.runs)} runs on the same batches over {len(steps)} steps:
        from {first} (mean of the first {shown}) to {last} (mean of the last {shown})."""
    if others:
        caption += f""" Largest difference at any step from {reference[1].lower()}, relative to the
            loss: {largest}."""
    alternative = f"""Lines of the loss over the step for {", ".join(settings.runs.values())}, from
        {first} to {last}; below, dots of their relative
        difference{f" of at most {largest}" if others else ""}."""
    return Drawn(caption, alternative, points)


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
    first = where(points, run=runs[0]).set_index("iteration")["loss"]
    points["difference"] = (points["loss"] / points["iteration"].map(first) - 1).abs()
    apart = [run for run in runs if where(points, run=run)["difference"].isna().all()]
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
    axes.plot(shown["step"], shown["difference"], **dot(colour, 4))
    if len(shown):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


FIGURE = declare(
    LossCurvesSettings,
    "One loss curve for every plan",
    "infinipipe",
    draw,
    iterations="training.iterations: run mode iteration repeat rank loss fidelity",
)
