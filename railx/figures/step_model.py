"""The model of a training step against measured runs of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from railx.figures.figure import Axes, Canvas, CanvasSettings, Drawn, Height, declare
from railx.figures.panels import diagonal, name_rows, share_legend
from railx.figures.tables import Tables, records, where
from railx.figures.theme import GREY, colours, dot, label
from railx.figures.words import counted, fidelity_line, quantity, sentence

__all__ = ["FIGURE", "StepModelSettings"]

_UNITS = {"seconds": "Time of a step (s)", "gib": "Memory of a device (GiB)"}


@dataclass(frozen=True)
class StepModelSettings(CanvasSettings):
    """The model of a step: measured against modelled, and mean errors by set."""

    figure: Literal["step_model"] = "step_model"
    height_inches: Height = 4.2


def draw(settings: StepModelSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Measured against modelled, a dot a run; on the right errors by set."""
    rows, errors = tables.read("rows"), tables.read("errors")
    errors = errors[errors["group"] == "all"]
    colour = colours(rows["set"])
    subtitle = """Left and middle: a dot a run, on the line both agree. Right: mean errors on rows
        that were not fitted."""
    note = "Measured by others: resources/measured has the rows with their sources"
    with canvas(subtitle, fidelity_line(rows["fidelity"], note)) as page:
        panels = page.subplots(1, 3, width_ratios=(1, 1, 1.1))
        for axes, (kind, title) in zip(panels, _UNITS.items(), strict=False):
            part = where(rows, quantity=kind)
            for name, of_set in part.groupby("set", sort=False):
                style = dot(colour[str(name)], 4, alpha=0.6)
                axes.plot(of_set["measured"], of_set["ours"], **style)
            if len(part):
                diagonal(axes, part[["measured", "ours"]])
            axes.set(title=title, xlabel="Measured", ylabel="Model")
        _errors(panels[2], records(errors), colour)
        legend = {label(name): dot(shade, 6) for name, shade in colour.items()}
        legend["Plain roofline"] = dot(GREY, 7, fillstyle="none")
        share_legend(page, legend, 4)
    worst = [
        f"{_name(row)} {quantity(100 * row['mean_error'])} % ({row['left_out']} of"
        f" {row['rows']} rows)"
        for row in records(errors)
    ]
    caption = sentence(
        f"{counted(len(rows), 'measured number')} of {counted(rows['set'].nunique(), 'set')}"
        " against the model of a step.",
        f"Mean absolute relative errors on rows that were not fitted: {'; '.join(worst)}.",
        "Where every row was fitted, as with low precisions, the error is that of the fit.",
    )
    alternative = f"Model over measurement around the diagonal. Mean errors: {'; '.join(worst)}."
    return Drawn(caption, alternative, rows)


def _name(row: dict[str, Any]) -> str:
    return label(row["set"]) + (", memory" if row["quantity"] == "gib" else "")


def _errors(axes: Axes, rows: list[dict[str, Any]], colour: dict[str, str]) -> None:
    for place, row in enumerate(rows):
        axes.plot(100 * row["mean_error"], place, **dot(colour[row["set"]], 7))
        if row["quantity"] == "seconds":
            plain = 100 * row["mean_error_roofline"]
            axes.plot(plain, place, **dot(GREY, 7, fillstyle="none"))
    name_rows(axes, [_name(row) for row in rows])
    axes.set(title="Mean error", xlabel="Error (%)")
    axes.set_xlim(left=0)


FIGURE = declare(
    StepModelSettings,
    "The model of a training step against measured runs",
    "all",
    draw,
    rows="validation.rows: set device precision quantity measured ours fidelity",
    errors="validation.errors: set quantity group rows left_out mean_error mean_error_roofline"
    " fidelity",
)
