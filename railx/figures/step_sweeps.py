"""Generated steps over bandwidth, size, latency and experts, the sweeps of Opus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.canvas import panel_title, share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import beside, published_line
from railx.figures.tables import FigureInput, Tables, stack
from railx.figures.theme import DERIVED, MODE_LABELS, PALETTE, PUBLISHED_LINE, colours, dot
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import fidelity_line, quantity
from railx.settings import NonNegative, NotEmpty

__all__ = ["FIGURE", "StepSweepsSettings"]

_MODES = ("electrical", "on_demand", "provisioned")
_MARKERS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class StepSweepsSettings(CanvasSettings):
    """The sweeps of generated steps."""

    figure: Literal["step_sweeps"] = "step_sweeps"
    height_inches: Height = 7.6

    rule: Annotated[str, NotEmpty()] = "stage_bits"
    """Circuit rule of the rows to show."""

    latency_ms: Annotated[float, NonNegative()] = 10
    """Latency of the panels of bandwidth and size."""

    expert_latency_ms: Annotated[float, NonNegative()] = 0.5
    """Latency of the panel of experts."""

    bandwidth: tuple[str, ...] = ("h200_128", "gb200_512")
    """Steps of the panel of bandwidth."""

    scaling: tuple[str, ...] = ("scaling_h200", "scaling_gb200")
    """Steps of the panel of size."""

    utilisation: str = "frontier"
    """The step of the panel of utilisation."""

    experts: tuple[str, ...] = ("experts_h200", "experts_gb200")
    """Steps of the panel of experts."""


def draw(settings: StepSweepsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Four panels: bandwidth, size, utilisation, experts."""

    frame = tables.read("times")
    values = tables.read("headline").set_index("id")["value"]
    points = _points(frame, settings)
    subtitle = (
        "Generated jobs; gradients are reduced behind computation, with experts at the end. The"
        " paper's values are not archived but for its two dashed extremes."
    )
    with canvas(
        subtitle, fidelity_line(points["fidelity"], "Generated jobs, no recordings")
    ) as page:
        ((bandwidth, scaling), (utilisation, experts)) = page.subplots(2, 2)
        at = quantity(settings.latency_ms)
        _lines(bandwidth, points[points["panel"] == "bandwidth"], log=True)
        bandwidth.set(xlabel="Bandwidth of the rails (GB/s)", ylabel="Over the fastest step (ms)")
        bandwidth.set_title(panel_title(f"Bandwidth, {at} ms (electrical: 0 ms)", 2, settings))
        _lines(scaling, points[points["panel"] == "scaling"], log=True)
        scaling.set(xlabel="GPUs, batch kept", ylabel=f"Added at {at} ms (%)")
        published_line(scaling, 100 * float(values["overhead_largest_strong_scaling_10ms"]), "y")
        scaling.set_ylim(0, None)
        scaling.set_title(panel_title(f"Strong scaling, {at} ms", 2, settings))
        _utilisation(utilisation, points[points["panel"] == "utilisation"])
        utilisation.set_title(panel_title("Utilisation, provisioned", 2, settings))
        _lines(experts, points[points["panel"] == "experts"], log=True)
        published_line(experts, float(values["expert_slowdown_most"]), "y")
        experts.set(xlabel="Ranks of a group of experts", ylabel="Step over packet switches")
        wait = quantity(settings.expert_latency_ms)
        experts.set_title(panel_title(f"Experts beyond the server, {wait} ms", 2, settings))
        colour = colours(_MODES)
        series = list(dict.fromkeys(points.loc[points["panel"] != "utilisation", "device"]))
        legend: dict[str, Any] = {MODE_LABELS[mode]: {"color": colour[mode]} for mode in _MODES}
        legend |= {
            device: dot("black", marker=mark)
            for device, mark in zip(series, _MARKERS, strict=False)
        }
        share_legend(page, legend | {f"Largest, {DERIVED}": PUBLISHED_LINE}, 3)
    return Drawn(_caption(points, settings), _alternative(points), points)


def _points(frame: DataFrame, settings: StepSweepsSettings) -> DataFrame:
    chosen = frame[frame["rule"].isin(("electrical", settings.rule))]
    chosen = chosen[~chosen["gradients"].isin(("in_line",))]
    parts = []
    wide = chosen[chosen["step"].isin(settings.bandwidth) & (chosen["gradients"] == "overlapped")]
    wide = wide[(wide["mode"] == "electrical") | _at(wide, settings.latency_ms)]
    fastest = wide[wide["mode"] == "electrical"].groupby("step")["step_ms"].min()
    slower = wide["step_ms"] - wide["step"].map(fastest)
    parts.append(wide.assign(panel="bandwidth", x=wide["scale_out_gb_s"], y=slower))
    size = chosen[chosen["step"].isin(settings.scaling) & _at(chosen, settings.latency_ms)]
    size = size[size["mode"] != "electrical"]
    over = size["step_ms"] / size["electrical_ms"]
    parts.append(size.assign(panel="scaling", x=size["gpus"], y=100 * (over - 1)))
    used = chosen[(chosen["step"] == settings.utilisation) & (chosen["mode"] == "provisioned")]
    parts.append(
        used.assign(
            panel="utilisation", x=used["reconfiguration_latency_ms"], y=100 * used["utilisation"]
        )
    )
    spread = chosen[chosen["step"].isin(settings.experts) & _at(chosen, settings.expert_latency_ms)]
    spread = spread[spread["mode"] != "electrical"]
    over = spread["step_ms"] / spread["electrical_ms"]
    parts.append(spread.assign(panel="experts", x=spread["expert"], y=over))
    points = stack(parts)
    missing = {"bandwidth", "scaling", "utilisation", "experts"} - set(points["panel"])
    if missing:
        raise UserError(
            f"times: no rows for {', '.join(sorted(missing))}; allowed: the steps that the settings"
            " name"
        )
    return points[
        ["panel", "step", "device", "gpus", "expert", "mode", "x", "y", "rule", "fidelity"]
    ]


def _at(frame: DataFrame, latency_ms: float) -> Series[bool]:
    return frame["reconfiguration_latency_ms"] == latency_ms


def _lines(axes: Axes, rows: DataFrame, *, log: bool) -> None:
    colour = colours(_MODES)
    devices = list(dict.fromkeys(rows["device"]))
    for (device, mode), line in rows.groupby(["device", "mode"], sort=False):
        line = line.sort_values("x")
        marker = _MARKERS[devices.index(device)]
        axes.plot(line["x"], line["y"], color=colour[str(mode)], marker=marker)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(set(rows["x"])))
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))


def _utilisation(axes: Axes, rows: DataFrame) -> None:
    for n, (gpus, line) in enumerate(rows.groupby("gpus")):
        line = line.sort_values("x")
        axes.plot(line["x"], line["y"], color=PALETTE[n + 2], marker=".")
        beside(
            axes,
            f"{int(str(gpus)):,} GPUs",
            float(line["x"].iloc[-1]),
            float(line["y"].iloc[-1]),
            5,
        )
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlabel="Switching latency (ms)", ylabel="Computation of a step (%)")
    axes.set_xlim(-0.2, 40_000)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))


def _parts(points: DataFrame) -> str:
    sentences = []
    words = {
        "bandwidth": "{} ms over the fastest step",
        "scaling": "added {} %",
        "experts": "{} times the step",
    }
    for panel, text in words.items():
        rows = points[(points["panel"] == panel) & (points["mode"] != "electrical")]
        ends = []
        for (device, mode), line in rows.groupby(["device", "mode"], sort=False):
            line = line.sort_values("x")
            values = [text.format(quantity(float(line["y"].iloc[n]))) for n in (0, -1)]
            places = [quantity(float(line["x"].iloc[n])) for n in (0, -1)]
            ends.append(
                f"{device} {MODE_LABELS[str(mode)].lower()} {values[0]} at {places[0]} and"
                f" {values[1]} at {places[1]}"
            )
        sentences.append(f"{panel.capitalize()}: {'; '.join(ends)}.")
    used = points[points["panel"] == "utilisation"]
    shares = ", ".join(
        f"{int(str(gpus)):,} GPUs {quantity(float(line['y'].max()))} % to"
        f" {quantity(float(line['y'].min()))} %"
        for gpus, line in used.groupby("gpus")
    )
    return " ".join([*sentences, f"Utilisation: {shares}."])


def _caption(points: DataFrame, settings: StepSweepsSettings) -> str:
    return (
        f"Sweeps of generated steps, circuits by the rule {settings.rule.replace('_', ' ')}."
        f" {_parts(points)} Domains of 8 (H200) and 32 (GB200); the layer with experts and the"
        " roofline are choices of this project."
    )


def _alternative(points: DataFrame) -> str:
    return f"Four panels of lines. {_parts(points)}"


FIGURE = Figure(
    StepSweepsSettings,
    "Sweeps of generated steps on photonic rails",
    "opus",
    (
        FigureInput(
            "times",
            "steps.times",
            "step job device gpus expert gradients scale_out_gb_s rule mode "
            "reconfiguration_latency_ms step_ms electrical_ms utilisation fidelity",
        ),
        FigureInput("headline", columns="id value", published="opus.csv"),
    ),
    draw,
)
