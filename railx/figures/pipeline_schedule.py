"""Gantt chart of a pipeline plan: one row per stage, one block per pass of a chunk.

Chunks run in 1F1B order. The kind of a chunk (whole sequences, a slice of one, or a
tail with whole ones; InfiniPipe, section III) sets the hue, the direction (forward or
backward) sets the lightness. The bubble is the share of a row in which a stage has
nothing to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import INK, PALETTE, canvas, label, lighter, quantity, share_legend
from railx.settings import NonNegative

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "PipelineScheduleSettings"]

_CAPTION = """\
One iteration of a pipeline plan. Each row is a pipeline stage, each block a forward
(light) or backward (dark) pass of a chunk in one-forward-one-backward order; the number
is the chunk's place in forward order. The hue tells chunks of whole sequences, slices
of one long sequence, and a tail of a long sequence packed with whole ones apart. Times
are predictions of the cost model, not measurements.
"""
_ALTERNATIVE = (
    "Gantt chart: one row per pipeline stage, one block per forward or backward pass of a "
    "chunk over predicted time."
)

_COLUMNS = (
    "plan",
    "iteration",
    "pipeline",
    "replica",
    "stage",
    "chunk",
    "kind",
    "start_ms",
    "end_ms",
    "fidelity",
)
_HUES = {"batched": PALETTE[0], "split": PALETTE[5], "hybrid": PALETTE[2], "unknown": PALETTE[0]}
_KINDS = {
    "batched": "whole sequences",
    "split": "slice of a sequence",
    "hybrid": "tail and whole sequences",
    "unknown": "chunk",
}


@dataclass(frozen=True)
class PipelineScheduleSettings(CanvasSettings):
    """Gantt chart of one iteration of pipeline plans."""

    figure: Literal["pipeline_schedule"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Plans to show, in that order; empty: all of this kind."""

    iteration: Annotated[int, NonNegative()]
    """Iteration to show."""

    label_blocks: bool
    """Whether blocks have the number of their chunk, where there is room."""


def draw(settings: PipelineScheduleSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Draw ``settings.iteration`` of every schedule that has rows, one panel per plan.

    A sequence-parallel plan has none. Raises ValueError when no schedule has rows, or
    one lacks the iteration.
    """
    from matplotlib.patches import Patch

    frame = _with_kinds(read_frames(inputs, "schedule", _COLUMNS, "plan", settings.only), inputs)
    schedules = {
        str(plan): _one_after_another(_iteration(own, settings.iteration, str(plan)))
        for plan, own in frame.groupby("plan", sort=False)
    }
    span = max(frame["end_ms"].max() for frame in schedules.values())
    unit, divisor = ("s", 1000.0) if span >= 10_000 else ("ms", 1.0)
    footnote = fidelity_line(
        (fidelity for frame in schedules.values() for fidelity in frame["fidelity"]),
        "Numbers are chunks in forward order",
    )
    subtitle = (
        f"Iteration {settings.iteration}, one forward, one backward (1F1B). Light: forward. Dark:"
        " backward. White: bubble."
    )
    rows = [frame[["replica", "stage"]].drop_duplicates().shape[0] for frame in schedules.values()]
    with canvas(settings, output, "Pipeline schedule", subtitle, footnote) as figure:
        panels = figure.subplots(len(schedules), 1, sharex=True, squeeze=False, height_ratios=rows)[
            :, 0
        ]
        for axes, (name, frame) in zip(panels, schedules.items(), strict=True):
            _gantt(axes, name, frame, span, unit, divisor, settings.label_blocks)
        panels[-1].set_xlabel(f"Predicted time ({unit})")
        panels[-1].set_xlim(0, span / divisor * 1.005)
        kinds = [
            kind
            for kind in _HUES
            if any((frame["chunk_kind"] == kind).any() for frame in schedules.values())
        ]
        handles = [
            Patch(facecolor=_colour(str(kind), str(way)))
            for kind in kinds
            for way in ("forward", "backward")
        ]
        names = [
            f"{way.capitalize()}, {_KINDS[kind]}"
            for kind in kinds
            for way in ("forward", "backward")
        ]
        share_legend(figure, handles, names, len(kinds))
    return Drawn(_CAPTION, _ALTERNATIVE, frame)


def _iteration(frame: pd.DataFrame, iteration: int, plan: str) -> pd.DataFrame:
    rows = frame[frame["iteration"] == iteration]
    if rows.empty:
        known = ", ".join(map(str, sorted(set(frame["iteration"]))))
        raise ValueError(
            f"plan {plan}: iteration {iteration} is not in the schedule; allowed: {known}"
        )
    return rows


def _with_kinds(rows: pd.DataFrame, inputs: FigureFiles) -> pd.DataFrame:
    """The rows with the kind of their chunk.

    Unchanged where no tables of the plans are given.
    """
    if not inputs.get("groups"):
        return rows.assign(chunk_kind="unknown")
    keys = ["plan", "iteration", "pipeline", "chunk"]
    groups = read_frames(
        inputs, "groups", ("plan", "iteration", "micro_batch", "group", "chunk_kind")
    ).rename(columns={"micro_batch": "pipeline", "group": "chunk"})
    kinds = groups[[*keys, "chunk_kind"]].drop_duplicates(keys)
    joined = rows.merge(kinds, on=keys, how="left")
    return joined.assign(chunk_kind=joined["chunk_kind"].fillna("unknown"))


def _one_after_another(rows: pd.DataFrame) -> pd.DataFrame:
    """The pipelines of a replica one after another.

    Also where the table counts the time of each from its own start.
    """
    import pandas as pd

    parts = []
    for _, replica in rows.groupby("replica"):
        end = 0.0
        for _, pipeline in replica.groupby("pipeline", sort=True):
            shift = (
                end - pipeline["start_ms"].min() if pipeline["start_ms"].min() < end - 1e-6 else 0.0
            )
            moved = pipeline.assign(
                start_ms=pipeline["start_ms"] + shift, end_ms=pipeline["end_ms"] + shift
            )
            end = moved["end_ms"].max()
            parts.append(moved)
    return pd.concat(parts, ignore_index=True)


def _gantt(
    axes: Axes, name: str, frame: pd.DataFrame, span: float, unit: str, divisor: float, labels: bool
) -> None:
    lanes = sorted(set(zip(frame["replica"], frame["stage"], strict=True)))
    place = {lane: i for i, lane in enumerate(lanes)}
    for (kind, way), rows in frame.groupby(["chunk_kind", "kind"]):
        y = [place[lane] for lane in zip(rows["replica"], rows["stage"], strict=True)]
        width = (rows["end_ms"] - rows["start_ms"]) / divisor
        axes.barh(
            y,
            width,
            left=rows["start_ms"] / divisor,
            height=0.78,
            color=_colour(str(kind), str(way)),
            edgecolor="white",
            linewidth=0.7,
        )
    if labels:
        _number_blocks(axes, frame, place, span, divisor)
    several = len({replica for replica, _ in lanes}) > 1
    axes.set_yticks(
        range(len(lanes)),
        [f"Replica {r}, stage {s}" if several else f"Stage {s}" for r, s in lanes],
    )
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    total = frame["end_ms"].max()
    bubble = 100 * (1 - (frame["end_ms"] - frame["start_ms"]).sum() / (total * len(lanes)))
    chunks = frame[["pipeline", "chunk"]].drop_duplicates().shape[0]
    axes.set_title(
        f"{label(name)}: {quantity(total / divisor)} {unit}, {chunks} chunks, bubble"
        f" {quantity(bubble)} %"
    )


def _number_blocks(
    axes: Axes, frame: pd.DataFrame, place: dict[tuple[int, int], int], span: float, divisor: float
) -> None:
    wide = frame[(frame["end_ms"] - frame["start_ms"]) / span > 0.012]
    for row in wide.to_dict("records"):
        axes.text(
            (row["start_ms"] + row["end_ms"]) / 2 / divisor,
            place[row["replica"], row["stage"]],
            str(row["chunk"]),
            ha="center",
            va="center",
            color="white" if row["kind"] == "backward" else INK,
            clip_on=True,
        )


def _colour(kind: str, way: str) -> tuple[float, float, float]:
    return lighter(_HUES[kind], 0.55 if way == "forward" else 0.0)


FIGURE = Figure(
    settings=PipelineScheduleSettings,
    title="Pipeline schedule",
    paper="infinipipe",
    inputs=(
        FigureInput("schedule", "plan.schedule", plan_kind="pipeline"),
        FigureInput("groups", "plan.groups", required=False, plan_kind="pipeline"),
    ),
    draw=draw,
)
