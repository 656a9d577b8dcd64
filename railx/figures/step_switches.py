"""What switching adds to a generated step over latency, beside the published numbers.

Each panel is a job at its published setting. Times are added to the job's own step, so
that steps of unlike length can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.canvas import panel_title, share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Height, declare
from railx.figures.panels import tiles
from railx.figures.tables import Tables, records, stack, to_frame
from railx.figures.theme import INK, MODE_LABELS, MODES, PUBLISHED, mode_colours, published_series
from railx.figures.types import Axes, DataFrame
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
_STYLES: dict[str, tuple[Any, str]] = {
    "overlapped": ("-", "behind computation"),
    "in_line": ((0, (6, 2)), "before it goes on"),
    "at_end": ((0, (1, 1.2)), "after the last pass"),
    "sharded": ("-", "FSDP"),
}
_LATENCY = "reconfiguration_latency_ms"
_POINT = ["source", "panel", "gradients", "mode", _LATENCY, "added_ms", "fidelity"]
_NOTE = (
    "Ours are generated jobs, no recordings. Published: Perlmutter with emulated delays, the rest"
    " simulated"
)


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
    subtitle = (
        "Step less the same job's step at latency 0 (simulations) or without a controller (A100)."
        " Hollow diamonds: published. Ours: generated jobs, by when they reduce gradients."
    )
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
    return Drawn(_caption(points, panels), _alternative(points, panels), points)


def _points(tables: Tables, rule: str) -> DataFrame:
    points = stack([_ours(tables.read("times"), rule), _published(tables)])
    ours = set(points.loc[points["source"] == "ours", "panel"])
    shown = points[points["panel"].isin(ours) & (points[_LATENCY] > 0)]
    if shown.empty:
        raise UserError("times: no job with published numbers; allowed: h200_128, smoke, ...")
    return shown.reset_index(drop=True)


def _ours(frame: DataFrame, rule: str) -> DataFrame:
    rows = []
    switched = frame[(frame["rule"] == rule) & frame["mode"].isin(MODES)]
    for (step, job, mode), steps in switched.groupby(["step", "job", "mode"], sort=False):
        panel = str(job) if job in _PANELS else str(step)
        if panel not in _PANELS:
            continue
        steps = steps[steps["scale_out_gb_s"] == steps["scale_out_gb_s"].iloc[0]]
        # Simulations are published against latency 0, other runs against no controller.
        reference = steps["electrical_ms"]
        if str(step) in _PANELS:
            reference = steps.loc[steps[_LATENCY] == 0, "step_ms"]
        base = float(reference.iloc[0])
        rows += [
            (
                *("ours", panel, str(row["gradients"]), str(mode)),
                *(float(row[_LATENCY]), row["step_ms"] - base, "replay"),
            )
            for row in records(steps)
            if row[_LATENCY] <= 3000
        ]
    return to_frame(rows, _POINT)


def _published(tables: Tables) -> DataFrame:
    """Simulations of figs. 12 and 13, the smoke run and the runs on Perlmutter."""
    return tables.query(
        """
        with steps as (
            select * from (values ('h200_128', 'fig12', 0), ('gb200_512', 'fig13', 1))
                as steps(panel, figure, panel_number)
        ), modes as (
            select * from (values ('on_demand', 'opus_on_demand', 0),
                ('provisioned', 'opus_provision', 1)) as modes(mode, system, number)
        ), points as (
            select 0 as part, 2 * panel_number + number as line, s.rowid_ as row, panel, mode,
                s.reconfig_latency_ms as latency,
                1e3 * (s.step_latency_s - zero.step_latency_s) as added
            from simulation s join steps using (figure) join modes using (system)
            join simulation zero using (figure, system) where zero.reconfig_latency_ms = 0
            union all
            select 1, rowid_, number, 'smoke', mode, reconfig_latency_ms,
                1e3 * (case mode when 'on_demand' then on_demand_step_s
                    else provision_step_s end - eps_step_s)
            from smoke, modes
            union all
            select 2, 0, p.rowid_, "case",
                case p.mode when 'on_demand' then 'on_demand' else 'provisioned' end,
                p.reconfig_latency_ms,
                1e3 * (p.mean_iteration_latency_s - alone.mean_iteration_latency_s)
            from perlmutter p join perlmutter alone using ("case")
            where p.mode != 'no_controller' and alone.mode = 'no_controller'
        )
        select 'published' as source, panel, '' as gradients, mode,
            latency::double as reconfiguration_latency_ms, added as added_ms, '' as fidelity
        from points order by part, line, row
        """
    )


def _panel(axes: Axes, rows: DataFrame) -> None:
    above = rows[rows["added_ms"] > 0.05]
    for mode, colour in mode_colours().items():
        ours = above[(above["mode"] == mode) & (above["source"] == "ours")]
        for gradients, line in ours.groupby("gradients", sort=False):
            style = _STYLES[str(gradients)][0]
            axes.plot(line[_LATENCY], line["added_ms"], color=colour, linestyle=style)
        theirs = above[(above["mode"] == mode) & (above["source"] == "published")]
        axes.plot(theirs[_LATENCY], theirs["added_ms"], **published_series(colour))
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: quantity(value))


def _words(points: DataFrame, panel: str) -> str:
    rows = points[points["panel"] == panel]
    ours, theirs = (set(rows.loc[rows["source"] == who, _LATENCY]) for who in ("ours", "published"))
    latency = max(ours & theirs)
    parts = []
    for mode in MODES:
        at = rows[(rows[_LATENCY] == latency) & (rows["mode"] == mode)]
        published = at.loc[at["source"] == "published", "added_ms"]
        values = ", ".join(
            f"{quantity(row['added_ms'])} ms ({_STYLES[row['gradients']][1]})"
            for row in records(at[at["source"] == "ours"])
        )
        stated = quantity(float(published.iloc[0])) if len(published) else "none"
        parts.append(f"{MODE_LABELS[mode].lower()} {values}, published {stated}")
    return f"{_PANELS[panel]} at {quantity(latency)} ms: {'; '.join(parts)}"


def _caption(points: DataFrame, panels: list[str]) -> str:
    hidden = int(((points["source"] == "published") & (points["added_ms"] <= 0.05)).sum())
    left = f" {hidden} published points that add nothing are not drawn." if hidden else ""
    words = ". ".join(_words(points, panel) for panel in panels)
    return (
        f"Time that switching adds, over latency. {words}.{left} When the published runs reduce"
        " gradients is not known, and no way gives all of their numbers."
    )


def _alternative(points: DataFrame, panels: list[str]) -> str:
    return (
        "Lines of added time over switching latency on logarithmic axes, a panel per job:"
        f" {'. '.join(_words(points, panel) for panel in panels)}."
    )


FIGURE = declare(
    StepSwitchesSettings,
    "What switching adds to a step at the published settings",
    "opus",
    draw,
    times="steps.times: step job device gpus gradients scale_out_gb_s rule mode"
    " reconfiguration_latency_ms step_ms electrical_ms fidelity",
    perlmutter="opus_perlmutter_iteration_latency.csv: case mode reconfig_latency_ms"
    " mean_iteration_latency_s",
    simulation="opus_simulation_latency.csv: figure system reconfig_latency_ms step_latency_s",
    smoke="opus_simulation_smoke.csv: reconfig_latency_ms eps_step_s on_demand_step_s"
    " provision_step_s",
)
