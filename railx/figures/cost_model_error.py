"""Times and memory of a layer that a cost model predicts against measured ones.

Left every point's time, right how far points are off that had no part in the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from railx.figures.canvas import share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import published_line
from railx.figures.tables import FigureInput, Tables
from railx.figures.theme import GREY, INK, PALETTE, PUBLISHED_LINE, dot, label
from railx.figures.types import DataFrame
from railx.figures.words import counted, fidelity_line, quantity, sentence

__all__ = ["FIGURE", "CostModelErrorSettings"]

#: What is predicted: its column of errors and whether layers are recomputed.
_KINDS = {
    "time": ("error", False),
    "time,\nrecomputed": ("error", True),
    "memory": ("memory_error", False),
    "memory,\nrecomputed": ("memory_error", True),
}


@dataclass(frozen=True)
class CostModelErrorSettings(CanvasSettings):
    """Predicted times and memory of measured layers."""

    figure: Literal["cost_model_error"] = "cost_model_error"
    height_inches: Height = 4.8

    only: tuple[str, ...] = ()
    """Profiles to show, in that order; empty: all."""


def draw(settings: CostModelErrorSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One point for each measured slice, filled where the fit has not seen it."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    frame = tables.read("points", "profile", settings.only)
    rows = frame[frame["part"] == "layer"].copy()
    rows["measured_ms"] = rows["forward_ms"] + rows["backward_ms"]
    published = tables.read("published")
    allowed = float(published[published["id"] == "cost_model_error_most"]["value"].iloc[0])
    subtitle = (
        "Left: forward and backward pass of a layer. Right: how far predictions are off where the"
        " fit has not seen the point."
    )
    line = fidelity_line(rows["fidelity"])
    with canvas(subtitle, line) as page:
        times, errors = page.subplots(1, 2)
        for recomputed, colour in ((False, PALETTE[0]), (True, PALETTE[1])):
            for unseen in (False, True):
                part = rows[(rows["checkpointed"] == recomputed) & (rows["held_out"] == unseen)]
                style: dict[str, Any] = {"color": colour, "marker": "o", "linestyle": "none"}
                style["fillstyle"] = "full" if unseen else "none"
                times.plot(part["measured_ms"], part["predicted_ms"], alpha=0.85, **style)
        values = rows[["measured_ms", "predicted_ms"]].to_numpy(dtype=float)
        ends = (0.8 * float(values.min()), 1.25 * float(values.max()))
        times.plot(ends, ends, color=INK, linewidth=1, zorder=1)
        times.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title="Time of a layer")
        times.set(xlabel="Measured (ms)", ylabel="Predicted (ms)")
        for axis in (times.xaxis, times.yaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        for position, (column, recomputed) in enumerate(_KINDS.values()):
            percent = [100 * error for error in _unseen(rows, column, recomputed)]
            last = max(len(percent) - 1, 1)
            errors.plot(
                [position + 0.3 * (index / last - 0.5) for index in range(len(percent))],
                percent,
                color=PALETTE[int(recomputed)],
                marker="o",
                linestyle="none",
                alpha=0.85,
            )
            if percent:
                middle = median(percent)
                errors.plot(
                    [position - 0.25, position + 0.25], [middle] * 2, color=INK, linewidth=2
                )
        published_line(errors, 100 * allowed, "y")
        most = max(100 * allowed, *(100 * max(v) for v in _all(rows) if v))
        errors.set(ylim=(-0.02 * most, 1.1 * most), ylabel="Error of unseen points (%)")
        errors.set_title("Error")
        errors.set_xticks(range(len(_KINDS)), list(_KINDS))
        legend = {
            "nothing recomputed": {"color": PALETTE[0], "linewidth": 4},
            "recomputed": {"color": PALETTE[1], "linewidth": 4},
            "part of the fit": dot(GREY, fillstyle="none"),
            "unseen": dot(GREY),
            "median": {"color": INK, "linewidth": 2},
            "InfiniPipe, typically below": PUBLISHED_LINE,
        }
        share_legend(page, legend, 6)
    return Drawn(_caption(rows, allowed), _alternative(rows), rows)


def _unseen(rows: DataFrame, column: str, recomputed: bool) -> list[float]:
    part = rows[(rows["checkpointed"] == recomputed) & rows["held_out"].astype(bool)]
    return [float(value) for value in part[column].dropna()]


def _all(rows: DataFrame) -> list[list[float]]:
    return [_unseen(rows, column, recomputed) for column, recomputed in _KINDS.values()]


def _facts(rows: DataFrame) -> str:
    parts = []
    for name, values in zip(_KINDS, _all(rows), strict=True):
        if values:
            parts.append(
                f"{name.replace(chr(10), ' ')} {quantity(100 * median(values))} %, at most"
                f" {quantity(100 * max(values))} % of {counted(len(values), 'point')}"
            )
    return "; ".join(parts)


def _caption(rows: DataFrame, allowed: float) -> str:
    models = ", ".join(label(str(name)) for name in dict.fromkeys(rows["model"]))
    return sentence(
        f"Slices of a layer of {models}, as measured and as the fitted cost model predicts them.",
        f"Median errors of points that the fit has not seen: {_facts(rows)}.",
        f"InfiniPipe says typically below {quantity(100 * allowed)} % of its own.",
    )


def _alternative(rows: DataFrame) -> str:
    return f"Predicted over measured time around the diagonal, and errors: {_facts(rows)}."


FIGURE = Figure(
    CostModelErrorSettings,
    "Cost model against measured layers",
    "infinipipe",
    (
        FigureInput(
            "points",
            "profile.points",
            "profile model part degree context tokens checkpointed forward_ms backward_ms "
            "kept_bytes held_out predicted_ms error predicted_kept_bytes memory_error "
            "fidelity",
        ),
        FigureInput("published", columns="id value", published="infinipipe.csv"),
    ),
    draw,
)
