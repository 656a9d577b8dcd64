"""What the stages of pipeline plans hold over time: a line per stage, a panel per plan.

A chunk is held from its forward to its backward pass, less what is recomputed
(InfiniPipe eqs. 5, 9 and 10). A dashed line is the room for activations of the stage
that has the least. Without a cost model the live chunks are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.figures.figure import Axes, Canvas, DataFrame, Drawn, Height, PlanChoice, Tables, declare
from railx.figures.panels import share_legend, time_unit
from railx.figures.tables import plans_at, stack
from railx.figures.theme import GREY, LINE_POINTS, PALETTE, label
from railx.figures.words import fidelity_line, quantity
from railx.settings import NonNegative

__all__ = ["FIGURE", "StageMemorySettings"]

_GIB = 2.0**30


#: Column, unit and divisor of what is drawn, with and without a cost model.
_UNITS = {True: ("activation_bytes", "GiB", _GIB), False: ("live_chunks", "chunks", 1.0)}

_ROOM: dict[str, Any] = {"color": GREY, "linewidth": 1.3, "linestyle": (0, (4, 2))}


@dataclass(frozen=True)
class StageMemorySettings(PlanChoice):
    """Activations of the stages of pipeline plans over one iteration."""

    figure: Literal["stage_memory"] = "stage_memory"
    height_inches: Height = 5.4

    replica: Annotated[int, NonNegative()] = 0
    """Replica to show; the others do the same with other chunks."""


def draw(settings: StageMemorySettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Draw one iteration of one replica of every plan.

    Raises ValueError where a plan lacks the iteration or the replica.
    """
    table = tables.read("memory", "plan", settings.only)
    plans = plans_at(table, "plan", iteration=settings.iteration, replica=settings.replica)
    drawn = stack(plans.values())
    in_bytes = bool(drawn["activation_bytes"].notna().all())
    bounded = in_bytes and bool(drawn["capacity_bytes"].notna().all())
    subtitle = f"""Iteration {settings.iteration}, replica {settings.replica}: what a rank of each
        stage holds of chunks between their forward and backward passes."""
    with canvas(subtitle, fidelity_line(drawn["fidelity"])) as page:
        panels = page.subplots(len(plans), 1, squeeze=False)[:, 0]
        for axes, (name, rows) in zip(panels, plans.items(), strict=True):
            _panel(axes, rows, in_bytes, bounded)
            axes.set_title(label(name))
        legend: dict[str, Any] = {
            f"Stage {stage}": _line(stage) for stage in sorted(set(drawn["stage"]))
        }
        if bounded:
            legend["room of the stage that has least"] = _ROOM
        share_legend(page, legend, min(len(legend), 5))
    facts = "; ".join(_facts(name, rows, in_bytes) for name, rows in plans.items())
    caption = f"""What a rank of each pipeline stage holds over one iteration: {facts}. A chunk is
        held from the beginning of its forward pass to the end of its backward pass, less the layers
        that are recomputed. Times and bytes are predictions of the cost model, not measurements."""
    alternative = f"Lines of what each pipeline stage holds over time, a panel per plan: {facts}."
    return Drawn(caption, alternative, drawn)


def _panel(axes: Axes, rows: DataFrame, in_bytes: bool, bounded: bool) -> None:
    column, _, scale = _UNITS[in_bytes]
    end = float(rows["time_ms"].max()) or 1.0
    unit, divisor = time_unit(end)
    for stage, changes in rows.groupby("stage"):
        times = [0.0, *(changes["time_ms"] / divisor)]
        axes.step(times, [0.0, *(changes[column] / scale)], where="post", **_line(stage))
    most = float(rows[column].max()) / scale
    if bounded:
        room = float(rows["capacity_bytes"].min()) / _GIB
        axes.axhline(room, **_ROOM)
        most = max(most, room)
    axes.set(xlim=(0, end / divisor * 1.005), ylim=(0, most * 1.08))
    axes.set(xlabel=f"Predicted time ({unit})", ylabel="GiB" if in_bytes else "Live chunks")


def _line(stage: Any) -> dict[str, Any]:
    return {"color": PALETTE[int(stage) % len(PALETTE)], "linewidth": LINE_POINTS}


def _facts(name: str, rows: DataFrame, in_bytes: bool) -> str:
    column, unit, divisor = _UNITS[in_bytes]
    peaks = rows.groupby("stage")[column].max() / divisor
    room = rows["capacity_bytes"].min()
    of = f" of {quantity(float(room) / _GIB)}" if in_bytes and room == room else ""
    return f"""{label(name)} holds at most {", ".join(map(quantity, peaks))}{of} {unit} on stages
        {", ".join(map(str, peaks.index))}"""


FIGURE = declare(
    StageMemorySettings,
    "Memory of pipeline stages over time",
    "infinipipe",
    draw,
    memory="plan.memory (pipeline): plan iteration pipeline replica stage time_ms live_chunks"
    " activation_bytes capacity_bytes fidelity",
)
