"""What the stages of pipeline plans hold over time: a line per stage, a panel per plan.

A chunk is held from its forward to its backward pass, less what is recomputed
(InfiniPipe eqs. 5, 9 and 10). A dashed line is what the stage with the least room has
for activations. Without a cost model the live chunks are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import GREY, LINE_POINTS, PALETTE, canvas, label, quantity, share_legend
from railx.settings import NonNegative

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "StageMemorySettings"]

_COLUMNS = (
    "plan",
    "iteration",
    "pipeline",
    "replica",
    "stage",
    "time_ms",
    "live_chunks",
    "activation_bytes",
    "capacity_bytes",
    "fidelity",
)
_GIB = 2.0**30
_ROOM: dict[str, Any] = {"color": GREY, "linewidth": 1.3, "linestyle": (0, (4, 2))}


@dataclass(frozen=True)
class StageMemorySettings(CanvasSettings):
    """Activations of the stages of pipeline plans over one iteration."""

    figure: Literal["stage_memory"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Plans to show, in that order; empty: all of this kind."""

    iteration: Annotated[int, NonNegative()]
    """Iteration to show."""

    replica: Annotated[int, NonNegative()]
    """Replica to show; the others do the same with other chunks."""


def draw(settings: StageMemorySettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Draw one iteration of one replica of every plan.

    Raises ValueError where a plan lacks the iteration or the replica.
    """
    import pandas as pd
    from matplotlib.lines import Line2D

    frame = read_frames(inputs, "memory", _COLUMNS, "plan", settings.only)
    plans = {
        str(plan): _shown(own, settings, str(plan))
        for plan, own in frame.groupby("plan", sort=False)
    }
    bytes_known = all(rows["activation_bytes"].notna().all() for rows in plans.values())
    bounded = bytes_known and all(rows["capacity_bytes"].notna().all() for rows in plans.values())
    stages = sorted({int(stage) for rows in plans.values() for stage in rows["stage"]})
    subtitle = (
        f"Iteration {settings.iteration}, replica {settings.replica}: what a rank of each stage"
        " holds of chunks between their forward and backward passes."
    )
    footnote = fidelity_line(fidelity for rows in plans.values() for fidelity in rows["fidelity"])
    with canvas(
        settings, output, "Memory of pipeline stages over time", subtitle, footnote
    ) as figure:
        panels = figure.subplots(len(plans), 1, squeeze=False)[:, 0]
        for axes, (name, rows) in zip(panels, plans.items(), strict=True):
            _panel(axes, name, rows, bytes_known, bounded)
        handles = [Line2D([], [], color=_colour(stage), linewidth=LINE_POINTS) for stage in stages]
        names = [f"Stage {stage}" for stage in stages]
        if bounded:
            handles.append(Line2D([], [], **_ROOM))
            names.append("room of the stage that has least")
        share_legend(figure, handles, names, min(len(names), 5))
    return Drawn(
        _caption(plans, bytes_known),
        _alternative(plans, bytes_known),
        pd.concat(plans.values(), ignore_index=True),
    )


def _shown(frame: pd.DataFrame, settings: StageMemorySettings, plan: str) -> pd.DataFrame:
    for key in ("iteration", "replica"):
        wanted = getattr(settings, key)
        if not (frame[key] == wanted).any():
            known = ", ".join(map(str, sorted(set(frame[key]))))
            raise UserError(f"plan {plan}: {key} {wanted} is not in the plan; allowed: {known}")
        frame = frame[frame[key] == wanted]
    return frame


def _panel(axes: Axes, name: str, rows: pd.DataFrame, bytes_known: bool, bounded: bool) -> None:
    end = float(rows["time_ms"].max()) or 1.0
    unit, divisor = ("s", 1000.0) if end >= 10_000 else ("ms", 1.0)
    most = 0.0
    for stage, own in rows.groupby("stage", sort=True):
        held = own["activation_bytes"] / _GIB if bytes_known else own["live_chunks"]
        axes.step(
            [0.0, *(own["time_ms"] / divisor)],
            [0.0, *held],
            where="post",
            color=_colour(int(str(stage))),
            linewidth=LINE_POINTS,
        )
        most = max(most, float(held.max()))
    if bounded:
        room = float(rows["capacity_bytes"].min()) / _GIB
        axes.axhline(room, **_ROOM)
        most = max(most, room)
    axes.set_xlim(0, end / divisor * 1.005)
    axes.set_ylim(0, most * 1.08)
    axes.set_xlabel(f"Predicted time ({unit})")
    axes.set_ylabel("GiB" if bytes_known else "Live chunks")
    axes.set_title(label(name))


def _colour(stage: int) -> str:
    return PALETTE[stage % len(PALETTE)]


def _facts(name: str, rows: pd.DataFrame, bytes_known: bool) -> str:
    column, unit, divisor = (
        ("activation_bytes", "GiB", _GIB) if bytes_known else ("live_chunks", "chunks", 1.0)
    )
    peaks = rows.groupby("stage", sort=True)[column].max() / divisor
    room = rows["capacity_bytes"].min()
    of = f" of {quantity(float(room) / _GIB)}" if bytes_known and room == room else ""
    return (
        f"{label(name)} holds at most {', '.join(quantity(float(peak)) for peak in peaks)}{of}"
        f" {unit} on stages {', '.join(str(stage) for stage in peaks.index)}"
    )


def _caption(plans: Mapping[str, pd.DataFrame], bytes_known: bool) -> str:
    facts = "; ".join(_facts(name, rows, bytes_known) for name, rows in plans.items())
    return (
        f"What a rank of each pipeline stage holds over one iteration: {facts}. A chunk is held"
        " from the beginning of its forward pass to the end of its backward pass, less the layers"
        " that are recomputed. Times and bytes are predictions of the cost model, not measurements."
    )


def _alternative(plans: Mapping[str, pd.DataFrame], bytes_known: bool) -> str:
    facts = "; ".join(_facts(name, rows, bytes_known) for name, rows in plans.items())
    return f"Lines of what each pipeline stage holds over time, a panel per plan: {facts}."


FIGURE = Figure(
    settings=StageMemorySettings,
    title="Memory of pipeline stages over time",
    paper="infinipipe",
    inputs=(FigureInput("memory", "plan.memory", columns=_COLUMNS, plan_kind="pipeline"),),
    draw=draw,
)
