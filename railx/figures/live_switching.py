"""Programs in plain torch on the emulated rails: time and stalls against latency.

Left, the iteration in both modes beside what the paper's rule gives: the time at the
least latency and, for each change of circuits, what its window does not hide. Right,
all waiting for light by the controller's account against the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from railx.figures.canvas import share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.tables import FigureInput, Tables
from railx.figures.theme import INK, MODES, colours, dot, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, quantity

__all__ = ["FIGURE", "LiveSwitchingSettings"]


@dataclass(frozen=True)
class LiveSwitchingSettings(CanvasSettings):
    """Iteration time and stalls of programs in plain torch."""

    figure: Literal["live_switching"] = "live_switching"
    height_inches: Height = 6.4

    only: tuple[str, ...] = ()
    """Programs to show, in that order; empty: all that there are."""


def draw(settings: LiveSwitchingSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of two panels for each program."""

    frame = tables.read("settings", "program", settings.only)
    programs = list(dict.fromkeys(frame["program"]))
    subtitle = (
        "Lines: the time at the least latency and, for each change of circuits, the latency less"
        " its window. Windows are those of the same iterations, by the ranks' own clocks; crosses:"
        " the controller was killed and started again in the middle."
    )
    with canvas(
        subtitle,
        fidelity_line(frame["fidelity"], "Ranks share the cores of one machine"),
        title="FSDP2, tensor parallelism and 1F1B of plain torch on switched rails",
    ) as page:
        grid = page.subplots(len(programs), 2, squeeze=False)
        for row, program in zip(grid, programs, strict=True):
            rows = frame[frame["program"] == program]
            _times(row[0], rows)
            _stalls(row[1], rows)
            row[0].set_title(f"{label(program)}, {rows['ranks'].iloc[0]} ranks")
            row[1].set_title("Waiting for light, all groups")
        for axes in grid[-1]:
            axes.set_xlabel("Switching latency (ms)")
        colour = colours(("electrical", *MODES))
        legend = {label(mode): dot(colour[mode]) for mode in MODES}
        legend["By the windows"] = {"color": INK}
        legend[label("electrical")] = {"color": colour["electrical"], "linewidth": 0.8}
        share_legend(page, legend, 4)
    return Drawn(_caption(frame), _alternative(frame), frame)


def _times(axes: Axes, rows: DataFrame) -> None:
    colour = colours(("electrical", *MODES))
    electrical = rows[rows["mode"] == "electrical"]
    if len(electrical):
        axes.axhline(electrical["iteration_ms"].iloc[0], color=colour["electrical"], linewidth=0.8)
    _pairs(axes, rows, "iteration_ms", "predicted_iteration_ms")
    axes.set_ylabel("Iteration (ms)")


def _stalls(axes: Axes, rows: DataFrame) -> None:
    _pairs(axes, rows, "all_stalls_ms", "all_predicted_stalls_ms")
    axes.set_ylabel("Stall (ms per iteration)")


def _pairs(axes: Axes, rows: DataFrame, measured: str, predicted: str) -> None:
    """Marks for what was measured, a line for the rule."""
    colour = colours(("electrical", *MODES))
    for mode in MODES:
        mine = rows[rows["mode"] == mode].sort_values("reconfiguration_latency_ms")
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


def _ratios(frame: DataFrame) -> DataFrame:
    switched = frame[(frame["mode"] == "provisioned") & (frame["all_predicted_stalls_ms"] > 0)]
    switched = switched[~switched["controller_restarted"]]
    return switched.assign(ratio=switched["all_stalls_ms"] / switched["all_predicted_stalls_ms"])


def _caption(frame: DataFrame) -> str:
    ratios = _ratios(frame)["ratio"]
    words = "Iteration time and waiting for light of programs in plain torch on emulated rails."
    if len(ratios):
        words += (
            f" Provisioned, the controller's account of the stalls is {quantity(ratios.min())} to"
            f" {quantity(ratios.max())} times what the windows leave of the latency."
        )
    return words


def _alternative(frame: DataFrame) -> str:
    parts = []
    for (program, mode), rows in frame[frame["mode"] != "electrical"].groupby(
        ["program", "mode"], sort=False
    ):
        last = rows.sort_values("reconfiguration_latency_ms").iloc[-1]
        time_ms, latency_ms = last["iteration_ms"], last["reconfiguration_latency_ms"]
        name = f"{label(str(program))}, {label(str(mode)).lower()}"
        parts.append(f"{name}: {quantity(time_ms)} ms per iteration at {quantity(latency_ms)} ms")
    return f"Two panels per program. {'; '.join(parts)}."


FIGURE = Figure(
    LiveSwitchingSettings,
    "Plain torch on switched rails",
    "opus",
    (
        FigureInput(
            "settings",
            "live.settings",
            "program mode reconfiguration_latency_ms controller_restarted ranks "
            "iteration_ms predicted_iteration_ms all_stalls_ms all_predicted_stalls_ms "
            "fidelity",
        ),
    ),
    draw,
)
