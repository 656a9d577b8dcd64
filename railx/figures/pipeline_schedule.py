"""Gantt chart of a pipeline plan: one row a stage, one block a forward or backward pass
of a chunk.

Chunks run in 1F1B order; the kind of a chunk (whole sequences, a slice of one, or a
tail with whole ones; InfiniPipe, section III) sets the hue, the direction sets the
lightness. The bubble is the share of a row in which a stage has nothing to run.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from railx.figures.fidelity import fidelity_line
from railx.figures.settings import PipelineScheduleSettings
from railx.figures.tables import Inputs, item_name, read_frame, selected_paths
from railx.figures.theme import INK, PALETTE, canvas, label, lighter, quantity, share_legend

__all__ = ["draw"]

_COLUMNS = (
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


def draw(settings: PipelineScheduleSettings, inputs: Inputs, output: Path) -> None:
    """Draw ``settings.iteration`` of every schedule that has rows (a sequence-parallel
    plan has none), one panel a plan.

    Raises ValueError when no schedule is left, or one lacks the iteration.
    """
    schedules = {}
    for path in selected_paths(inputs, "schedule", settings.only):
        frame = read_frame(path, _COLUMNS, may_be_empty=True)
        if not frame.empty:
            schedules[item_name(path)] = _one_after_another(
                _with_kinds(_iteration(frame, settings.iteration, path), path, inputs)
            )
    if not schedules:
        raise ValueError(
            "input schedule: no pipeline schedule with rows among the files; allowed: at least one"
        )
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


def _iteration(frame: pd.DataFrame, iteration: int, path: Path) -> pd.DataFrame:
    rows = frame[frame["iteration"] == iteration]
    if rows.empty:
        known = ", ".join(map(str, sorted(set(frame["iteration"]))))
        raise ValueError(f"{path}: iteration {iteration} is not in the schedule; allowed: {known}")
    return rows


def _with_kinds(rows: pd.DataFrame, path: Path, inputs: Inputs) -> pd.DataFrame:
    """The rows with the kind of their chunk, from the plan's table where it is given."""
    for candidate in inputs.get("plan_table", ()):
        if item_name(Path(candidate)) == item_name(path):
            table = read_frame(Path(candidate), ("iteration", "micro_batch", "group", "chunk_kind"))
            kinds = table.rename(columns={"micro_batch": "pipeline", "group": "chunk"})
            keys = ["iteration", "pipeline", "chunk"]
            joined = rows.merge(
                kinds[[*keys, "chunk_kind"]].drop_duplicates(keys), on=keys, how="left"
            )
            return joined.assign(chunk_kind=joined["chunk_kind"].fillna("unknown"))
    return rows.assign(chunk_kind="unknown")


def _one_after_another(rows: pd.DataFrame) -> pd.DataFrame:
    """The pipelines of a replica one after another, also where the table counts the
    time of each from its own start.
    """
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
            (row["start_ms"] + row["end_ms"]) / 2 / divisor, place[row["replica"], row["stage"]], str(row["chunk"]), ha="center",
            va="center", fontsize="x-small", color="white" if row["kind"] == "backward" else INK, clip_on=True,
        )  # fmt: skip


def _colour(kind: str, way: str) -> tuple[float, float, float]:
    return lighter(_HUES[kind], 0.55 if way == "forward" else 0.0)
