"""What switching adds to a generated step over latency, beside the published numbers.

Each panel is a job at its published setting. Times are added to the job's own step, so
that steps of unlike length can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import panel_title, share_legend, tiles
from railx.figures.published_steps import PUBLISHED_STEPS, published_steps
from railx.figures.tables import Tables, records, stack, where
from railx.figures.theme import INK, MODE_LABELS, MODES, PUBLISHED, mode_colours, published_series
from railx.figures.words import fidelity_line, quantity
from railx.settings import NotEmpty

__all__ = ["FIGURE", "StepSwitchesSettings"]

_PANELS = {
    "h200_128": "128 H200 (fig. 12)",
    "gb200_512": "512 GB200 (fig. 13)",
    "smoke": "Smoke run, 8 H200",
    "llama16": "Llama-3 8B, 16 A100",
    "llama64": "Llama-3 8B, 64 A100",
    "deepseek3d": "DeepSeek 16B, 16 A100",
}


#: Published simulations and the generated steps of their settings.
_SIMULATED = {"fig12": "h200_128", "fig13": "gb200_512"}

_STYLES: dict[str, tuple[Any, str]] = {
    "overlapped": ("-", "behind computation"),
    "in_line": ((0, (6, 2)), "before it goes on"),
    "at_end": ((0, (1, 1.2)), "after the last pass"),
    "sharded": ("-", "FSDP"),
}
_LATENCY = "reconfiguration_latency_ms"
_POINT = ["source", "panel", "gradients", "mode", _LATENCY, "added_ms", "fidelity"]
_NOTE = """Ours are generated jobs, no recordings. Published: Perlmutter with emulated delays, the
    rest simulated"""


@dataclass(frozen=True)
class StepSwitchesSettings(CanvasSettings):
    """Time that switching adds to generated steps, published beside ours."""

    figure: Literal["step_switches"] = "step_switches"
    height_inches: Height = 6.8

    rule: Annotated[str, NotEmpty()] = "stage_bits"
    """Circuit rule of the rows to show: ``circuits`` or ``stage_bits``."""


def draw(settings: StepSwitchesSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for each job that has published numbers."""
    points = _points(tables, settings.rule)
    panels = [name for name in _PANELS if name in set(points["panel"])]
    subtitle = """Step less the same job's step at latency 0 (simulations) or without a controller
        (A100). Hollow diamonds: published. Ours: generated jobs, by when they reduce gradients."""
    ours = points.loc[points["source"] == "ours", "fidelity"]
    with canvas(subtitle, fidelity_line(ours, _NOTE)) as page:
        columns = min(3, len(panels))
        grid = tiles(page, len(panels), columns, sharex=True)
        for axes, name in zip(grid, panels, strict=True):
            _panel(axes, points[points["panel"] == name])
            axes.set_title(panel_title(_PANELS[name], columns, settings))
        # One label for all panels: a panel is too narrow for it.
        page.supylabel("Added time (ms)")
        last = (len(panels) - 1) // columns * columns
        page.axes[last + (columns - 1) // 2].set_xlabel("Switching latency (ms)")
        for axes in grid[-columns:]:
            axes.tick_params(labelbottom=True)
        legend: dict[str, Any] = {}
        for mode, colour in mode_colours().items():
            legend[f"{MODE_LABELS[mode]}, ours"] = {"color": colour}
            legend[f"{MODE_LABELS[mode]}, {PUBLISHED}"] = published_series(colour)
        for key in ("overlapped", "in_line", "at_end"):
            if key in set(points["gradients"]):
                style, words = _STYLES[key]
                legend[f"Gradients {words}"] = {"color": INK, "linestyle": style}
        share_legend(page, legend, 4)
    return Drawn(*_texts(points, panels), points)


def _points(tables: Tables, rule: str) -> DataFrame:
    points = stack([_ours(tables, rule), _published(tables)])
    ours = set(where(points, source="ours")["panel"])
    shown = points[points["panel"].isin(ours) & (points[_LATENCY] > 0)]
    if shown.empty:
        raise UserError("times: no job with published numbers; allowed: h200_128, smoke, ...")
    return shown.reset_index(drop=True)


def _ours(tables: Tables, rule: str) -> DataFrame:
    """Generated steps less their references.

    Simulations are published against latency 0, other runs against no controller.
    """
    rows = tables.query(
        f"""
        select 'ours' as source, step, job, gradients, mode,
            reconfiguration_latency_ms::double as reconfiguration_latency_ms, step_ms,
            first(electrical_ms) over line as electrical_ms,
            max(if(reconfiguration_latency_ms = 0, step_ms, null))
                over (partition by step, job, mode, scale_out_gb_s) as zero_ms,
            'replay' as fidelity
        from times where rule = '{rule}' and mode in ('on_demand', 'provisioned')
        window line as (
            partition by step, job, mode order by rowid_
            rows between unbounded preceding and unbounded following
        )
        qualify scale_out_gb_s = first(scale_out_gb_s) over line
        order by min(rowid_) over (partition by step, job, mode), rowid_
        """
    )
    of_step = rows["step"].isin(_PANELS)
    rows["panel"] = rows["job"].where(rows["job"].isin(_PANELS), rows["step"])
    rows["added_ms"] = rows["step_ms"] - rows["zero_ms"].where(of_step, rows["electrical_ms"])
    return rows[rows["panel"].isin(_PANELS) & (rows[_LATENCY] <= 3000)][_POINT]


def _published(tables: Tables) -> DataFrame:
    """Simulations of figs. 12 and 13, the smoke run and the runs on Perlmutter."""
    steps = published_steps(tables).rename(columns={"latency_ms": _LATENCY})
    zero = steps["seconds"].where(steps[_LATENCY] == 0)
    first = zero.groupby([steps["setting"], steps["mode"]]).transform("max")
    simulated = steps["setting"].isin(_SIMULATED)
    added = 1e3 * (steps["seconds"] - first.where(simulated, steps["base_s"]))
    steps = steps.assign(
        source="published",
        panel=steps["setting"].replace(_SIMULATED),
        gradients="",
        added_ms=added,
        fidelity="",
    )
    lines = steps[simulated].sort_values(["setting", "mode"], kind="stable")
    return stack([lines, steps[~simulated]])[_POINT]


def _panel(axes: Axes, rows: DataFrame) -> None:
    above = rows[rows["added_ms"] > 0.05]
    for mode, colour in mode_colours().items():
        ours = where(above, mode=mode, source="ours")
        for gradients, line in ours.groupby("gradients", sort=False):
            style = _STYLES[str(gradients)][0]
            axes.plot(line[_LATENCY], line["added_ms"], color=colour, linestyle=style)
        theirs = where(above, mode=mode, source="published")
        axes.plot(theirs[_LATENCY], theirs["added_ms"], **published_series(colour))
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: quantity(value))


def _words(points: DataFrame, panel: str) -> str:
    rows = where(points, panel=panel)
    ours, theirs = (where(rows, source=name) for name in ("ours", "published"))
    latency = max(set(ours[_LATENCY]) & set(theirs[_LATENCY]))
    parts = []
    for mode in MODES:
        at = {_LATENCY: latency, "mode": mode}
        values = ", ".join(
            f"{quantity(row['added_ms'])} ms ({_STYLES[row['gradients']][1]})"
            for row in records(where(ours, **at))
        )
        stated = [quantity(added) for added in where(theirs, **at)["added_ms"]]
        parts.append(f"{MODE_LABELS[mode].lower()} {values}, published {[*stated, 'none'][0]}")
    return f"{_PANELS[panel]} at {quantity(latency)} ms: {'; '.join(parts)}"


def _texts(points: DataFrame, panels: list[str]) -> tuple[str, str]:
    """Caption and alternative text."""
    hidden = int((where(points, source="published")["added_ms"] <= 0.05).sum())
    left = f" {hidden} published points that add nothing are not drawn." if hidden else ""
    words = ". ".join(_words(points, panel) for panel in panels)
    caption = f"""Time that switching adds, over latency. {words}.{left} When the published runs
        reduce gradients is not known, and no way gives all of their numbers."""
    alternative = f"""Lines of added time over switching latency on logarithmic axes, a panel per
        job: {words}."""
    return caption, alternative


FIGURE = declare(
    StepSwitchesSettings,
    "What switching adds to a step at the published settings",
    "opus",
    draw,
    times="steps.times: step job device gpus gradients scale_out_gb_s rule mode"
    " reconfiguration_latency_ms step_ms electrical_ms fidelity",
    **PUBLISHED_STEPS,
)
