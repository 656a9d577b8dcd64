"""Programs in plain torch on the emulated rails: time and stalls against latency.

Left, the iteration in both modes beside what the paper's rule gives: the time at the
least latency and, for each change of circuits, what its window does not hide. Right,
all waiting for light by the controller's account against the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import share_legend
from railx.figures.tables import Tables, where
from railx.figures.theme import INK, MODES, colours, dot, label
from railx.figures.words import fidelity_line, quantity, span

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
    programs = list(frame["program"].unique())
    subtitle = """Lines: the time at the least latency and, for each change of circuits, the latency
        less its window. Windows are those of the same iterations, by the ranks' own clocks;
        crosses: the controller was killed and started again in the middle."""
    with canvas(
        subtitle,
        fidelity_line(frame["fidelity"], "Ranks share the cores of one machine"),
        title="FSDP2, tensor parallelism and 1F1B of plain torch on switched rails",
    ) as page:
        grid = page.subplots(len(programs), 2, squeeze=False)
        colour = colours(("electrical", *MODES))
        for (left, right), program in zip(grid, programs, strict=True):
            rows = where(frame, program=program)
            electrical = where(rows, mode="electrical")["iteration_ms"]
            if len(electrical):
                left.axhline(electrical.iloc[0], color=colour["electrical"], linewidth=0.8)
            _pairs(left, rows, "iteration_ms", "predicted_iteration_ms", colour)
            _pairs(right, rows, "all_stalls_ms", "all_predicted_stalls_ms", colour)
            left.set(title=f"{label(program)}, {rows['ranks'].iloc[0]} ranks")
            left.set_ylabel("Iteration (ms)")
            right.set(title="Waiting for light, all groups", ylabel="Stall (ms per iteration)")
        for axes in grid[-1]:
            axes.set_xlabel("Switching latency (ms)")
        legend = {label(mode): dot(colour[mode]) for mode in MODES}
        legend["By the windows"] = {"color": INK}
        legend[label("electrical")] = {"color": colour["electrical"], "linewidth": 0.8}
        share_legend(page, legend, 4)
    caption = "Iteration time and waiting for light of programs in plain torch on emulated rails."
    compared = where(frame, mode="provisioned", controller_restarted=False)
    compared = compared[compared["all_predicted_stalls_ms"] > 0]
    if len(compared):
        ratios = compared["all_stalls_ms"] / compared["all_predicted_stalls_ms"]
        caption += f""" Provisioned, the controller's account of the stalls is {span(ratios)} times
            what the windows leave of the latency."""
    parts = []
    switched = frame[frame["mode"] != "electrical"].groupby(["program", "mode"], sort=False)
    for (program, mode), rows in switched:
        last = rows.sort_values("reconfiguration_latency_ms").iloc[-1]
        time_ms, latency_ms = last["iteration_ms"], last["reconfiguration_latency_ms"]
        name = f"{label(str(program))}, {label(str(mode)).lower()}"
        parts.append(f"{name}: {quantity(time_ms)} ms per iteration at {quantity(latency_ms)} ms")
    return Drawn(caption, f"Two panels per program. {'; '.join(parts)}.", frame)


def _pairs(
    axes: Axes, rows: DataFrame, measured: str, predicted: str, colour: dict[str, str]
) -> None:
    """Marks for what was measured, a line for the rule."""
    for mode in MODES:
        line = where(rows, mode=mode).sort_values("reconfiguration_latency_ms")
        for restarted, marker in ((False, "o"), (True, "x")):
            marks = where(line, controller_restarted=restarted)
            x = marks["reconfiguration_latency_ms"]
            if not restarted:
                axes.plot(x, marks[predicted], color=colour[mode])
            axes.plot(x, marks[measured], **dot(colour[mode], marker=marker))
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)


FIGURE = declare(
    LiveSwitchingSettings,
    "Plain torch on switched rails",
    "opus",
    draw,
    settings="live.settings: program mode reconfiguration_latency_ms controller_restarted ranks"
    " iteration_ms predicted_iteration_ms all_stalls_ms all_predicted_stalls_ms fidelity",
)
