"""Jobs of Opus on RailX set once, on rails switched in the step, or both: step times.

Generated steps, replayed under the rules of the controller, beside electrical rails. No
paper compares them; the comparison is this project's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from railx.figures.circuit_panels import COLUMNS, CircuitPanelsSettings, PanelWords, draw_panels
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.tables import read_frames

__all__ = ["FIGURE", "RailStepsFigureSettings"]

_TITLE = "RailX meets Opus: published jobs on rings set once, on rails switched, or both"
#: Columns that the table has under other names.
_NAMES = {"step": "job", "reconfigurations": "changes"}
_COLUMNS = ("step", "reconfigurations", *(c for c in COLUMNS if c not in _NAMES.values()))


@dataclass(frozen=True)
class RailStepsFigureSettings(CircuitPanelsSettings):
    """Step times of generated steps over the latency of the switches."""

    figure: Literal["rail_steps"]
    """Which figure it is."""


def draw(settings: RailStepsFigureSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A row of panels per basis, and bars of cost and power.

    Raises ValueError for a step, a network or a mode that the table does not have.
    """
    table = read_frames(inputs, "generated", _COLUMNS)
    # Its jobs are variants of the steps.
    table = table.drop(columns="job", errors="ignore").rename(columns=_NAMES)
    last = list(settings.jobs)[-1]
    name = settings.jobs[last]
    words = PanelWords(
        _TITLE,
        "Time of a generated training step over the latency of the optical switches, in times of"
        " electrical rails at the same rate. No paper compares these: nothing is published here."
        " Equal bandwidth: the rate that leaves the job's servers. Equal cost: the rate that the"
        " bill of photonic rails buys. Bars are at equal bandwidth. Lines may leave the panels.",
        "Servers are the same everywhere, and what overlaps in the step overlaps here",
        "Ours alone, no paper has this comparison.",
        f"of {name}",
    )
    return draw_panels(settings, table, output, words)


FIGURE = Figure(
    settings=RailStepsFigureSettings,
    title=_TITLE,
    paper="all",
    inputs=(FigureInput("generated", "switched.generated", columns=_COLUMNS),),
    draw=draw,
)
