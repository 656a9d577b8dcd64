"""Gantt chart of a pipeline plan: one row per stage, one block per pass of a chunk.

The kind of a chunk (whole sequences, a slice of one, or a tail with whole ones;
InfiniPipe, section III) sets the hue, the pass sets the lightness: forward, backward
and, where a schedule puts it off, the weights' part of backward. The bubble is the
share of a row in which a stage has nothing to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from railx.errors import UserError
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

_COLUMNS = (
    "plan",
    "iteration",
    "pipeline",
    "replica",
    "schedule",
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
#: Passes and how much white each is mixed with.
_PASSES = {"forward": 0.55, "backward": 0.0, "weight": 0.78}
_PASS_WORDS = {"forward": "Forward", "backward": "Backward", "weight": "Weights"}
_SCHEDULES = {
    "1f1b": "one forward, one backward (1F1B)",
    "gpipe": "all forward, then all backward (GPipe)",
    "interleaved": "interleaved 1F1B",
    "zero_bubble": "1F1B with weights' gradients put off (zero-bubble)",
    "explicit": "an order of the plan's own",
}
#: Widths of a digit of a number in a block, in points per point of its size.
_DIGIT = 0.64


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
    import pandas as pd
    from matplotlib.patches import Patch

    frame = _with_kinds(read_frames(inputs, "schedule", _COLUMNS, "plan", settings.only), inputs)
    schedules = {
        str(plan): _one_after_another(_iteration(own, settings.iteration, str(plan)))
        for plan, own in frame.groupby("plan", sort=False)
    }
    # Passes that take no time have an axis too.
    spans = {name: float(frame["end_ms"].max()) or 1.0 for name, frame in schedules.items()}
    # Plans of unlike length have an axis of time each.
    alike = max(spans.values()) < 3 * min(spans.values())
    footnote = fidelity_line(
        (fidelity for frame in schedules.values() for fidelity in frame["fidelity"]),
        "Numbers are chunks in forward order",
    )
    named = list(dict.fromkeys(map(_schedule, schedules.values())))
    ways = [
        way for way in _PASSES if any((frame["kind"] == way).any() for frame in schedules.values())
    ]
    subtitle = (
        f"Iteration {settings.iteration}{f', {named[0]}' if len(named) == 1 else ''}. Light:"
        f" forward. Dark: backward.{' Pale: weights.' if 'weight' in ways else ''} White: bubble."
        + ("" if alike else " Each plan has its own axis of time.")
    )
    rows = [frame[["replica", "stage"]].drop_duplicates().shape[0] for frame in schedules.values()]
    with canvas(settings, output, "Pipeline schedule", subtitle, footnote) as figure:
        panels = figure.subplots(
            len(schedules), 1, sharex=alike, squeeze=False, height_ratios=rows
        )[:, 0]
        for axes, (name, frame) in zip(panels, schedules.items(), strict=True):
            span = max(spans.values()) if alike else spans[name]
            unit, divisor = ("s", 1000.0) if span >= 10_000 else ("ms", 1.0)
            _gantt(axes, name, frame, unit, divisor, settings.width_inches * 72 / span)
            if settings.label_blocks:
                _number_blocks(axes, frame, span, divisor, settings)
            axes.set_xlim(0, span / divisor * 1.005)
            if not alike or axes is panels[-1]:
                axes.set_xlabel(f"Predicted time ({unit})")
        kinds = [
            kind
            for kind in _HUES
            if any((frame["chunk_kind"] == kind).any() for frame in schedules.values())
        ]
        handles = [Patch(facecolor=_colour(str(kind), str(way))) for kind in kinds for way in ways]
        names = [f"{_PASS_WORDS[way]}, {_KINDS[kind]}" for kind in kinds for way in ways]
        share_legend(figure, handles, names, len(kinds))
    return Drawn(
        _caption(schedules),
        _alternative(schedules),
        pd.concat(schedules.values(), ignore_index=True),
    )


def _iteration(frame: pd.DataFrame, iteration: int, plan: str) -> pd.DataFrame:
    rows = frame[frame["iteration"] == iteration]
    if rows.empty:
        known = ", ".join(map(str, sorted(set(frame["iteration"]))))
        raise UserError(
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
    axes: Axes, name: str, frame: pd.DataFrame, unit: str, divisor: float, points_per_ms: float
) -> None:
    place = _lanes(frame)
    lanes = list(place)
    # A white edge takes nothing that would be seen from the narrowest blocks.
    narrow = float((frame["end_ms"] - frame["start_ms"]).quantile(0.1))
    edge = min(0.7, 0.1 * narrow * points_per_ms)
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
            linewidth=edge,
        )
    several = len({replica for replica, _ in lanes}) > 1
    axes.set_yticks(
        range(len(lanes)),
        [f"Replica {r}, stage {s}" if several else f"Stage {s}" for r, s in lanes],
    )
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    total = frame["end_ms"].max()
    bubble = 100 * _bubble(frame)
    chunks = frame[["pipeline", "chunk"]].drop_duplicates().shape[0]
    axes.set_title(
        f"{label(name)}: {quantity(total / divisor)} {unit}, {chunks} chunks, bubble"
        f" {quantity(bubble)} %"
    )


def _lanes(frame: pd.DataFrame) -> dict[tuple[int, int], int]:
    """The row of every stage of every replica."""
    lanes = sorted(set(zip(frame["replica"], frame["stage"], strict=True)))
    return {lane: i for i, lane in enumerate(lanes)}


def _number_blocks(
    axes: Axes,
    frame: pd.DataFrame,
    span: float,
    divisor: float,
    settings: PipelineScheduleSettings,
) -> None:
    """The number of its chunk in every block that is wide enough for it."""
    place = _lanes(frame)
    digit = _DIGIT * settings.text_points / (72 * settings.width_inches) * span
    for row in frame.to_dict("records"):
        if row["end_ms"] - row["start_ms"] < (len(str(row["chunk"])) + 0.6) * digit:
            continue
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
    return lighter(_HUES[kind], _PASSES[way])


def _schedule(frame: pd.DataFrame) -> str:
    """The schedules of a plan in words; InfiniPipe's where the table names none."""
    names = list(dict.fromkeys(frame["schedule"].fillna("1f1b")))
    return " and ".join(_SCHEDULES[str(name)] for name in names)


def _bubble(frame: pd.DataFrame) -> float:
    """The share of the stages' time in which they have nothing to run."""
    lanes = frame[["replica", "stage"]].drop_duplicates().shape[0]
    busy = float((frame["end_ms"] - frame["start_ms"]).sum())
    whole = float(frame["end_ms"].max()) * lanes
    return 1 - busy / whole if whole else 0.0


def _facts(name: str, frame: pd.DataFrame) -> str:
    chunks = frame.drop_duplicates(["replica", "pipeline", "chunk"])["chunk_kind"].value_counts()
    kinds = ", ".join(f"{int(chunks[kind])} {_KINDS[kind]}" for kind in _HUES if kind in chunks)
    pipelines = frame["pipeline"].nunique()
    return (
        f"{label(name)} {quantity(float(frame['end_ms'].max()) / 1e3)} s on"
        f" {frame['stage'].nunique()} stages, {pipelines} pipeline{'s' if pipelines > 1 else ''} of"
        f" chunks ({kinds}), {_schedule(frame)}, bubble {100 * _bubble(frame):.3g} %"
    )


def _caption(schedules: Mapping[str, pd.DataFrame]) -> str:
    facts = "; ".join(_facts(name, frame) for name, frame in schedules.items())
    put_off = any((frame["kind"] == "weight").any() for frame in schedules.values())
    pale = ", a pale one the gradients of its weights, which were put off" if put_off else ""
    return (
        f"One iteration of each pipeline plan: {facts}. Each row is a stage, each block a forward"
        f" (light) or backward (dark) pass of a chunk{pale}; a number is the chunk's place in"
        " forward order. The hue tells chunks of whole sequences, slices of one long sequence, and"
        " a tail of one packed with whole ones apart. Times are predictions of the cost model, not"
        " measurements."
    )


def _alternative(schedules: Mapping[str, pd.DataFrame]) -> str:
    facts = "; ".join(_facts(name, frame) for name, frame in schedules.items())
    return f"Gantt charts, a row per pipeline stage and a block per pass of a chunk: {facts}."


FIGURE = Figure(
    settings=PipelineScheduleSettings,
    title="Pipeline schedule",
    paper="infinipipe",
    inputs=(
        FigureInput("schedule", "plan.schedule", columns=_COLUMNS, plan_kind="pipeline"),
        FigureInput("groups", "plan.groups", required=False, plan_kind="pipeline"),
    ),
    draw=draw,
)
