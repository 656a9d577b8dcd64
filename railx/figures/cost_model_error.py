"""Times and memory of a layer that a cost model predicts against measured ones.

Left every point's time, right how far points are off that had no part in the fit.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import median
from typing import Literal

from railx.figures.figure import Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import diagonal, published_line, share_legend
from railx.figures.tables import Tables, where
from railx.figures.theme import GREY, INK, PALETTE, PUBLISHED_LINE, dot, label
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
    rows = where(tables.read("points", "profile", settings.only), part="layer")
    rows = rows.assign(measured_ms=rows["forward_ms"] + rows["backward_ms"])
    allowed = float(tables.values("published")["cost_model_error_most"])
    unseen = {name: _unseen(rows, *kind) for name, kind in _KINDS.items()}
    subtitle = """Left: forward and backward pass of a layer. Right: how far predictions are off
        where the fit has not seen the point."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        times, errors = page.subplots(1, 2)
        for recomputed, held_out in itertools.product((False, True), repeat=2):
            part = where(rows, checkpointed=recomputed, held_out=held_out)
            style = dot(PALETTE[int(recomputed)], fillstyle="full" if held_out else "none")
            times.plot(part["measured_ms"], part["predicted_ms"], alpha=0.85, **style)
        diagonal(times, rows[["measured_ms", "predicted_ms"]])
        times.set(title="Time of a layer", xlabel="Measured (ms)", ylabel="Predicted (ms)")
        for position, (name, percent) in enumerate(unseen.items()):
            last = max(len(percent) - 1, 1)
            x = [position + 0.3 * (index / last - 0.5) for index in range(len(percent))]
            errors.plot(x, percent, alpha=0.85, **dot(PALETTE[int(_KINDS[name][1])]))
            if percent:
                ends = [position - 0.25, position + 0.25]
                errors.plot(ends, [median(percent)] * 2, color=INK, linewidth=2)
        published_line(errors, 100 * allowed, "y")
        most = max(100 * allowed, *itertools.chain(*unseen.values()))
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
    facts = "; ".join(
        f"{name.replace(chr(10), ' ')} {quantity(median(percent))} %, at most"
        f" {quantity(max(percent))} % of {counted(len(percent), 'point')}"
        for name, percent in unseen.items()
        if percent
    )
    caption = sentence(
        f"Slices of a layer of {', '.join(map(label, rows['model'].unique()))}, as measured and as"
        " the fitted cost model predicts them.",
        f"Median errors of points that the fit has not seen: {facts}.",
        f"InfiniPipe says typically below {quantity(100 * allowed)} % of its own.",
    )
    alternative = f"Predicted over measured time around the diagonal, and errors: {facts}."
    return Drawn(caption, alternative, rows)


def _unseen(rows: DataFrame, column: str, recomputed: bool) -> list[float]:
    """Errors in percent of the points that the fit has not seen."""
    errors = where(rows, checkpointed=recomputed, held_out=True)[column].dropna()
    return [100 * float(error) for error in errors]


FIGURE = declare(
    CostModelErrorSettings,
    "Cost model against measured layers",
    "infinipipe",
    draw,
    points="profile.points: profile model part degree context tokens checkpointed forward_ms"
    " backward_ms kept_bytes held_out predicted_ms error predicted_kept_bytes memory_error"
    " fidelity",
    published="infinipipe.csv: id value",
)
