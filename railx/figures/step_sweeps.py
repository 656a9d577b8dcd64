"""Generated steps over bandwidth, size, latency and experts, the sweeps of Opus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    DERIVED,
    MODE_LABELS,
    PALETTE,
    canvas,
    colours,
    panel_title,
    published_handle,
    published_line,
    quantity,
    share_legend,
)
from railx.settings import NonNegative, NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "StepSweepsSettings"]

_COLUMNS = (
    *("step", "job", "device", "gpus", "expert", "gradients", "scale_out_gb_s", "rule", "mode"),
    *("reconfiguration_latency_ms", "step_ms", "electrical_ms", "utilisation", "fidelity"),
)
_MODES = ("electrical", "on_demand", "provisioned")
_MARKERS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class StepSweepsSettings(CanvasSettings):
    """The sweeps of generated steps."""

    figure: Literal["step_sweeps"]
    """Which figure it is."""

    rule: Annotated[str, NotEmpty()]
    """Circuit rule of the rows to show."""

    latency_ms: Annotated[float, NonNegative()]
    """Latency of the panels of bandwidth and size."""

    expert_latency_ms: Annotated[float, NonNegative()]
    """Latency of the panel of experts."""

    bandwidth: tuple[str, ...]
    """Steps of the panel of bandwidth."""

    scaling: tuple[str, ...]
    """Steps of the panel of size."""

    utilisation: str
    """The step of the panel of utilisation."""

    experts: tuple[str, ...]
    """Steps of the panel of experts."""


def draw(settings: StepSweepsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Four panels: bandwidth, size, utilisation, experts."""
    from matplotlib.lines import Line2D

    frame = read_frames(inputs, "times", _COLUMNS)
    values = published_frame(inputs, "headline", ("id", "value")).set_index("id")["value"]
    points = _points(frame, settings)
    subtitle = (
        "Generated jobs; gradients are reduced behind computation, with experts at the end. The"
        " paper's values are not archived but for its two dashed extremes."
    )
    with canvas(
        settings,
        output,
        "Sweeps of generated steps on photonic rails",
        subtitle,
        fidelity_line(points["fidelity"], "Generated jobs, no recordings"),
    ) as figure:
        ((bandwidth, scaling), (utilisation, experts)) = figure.subplots(2, 2)
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
        handles: list[Any] = [Line2D([], [], color=colour[mode]) for mode in _MODES]
        handles += [
            Line2D([], [], color="black", linestyle="none", marker=_MARKERS[n])
            for n in range(len(series))
        ]
        handles.append(published_handle(line=True))
        texts = [*(MODE_LABELS[mode] for mode in _MODES), *series, f"Largest, {DERIVED}"]
        share_legend(figure, handles, texts, 3)
    return Drawn(_caption(points, settings), _alternative(points), points)


def _points(frame: pd.DataFrame, settings: StepSweepsSettings) -> pd.DataFrame:
    import pandas as pd

    kept = frame[frame["rule"].isin(("electrical", settings.rule))]
    kept = kept[~kept["gradients"].isin(("in_line",))]
    parts = []
    wide = kept[kept["step"].isin(settings.bandwidth) & (kept["gradients"] == "overlapped")]
    wide = wide[(wide["mode"] == "electrical") | _at(wide, settings.latency_ms)]
    fastest = wide[wide["mode"] == "electrical"].groupby("step")["step_ms"].min()
    slower = wide["step_ms"] - wide["step"].map(fastest)
    parts.append(wide.assign(panel="bandwidth", x=wide["scale_out_gb_s"], y=slower))
    size = kept[kept["step"].isin(settings.scaling) & _at(kept, settings.latency_ms)]
    size = size[size["mode"] != "electrical"]
    over = size["step_ms"] / size["electrical_ms"]
    parts.append(size.assign(panel="scaling", x=size["gpus"], y=100 * (over - 1)))
    used = kept[(kept["step"] == settings.utilisation) & (kept["mode"] == "provisioned")]
    parts.append(
        used.assign(
            panel="utilisation", x=used["reconfiguration_latency_ms"], y=100 * used["utilisation"]
        )
    )
    spread = kept[kept["step"].isin(settings.experts) & _at(kept, settings.expert_latency_ms)]
    spread = spread[spread["mode"] != "electrical"]
    over = spread["step_ms"] / spread["electrical_ms"]
    parts.append(spread.assign(panel="experts", x=spread["expert"], y=over))
    points = pd.concat(parts, ignore_index=True)
    missing = {"bandwidth", "scaling", "utilisation", "experts"} - set(points["panel"])
    if missing:
        raise UserError(
            f"times: no rows for {', '.join(sorted(missing))}; allowed: the steps that the settings"
            " name"
        )
    return points[
        ["panel", "step", "device", "gpus", "expert", "mode", "x", "y", "rule", "fidelity"]
    ]


def _at(frame: pd.DataFrame, latency_ms: float) -> pd.Series[bool]:
    return frame["reconfiguration_latency_ms"] == latency_ms


def _lines(axes: Axes, own: pd.DataFrame, *, log: bool) -> None:
    colour = colours(_MODES)
    devices = list(dict.fromkeys(own["device"]))
    for (device, mode), line in own.groupby(["device", "mode"], sort=False):
        line = line.sort_values("x")
        marker = _MARKERS[devices.index(device)]
        axes.plot(line["x"], line["y"], color=colour[str(mode)], marker=marker)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(set(own["x"])))
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))


def _utilisation(axes: Axes, own: pd.DataFrame) -> None:
    for n, (gpus, line) in enumerate(own.groupby("gpus")):
        line = line.sort_values("x")
        axes.plot(line["x"], line["y"], color=PALETTE[n + 2], marker=".")
        axes.annotate(
            f"{int(str(gpus)):,} GPUs",
            (float(line["x"].iloc[-1]), float(line["y"].iloc[-1])),
            (5, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlabel="Switching latency (ms)", ylabel="Computation of a step (%)")
    axes.set_xlim(-0.2, 40_000)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))


def _parts(points: pd.DataFrame) -> str:
    sentences = []
    words = {
        "bandwidth": "{} ms over the fastest step",
        "scaling": "added {} %",
        "experts": "{} times the step",
    }
    for panel, text in words.items():
        own = points[(points["panel"] == panel) & (points["mode"] != "electrical")]
        ends = []
        for (device, mode), line in own.groupby(["device", "mode"], sort=False):
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


def _caption(points: pd.DataFrame, settings: StepSweepsSettings) -> str:
    return (
        f"Sweeps of generated steps, circuits by the rule {settings.rule.replace('_', ' ')}."
        f" {_parts(points)} Domains of 8 (H200) and 32 (GB200); the layer with experts and the"
        " roofline are choices of this project."
    )


def _alternative(points: pd.DataFrame) -> str:
    return f"Four panels of lines. {_parts(points)}"


FIGURE = Figure(
    settings=StepSweepsSettings,
    title="Sweeps of generated steps on photonic rails",
    paper="opus",
    inputs=(
        FigureInput("times", "steps.times", columns=_COLUMNS),
        FigureInput("headline", published="opus.csv", columns=("id", "value")),
    ),
    draw=draw,
)
