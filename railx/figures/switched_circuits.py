"""Circuits set once for a job, switched between its phases, or both: step times.

RailX and Opus side by side, at equal bandwidth and at equal cost, beside electrical
rails. No paper compares them; the comparison is this project's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from railx.figures.circuit_panels import COLUMNS, CircuitPanelsSettings, PanelWords, draw_panels
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.tables import read_frames

__all__ = ["FIGURE", "SwitchedCircuitsSettings"]

_TITLE = "Circuits set once for a job, switched in it, or both"


@dataclass(frozen=True)
class SwitchedCircuitsSettings(CircuitPanelsSettings):
    """Step times over the latency of the switches."""

    figure: Literal["switched_circuits"]
    """Which figure it is."""


def draw(settings: SwitchedCircuitsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A row of panels per basis, and bars of cost and power.

    Raises ValueError for a job, a network or a mode that the table does not have.
    """
    table = read_frames(inputs, "steps", COLUMNS)
    gpus = int(table["gpus"].max())
    words = PanelWords(
        _TITLE,
        f"Time of a training step on {gpus:,} GPUs over the latency of the optical switches, in"
        " times of RailX set once. No paper compares these: nothing is published here. Equal"
        " bandwidth: as many ports a GPU, of which RailX's mostly end in its node. Equal cost:"
        " ports as fast as RailX's bill buys. Lines may leave the panels.",
        "Nothing overlaps but switching with its windows",
        "Ours alone, no paper has this comparison.",
        "at equal bandwidth",
    )
    return draw_panels(settings, table, output, words)


FIGURE = Figure(
    settings=SwitchedCircuitsSettings,
    title=_TITLE,
    paper="all",
    inputs=(FigureInput("steps", "switched.steps", columns=COLUMNS),),
    draw=draw,
)
