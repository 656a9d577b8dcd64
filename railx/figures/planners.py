"""Predicted time of an iteration under each planner, a panel for each corpus.

A bar is the mean over the batches of a plan, beside it what it is of the reference's.
Where FlexSP publishes a bar of the same system, it is a hollow diamond. That the other
planners stand beside one another is ours: no paper compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    GREY,
    PALETTE,
    PUBLISHED,
    canvas,
    label,
    lighter,
    published_handle,
    published_marks,
    quantity,
    share_legend,
)
from railx.settings import NotEmpty, SettingsError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "PlannersSettings"]

_GROUPS = ("plan", "corpus", "iteration", "micro_batch", "predicted_ms", "fidelity")
_SECONDS = ("model", "context", "corpus", "system", "seconds_per_iteration")
_SYNTHETIC = "_like"
_BAR = 0.66
#: The planner of this project.
_OURS = "flexsp"


@dataclass(frozen=True)
class PlannersSettings(CanvasSettings):
    """Predicted time of an iteration by planner and corpus."""

    figure: Literal["planners"]
    """Which figure it is."""

    planners: Annotated[dict[str, str], NotEmpty()]
    """Beginnings of plan names, and the words for each: a bar is the plan that is
    called by one of them, _ and the corpus; those that the experiment lacks are left
    out."""

    reference: Annotated[str, NotEmpty()]
    """Planner that the others are compared with, one of ``planners``."""

    published: dict[str, str]
    """Published system of a planner, as the published table names it."""

    model: Annotated[str, NotEmpty()]
    """Model of the plans, as the published table names it."""

    context: Annotated[str, NotEmpty()]
    """Longest context of the plans, as the published table names it."""

    def __post_init__(self) -> None:
        for key, names in (("reference", [self.reference]), ("published", list(self.published))):
            unknown = [name for name in names if name not in self.planners]
            if unknown:
                raise SettingsError(
                    key, f"got {', '.join(unknown)}; allowed: {', '.join(self.planners)}"
                )


def draw(settings: PlannersSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A panel per corpus, a bar per planner."""
    from matplotlib.patches import Patch

    bars = _bars(settings, inputs)
    corpora = list(dict.fromkeys(bars["corpus"]))
    planners = [name for name in settings.planners if name in set(bars["planner"])]
    reference = settings.planners[settings.reference]
    subtitle = (
        f"Seconds of an iteration, and what they are of those of “{reference}”. One cost model and"
        " the same batches for all; Megatron-LM's own communication is derived from it. Hollow"
        " diamonds: read off FlexSP's bars, whose lengths are other ones where ours are synthetic."
    )
    with canvas(
        settings,
        output,
        "Planners for sequences of varying length",
        subtitle,
        fidelity_line(bars["fidelity"], _NOTE),
    ) as figure:
        panels = figure.subplots(1, len(corpora), sharey=True, squeeze=False)[0]
        for axes, corpus in zip(panels, corpora, strict=True):
            _panel(axes, bars[bars["corpus"] == corpus], planners, settings)
            axes.set_title(label(corpus))
        handles: list[Any] = [Patch(**_fill("", settings))]
        texts = ["Ours: plans of baselines"]
        if _OURS in planners:
            handles.append(Patch(**_fill(_OURS, settings)))
            texts.append(f"Ours: {settings.planners[_OURS].lower()}")
        if settings.reference in planners:
            handles.append(Patch(**_fill(settings.reference, settings)))
            texts.append("Ours: the reference")
        if bars["published_seconds"].notna().any():
            handles.append(published_handle())
            texts.append(f"{PUBLISHED.capitalize()} (FlexSP)")
        share_legend(figure, handles, texts, 4)
    return Drawn(_caption(settings, bars), _alternative(settings, bars), bars)


_NOTE = "No paper compares these planners; the comparison is ours"


def _bars(settings: PlannersSettings, inputs: FigureFiles) -> pd.DataFrame:
    """A row per planner and corpus: seconds, share of the reference, published."""
    import pandas as pd

    groups = read_frames(inputs, "groups", _GROUPS)
    published = published_frame(inputs, "seconds", _SECONDS)
    own = published[
        (published["model"] == settings.model) & (published["context"] == settings.context)
    ]
    seconds = {
        (str(row["corpus"]), str(row["system"])): float(row["seconds_per_iteration"])
        for row in own.to_dict("records")
    }
    rows = []
    for corpus, plans in groups.groupby("corpus", sort=False):
        lengths = str(corpus).removesuffix(_SYNTHETIC)
        for planner in settings.planners:
            plan = f"{planner}_{settings.model}_{settings.context}_{lengths}"
            chosen = plans[plans["plan"] == plan]
            if chosen.empty:
                continue
            slowest = chosen.groupby(["iteration", "micro_batch"])["predicted_ms"].max()
            key = (lengths, settings.published.get(planner, ""))
            rows.append(
                {
                    "corpus": str(corpus),
                    "planner": planner,
                    "plan": str(chosen["plan"].iloc[0]),
                    "seconds": float(slowest.groupby("iteration").sum().mean()) / 1e3,
                    "published_seconds": seconds.get(key),
                    "fidelity": str(chosen["fidelity"].iloc[0]),
                }
            )
    if not rows:
        raise ValueError(
            f"planners: got {', '.join(settings.planners)}; allowed: beginnings of plan names of"
            " this experiment, each with its model, context and corpus"
        )
    bars = pd.DataFrame(rows).astype({"published_seconds": float})
    base = bars[bars["planner"] == settings.reference].set_index("corpus")["seconds"]
    if len(base):
        # Without the reference a corpus is planned for something else.
        bars = bars[bars["corpus"].isin(base.index)]
    return bars.assign(of_reference=bars["seconds"] / bars["corpus"].map(base))


def _fill(planner: str, settings: PlannersSettings) -> dict[str, Any]:
    """How a bar is filled: lighter, so that a published mark on it can be seen."""
    colour = PALETTE[2] if planner == _OURS else PALETTE[0]
    if planner == settings.reference:
        colour = GREY
    return {"facecolor": lighter(colour, 0.2), "linewidth": 0}


def _panel(axes: Axes, bars: pd.DataFrame, planners: list[str], settings: PlannersSettings) -> None:
    from matplotlib.ticker import MaxNLocator

    most = float(bars[["seconds", "published_seconds"]].max().max())
    for row in bars.to_dict("records"):
        place = planners.index(row["planner"])
        axes.barh(place, row["seconds"], _BAR, **_fill(row["planner"], settings))
        share = row["of_reference"]
        axes.annotate(
            quantity(row["seconds"]) + (f" ({share:.2f})" if share == share else ""),
            (1, place),
            (-6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center",
        )
    marked = bars.dropna(subset=["published_seconds"])
    places = [planners.index(name) for name in marked["planner"]]
    published_marks(axes, marked["published_seconds"], places)
    axes.set_yticks(range(len(planners)), [settings.planners[name] for name in planners])
    axes.set_ylim(len(planners) - 0.5, -0.5)
    axes.set_xlim(0, 2.1 * most)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.set_xlabel("Seconds an iteration")
    axes.grid(visible=False, axis="y")


def _caption(settings: PlannersSettings, bars: pd.DataFrame) -> str:
    parts = []
    for corpus, own in bars.groupby("corpus", sort=False):
        rows = own.sort_values("seconds").to_dict("records")
        best, worst = rows[0], rows[-1]
        parts.append(
            f"{label(str(corpus))}: from {quantity(best['seconds'])} s"
            f" ({settings.planners[best['planner']]}) to {quantity(worst['seconds'])} s"
            f" ({settings.planners[worst['planner']]})"
        )
    sentences = [f"Predicted seconds of an iteration. {'; '.join(parts)}."]
    both = bars.dropna(subset=["published_seconds"])
    if len(both):
        words = [
            f"{settings.planners[row['planner']]} on {label(row['corpus'])}"
            f" {quantity(row['seconds'])} for {quantity(row['published_seconds'])}"
            for row in both.to_dict("records")
        ]
        sentences.append(f"Beside FlexSP's bars: {'; '.join(words)}.")
    sentences.append(
        "All come from the cost model with FlexSP's constants, not from a machine. Baselines are"
        " our implementations of published rules; runtimes that do not wait between micro-batches"
        " (dynamic context parallelism, ByteScale) would take less than a plan, which does."
    )
    return " ".join(sentences)


def _alternative(settings: PlannersSettings, bars: pd.DataFrame) -> str:
    parts = [
        f"{label(str(corpus))}: "
        + ", ".join(
            f"{settings.planners[row['planner']]} {quantity(row['seconds'])}"
            for row in own.to_dict("records")
        )
        for corpus, own in bars.groupby("corpus", sort=False)
    ]
    return f"Bars of predicted seconds of an iteration by planner. {'; '.join(parts)}."


FIGURE = Figure(
    settings=PlannersSettings,
    title="Planners for sequences of varying length",
    paper="flexsp",
    inputs=(
        FigureInput("groups", "plan.groups", columns=_GROUPS, plan_kind="sequence_parallel"),
        FigureInput("seconds", published="flexsp_iteration_seconds.csv", columns=_SECONDS),
    ),
    draw=draw,
)
