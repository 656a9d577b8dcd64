"""What switching adds to a generated step over latency, beside the published numbers.

Each panel is a job at its published setting. Times are added to the job's own step, so
that steps of unlike length can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame, published_series
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    INK,
    MODE_LABELS,
    PUBLISHED,
    canvas,
    colours,
    panel_title,
    quantity,
    share_legend,
)
from railx.settings import NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "StepSwitchesSettings"]

_COLUMNS = (
    *("step", "job", "device", "gpus", "gradients", "scale_out_gb_s", "rule", "mode"),
    *("reconfiguration_latency_ms", "step_ms", "electrical_ms", "fidelity"),
)
_MODES = ("on_demand", "provisioned")
_PERLMUTTER = ("case", "mode", "reconfig_latency_ms", "mean_iteration_latency_s")
_SIMULATED = ("figure", "system", "reconfig_latency_ms", "step_latency_s")
_SMOKE = ("reconfig_latency_ms", "eps_step_s", "on_demand_step_s", "provision_step_s")
#: The step of each published figure.
_FIGURES = {"h200_128": "fig12", "gb200_512": "fig13"}
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


@dataclass(frozen=True)
class StepSwitchesSettings(CanvasSettings):
    """Time that switching adds to generated steps, published beside ours."""

    figure: Literal["step_switches"]
    """Which figure it is."""

    rule: Annotated[str, NotEmpty()]
    """Circuit rule of the rows to show: ``circuits`` or ``stage_bits``."""


def draw(settings: StepSwitchesSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A panel for each job that has published numbers."""
    from matplotlib.lines import Line2D

    points = _points(inputs, settings.rule)
    panels = [name for name in _PANELS if name in set(points["panel"])]
    subtitle = (
        "Step less the same job's step at latency 0 (simulations) or without a controller (A100)."
        " Hollow diamonds: published. Ours: generated jobs, by when they reduce gradients."
    )
    with canvas(
        settings,
        output,
        "What switching adds to a step at the published settings",
        subtitle,
        fidelity_line(points.loc[points["source"] == "ours", "fidelity"], _NOTE),
    ) as figure:
        columns = min(3, len(panels))
        grid = figure.subplots(-(-len(panels) // columns), columns, sharex=True, squeeze=False)
        for axes, name in zip(grid.flat, panels, strict=False):
            _panel(axes, points[points["panel"] == name])
            axes.set_title(panel_title(_PANELS[name], columns, settings))
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        # One label each: a panel is too narrow for its own.
        figure.supylabel("Added time (ms)")
        grid[-1, (columns - 1) // 2].set_xlabel("Switching latency (ms)")
        for axes in list(grid.flat)[max(0, len(panels) - columns) : len(panels)]:
            axes.tick_params(labelbottom=True)
        colour = colours(("electrical", *_MODES))
        handles: list[Any] = []
        texts: list[str] = []
        for mode in _MODES:
            handles += [
                Line2D([], [], color=colour[mode]),
                Line2D([], [], **published_series(colour[mode])),
            ]
            texts += [f"{MODE_LABELS[mode]}, ours", f"{MODE_LABELS[mode]}, {PUBLISHED}"]
        for key in ("overlapped", "in_line", "at_end"):
            if key in set(points["gradients"]):
                handles.append(Line2D([], [], color=INK, linestyle=_STYLES[key][0]))
                texts.append(f"Gradients {_STYLES[key][1]}")
        share_legend(figure, handles, texts, 4)
    return Drawn(_caption(points, panels), _alternative(points, panels), points)


_NOTE = (
    "Ours are generated jobs, no recordings. Published: Perlmutter with emulated delays, the rest"
    " simulated"
)


def _points(inputs: FigureFiles, rule: str) -> pd.DataFrame:
    import pandas as pd

    frame = read_frames(inputs, "times", _COLUMNS)
    rows = [*_ours(frame, rule), *_published(inputs)]
    points = pd.DataFrame(rows)
    ours = set(points.loc[points["source"] == "ours", "panel"])
    shown = points[points["panel"].isin(ours) & (points["reconfiguration_latency_ms"] > 0)]
    if shown.empty:
        raise UserError("times: no job with published numbers; allowed: h200_128, smoke, ...")
    return shown.reset_index(drop=True)


def _row(source: str, panel: str, gradients: str, mode: str, latency: Any, added: float) -> Any:
    return {
        "source": source,
        "panel": panel,
        "gradients": gradients,
        "mode": mode,
        "reconfiguration_latency_ms": float(latency),
        "added_ms": added,
        "fidelity": "replay" if source == "ours" else "",
    }


def _ours(frame: pd.DataFrame, rule: str) -> list[dict[str, Any]]:
    rows = []
    switched = frame[(frame["rule"] == rule) & frame["mode"].isin(_MODES)]
    for (step, job, mode), own in switched.groupby(["step", "job", "mode"], sort=False):
        panel = str(job) if job in _PANELS else str(step)
        if panel not in _PANELS:
            continue
        own = own[own["scale_out_gb_s"] == own["scale_out_gb_s"].iloc[0]]
        first = own.loc[own["reconfiguration_latency_ms"] == 0, "step_ms"]
        simulated = str(step) in _PANELS
        reference = float((first if simulated else own["electrical_ms"]).iloc[0])
        rows += [
            _row(
                "ours",
                panel,
                str(one["gradients"]),
                str(mode),
                one["reconfiguration_latency_ms"],
                one["step_ms"] - reference,
            )
            for one in own.to_dict("records")
            if one["reconfiguration_latency_ms"] <= 3000
        ]
    return rows


def _published(inputs: FigureFiles) -> list[dict[str, Any]]:
    rows = []
    table = published_frame(inputs, "simulation", _SIMULATED)
    for step, figure in _FIGURES.items():
        for mode, system in zip(_MODES, ("opus_on_demand", "opus_provision"), strict=True):
            own = table[(table["figure"] == figure) & (table["system"] == system)]
            first = float(own.loc[own["reconfig_latency_ms"] == 0, "step_latency_s"].iloc[0])
            rows += [
                _row(
                    "published",
                    step,
                    "",
                    mode,
                    one["reconfig_latency_ms"],
                    1e3 * (one["step_latency_s"] - first),
                )
                for one in own.to_dict("records")
            ]
    for one in published_frame(inputs, "smoke", _SMOKE).to_dict("records"):
        for mode, column in zip(_MODES, ("on_demand_step_s", "provision_step_s"), strict=True):
            added = 1e3 * (one[column] - one["eps_step_s"])
            rows.append(_row("published", "smoke", "", mode, one["reconfig_latency_ms"], added))
    measured = published_frame(inputs, "perlmutter", _PERLMUTTER)
    for case, own in measured.groupby("case", sort=False):
        alone = own.loc[own["mode"] == "no_controller", "mean_iteration_latency_s"]
        rows += [
            _row(
                "published",
                str(case),
                "",
                "on_demand" if one["mode"] == "on_demand" else "provisioned",
                one["reconfig_latency_ms"],
                1e3 * (one["mean_iteration_latency_s"] - float(alone.iloc[0])),
            )
            for one in own[own["mode"] != "no_controller"].to_dict("records")
        ]
    return rows


def _panel(axes: Axes, own: pd.DataFrame) -> None:
    colour = colours(("electrical", *_MODES))
    above = own[own["added_ms"] > 0.05]
    for mode in _MODES:
        mine = above[(above["mode"] == mode) & (above["source"] == "ours")]
        for gradients, line in mine.groupby("gradients", sort=False):
            axes.plot(
                line["reconfiguration_latency_ms"],
                line["added_ms"],
                color=colour[mode],
                linestyle=_STYLES[str(gradients)][0],
            )
        theirs = above[(above["mode"] == mode) & (above["source"] == "published")]
        axes.plot(
            theirs["reconfiguration_latency_ms"],
            theirs["added_ms"],
            **published_series(colour[mode]),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: quantity(value))


def _words(points: pd.DataFrame, panel: str) -> str:
    own = points[points["panel"] == panel]
    both = set(own.loc[own["source"] == "ours", "reconfiguration_latency_ms"]) & set(
        own.loc[own["source"] == "published", "reconfiguration_latency_ms"]
    )
    at = own[own["reconfiguration_latency_ms"] == max(both)]
    parts = []
    for mode in _MODES:
        mine = at[at["mode"] == mode]
        theirs = mine.loc[mine["source"] == "published", "added_ms"]
        ours = ", ".join(
            f"{quantity(one['added_ms'])} ms ({_STYLES[one['gradients']][1]})"
            for one in mine[mine["source"] == "ours"].to_dict("records")
        )
        parts.append(
            f"{MODE_LABELS[mode].lower()} {ours}, published"
            f" {quantity(float(theirs.iloc[0])) if len(theirs) else 'none'}"
        )
    return f"{_PANELS[panel]} at {quantity(max(both))} ms: {'; '.join(parts)}"


def _caption(points: pd.DataFrame, panels: list[str]) -> str:
    hidden = int(((points["source"] == "published") & (points["added_ms"] <= 0.05)).sum())
    left = f" {hidden} published points that add nothing are not drawn." if hidden else ""
    words = ". ".join(_words(points, one) for one in panels)
    return (
        f"Time that switching adds, over latency. {words}.{left} When the published runs reduce"
        " gradients is not known, and no way gives all of their numbers."
    )


def _alternative(points: pd.DataFrame, panels: list[str]) -> str:
    return (
        "Lines of added time over switching latency on logarithmic axes, a panel per job:"
        f" {'. '.join(_words(points, one) for one in panels)}."
    )


FIGURE = Figure(
    settings=StepSwitchesSettings,
    title="What switching adds to a step at the published settings",
    paper="opus",
    inputs=(
        FigureInput("times", "steps.times", columns=_COLUMNS),
        FigureInput("perlmutter", published="opus_perlmutter_iteration_latency.csv"),
        FigureInput("simulation", published="opus_simulation_latency.csv"),
        FigureInput("smoke", published="opus_simulation_smoke.csv"),
    ),
    draw=draw,
)
