"""Programs in plain torch on the emulated rails: time and stalls against latency.

Left, the iteration in both modes beside what the paper's rule gives: the time at the
least latency and, for each change of circuits, what its window does not hide. Right,
all waiting for light by the controller's account against the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import INK, canvas, colours, label, quantity, share_legend

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "LiveSwitchingSettings"]

_COLUMNS = (
    "program",
    "mode",
    "reconfiguration_latency_ms",
    "controller_restarted",
    "ranks",
    "iteration_ms",
    "predicted_iteration_ms",
    "all_stalls_ms",
    "all_predicted_stalls_ms",
    "fidelity",
)
_MODES = ("on_demand", "provisioned")


@dataclass(frozen=True)
class LiveSwitchingSettings(CanvasSettings):
    """Iteration time and stalls of programs in plain torch."""

    figure: Literal["live_switching"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Programs to show, in that order; empty: all that there are."""


def draw(settings: LiveSwitchingSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A row of two panels for each program."""
    from matplotlib.lines import Line2D

    frame = read_frames(inputs, "settings", _COLUMNS, "program", settings.only)
    programs = list(dict.fromkeys(frame["program"]))
    subtitle = (
        "Lines: the time at the least latency and, for each change of circuits, the latency less"
        " its window. Windows are those of the same iterations, by the ranks' own clocks; crosses:"
        " the controller was killed and started again in the middle."
    )
    with canvas(
        settings,
        output,
        "FSDP2, tensor parallelism and 1F1B of plain torch on switched rails",
        subtitle,
        fidelity_line(frame["fidelity"], "Ranks share the cores of one machine"),
    ) as figure:
        grid = figure.subplots(len(programs), 2, squeeze=False)
        for row, program in zip(grid, programs, strict=True):
            own = frame[frame["program"] == program]
            _times(row[0], own)
            _stalls(row[1], own)
            row[0].set_title(f"{label(program)}, {own['ranks'].iloc[0]} ranks")
            row[1].set_title("Waiting for light, all groups")
        for axes in grid[-1]:
            axes.set_xlabel("Switching latency (ms)")
        colour = colours(("electrical", *_MODES))
        handles = [Line2D([], [], color=colour[mode], marker="o", linestyle="") for mode in _MODES]
        handles.append(Line2D([], [], color=INK))
        handles.append(Line2D([], [], color=colour["electrical"], linewidth=0.8))
        names = [*(label(mode) for mode in _MODES), "By the windows", label("electrical")]
        share_legend(figure, handles, names, 4)
    return Drawn(_caption(frame), _alternative(frame), frame)


def _times(axes: Axes, own: pd.DataFrame) -> None:
    colour = colours(("electrical", *_MODES))
    electrical = own[own["mode"] == "electrical"]
    if len(electrical):
        axes.axhline(electrical["iteration_ms"].iloc[0], color=colour["electrical"], linewidth=0.8)
    _pairs(axes, own, "iteration_ms", "predicted_iteration_ms")
    axes.set_ylabel("Iteration (ms)")


def _stalls(axes: Axes, own: pd.DataFrame) -> None:
    _pairs(axes, own, "all_stalls_ms", "all_predicted_stalls_ms")
    axes.set_ylabel("Stall (ms per iteration)")


def _pairs(axes: Axes, own: pd.DataFrame, measured: str, predicted: str) -> None:
    """Marks for what was measured, a line for the rule."""
    colour = colours(("electrical", *_MODES))
    for mode in _MODES:
        mine = own[own["mode"] == mode].sort_values("reconfiguration_latency_ms")
        plain = mine[~mine["controller_restarted"]]
        again = mine[mine["controller_restarted"]]
        axes.plot(plain["reconfiguration_latency_ms"], plain[predicted], color=colour[mode])
        for marks, marker in ((plain, "o"), (again, "x")):
            axes.plot(
                marks["reconfiguration_latency_ms"],
                marks[measured],
                color=colour[mode],
                marker=marker,
                linestyle="",
            )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)


def _ratios(frame: pd.DataFrame) -> pd.DataFrame:
    switched = frame[(frame["mode"] == "provisioned") & (frame["all_predicted_stalls_ms"] > 0)]
    switched = switched[~switched["controller_restarted"]]
    return switched.assign(ratio=switched["all_stalls_ms"] / switched["all_predicted_stalls_ms"])


def _caption(frame: pd.DataFrame) -> str:
    ratios = _ratios(frame)["ratio"]
    words = "Iteration time and waiting for light of programs in plain torch on emulated rails."
    if len(ratios):
        words += (
            f" Provisioned, the controller's account of the stalls is {quantity(ratios.min())} to"
            f" {quantity(ratios.max())} times what the windows leave of the latency."
        )
    return words


def _alternative(frame: pd.DataFrame) -> str:
    parts = []
    for (program, mode), own in frame[frame["mode"] != "electrical"].groupby(
        ["program", "mode"], sort=False
    ):
        last = own.sort_values("reconfiguration_latency_ms").iloc[-1]
        time_ms, latency_ms = last["iteration_ms"], last["reconfiguration_latency_ms"]
        name = f"{label(str(program))}, {label(str(mode)).lower()}"
        parts.append(f"{name}: {quantity(time_ms)} ms per iteration at {quantity(latency_ms)} ms")
    return f"Two panels per program. {'; '.join(parts)}."


FIGURE = Figure(
    settings=LiveSwitchingSettings,
    title="Plain torch on switched rails",
    paper="opus",
    inputs=(FigureInput("settings", "live.settings", columns=_COLUMNS),),
    draw=draw,
)
