"""Generated steps over bandwidth, size, latency and experts, the sweeps of Opus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, figure, reads
from railx.figures.marks import DERIVED, PUBLISHED_LINE, dot
from railx.figures.panels import beside, panel_title, share_legend, ticks
from railx.figures.tables import refuse, to_frame, where
from railx.figures.theme import MODE_COLOURS, MODE_LABELS, PALETTE
from railx.figures.types import Axes, DataFrame
from railx.figures.words import phrases, quantity
from railx.settings import NonNegative, NotEmpty

_MARKERS = "os^D"
#: Panels: the words of their axes, and of a value in the caption.
_SWEEPS = {
    "bandwidth": (
        *("Bandwidth of the rails (GB/s)", "Over the fastest step (ms)"),
        "{} ms over the fastest step",
    ),
    "scaling": ("GPUs, batch kept", "Added at {} ms (%)", "added {} %"),
    "utilisation": ("Switching latency (ms)", "Computation of a step (%)", ""),
    "experts": ("Ranks of a group of experts", "Step over packet switches", "{} times the step"),
}


@dataclass(frozen=True)
class StepSweepsSettings(CanvasSettings):
    """The sweeps of generated steps."""

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


@figure("Sweeps of generated steps on photonic rails", "opus", height=7.6)
@reads(
    times="steps.times: step job device gpus expert gradients scale_out_gb_s rule mode"
    " reconfiguration_latency_ms step_ms electrical_ms utilisation fidelity",
    headline="opus.csv: id value",
)
def step_sweeps(settings: StepSweepsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Four panels: bandwidth, size, utilisation, experts."""
    values = tables.values("headline")
    points = _points(tables, settings)
    devices = points.loc[points["panel"] != "utilisation", "device"].unique()
    markers = dict(zip(devices, _MARKERS, strict=False))
    subtitle = """Generated jobs; gradients are reduced behind computation, with experts in line.
        The paper's values are not archived but for its two dashed extremes."""
    with canvas(subtitle, points["fidelity"], "Generated jobs, no recordings") as page:
        panels = dict(zip(_SWEEPS, page.subplots(2, 2).flat, strict=True))
        at, wait = quantity(settings.latency_ms), quantity(settings.expert_latency_ms)
        titles = {
            "bandwidth": f"Bandwidth, {at} ms (electrical: 0 ms)",
            "scaling": f"Strong scaling, {at} ms",
            "utilisation": "Utilisation, provisioned",
            "experts": f"Experts beyond the server, {wait} ms",
        }
        for panel, (x, y, _) in _SWEEPS.items():
            axes, rows = panels[panel], where(points, panel=panel)
            if panel == "utilisation":
                _utilisation(axes, rows)
            else:
                _lines(axes, rows, markers)
            axes.set(xlabel=x, ylabel=y.format(at), title=panel_title(titles[panel], 2, settings))
        most = 100 * float(values["overhead_largest_strong_scaling_10ms"])
        panels["scaling"].axhline(most, zorder=4, **PUBLISHED_LINE)
        panels["scaling"].set_ylim(0, None)
        slowest = float(values["expert_slowdown_most"])
        panels["experts"].axhline(slowest, zorder=4, **PUBLISHED_LINE)
        legend: dict[str, Any] = {
            MODE_LABELS[mode]: {"color": colour} for mode, colour in MODE_COLOURS.items()
        }
        legend |= {device: dot("black", marker=mark) for device, mark in markers.items()}
        share_legend(page, legend | {f"Largest, {DERIVED}": PUBLISHED_LINE}, 3)
    parts = _parts(points)
    caption = f"""Sweeps of generated steps, circuits by the rule {settings.rule.replace("_", " ")}.
        {parts} Domains of 8 (H200) and 32 (GB200); steps with experts are counted as the
        published generator counts them, the roofline is a choice of this project."""
    return Drawn(caption, f"Four panels of lines. {parts}", points)


def _points(tables: Tables, settings: StepSweepsSettings) -> DataFrame:
    """A row for each mark of each panel."""
    names = (settings.bandwidth, settings.scaling, (settings.utilisation,), settings.experts)
    steps = [(panel, step) for panel, chosen in zip(_SWEEPS, names, strict=True) for step in chosen]
    points = tables.query(
        f"""
        with drawn as (
            select *, min(step_ms) filter (mode = 'electrical' and gradients = 'overlapped')
                over (partition by panel, step) as fastest_ms
            from times join steps using (step)
            where rule in ('electrical', '{settings.rule}')
                and (gradients != 'in_line' or panel = 'experts')
        )
        select panel, step, device, gpus, expert, mode,
            case panel when 'bandwidth' then scale_out_gb_s when 'scaling' then gpus
                when 'utilisation' then reconfiguration_latency_ms else expert end::double as x,
            case panel when 'bandwidth' then step_ms - fastest_ms
                when 'scaling' then 100 * (step_ms / electrical_ms - 1)
                when 'utilisation' then 100 * utilisation
                else step_ms / electrical_ms end as y,
            rule, fidelity
        from drawn where case panel
            when 'bandwidth' then gradients = 'overlapped' and (mode = 'electrical'
                or reconfiguration_latency_ms = {settings.latency_ms})
            when 'scaling' then mode != 'electrical'
                and reconfiguration_latency_ms = {settings.latency_ms}
            when 'utilisation' then mode = 'provisioned'
            else mode != 'electrical'
                and reconfiguration_latency_ms = {settings.expert_latency_ms} end
        order by list_position({list(_SWEEPS)}, panel), rowid_
        """,
        steps=to_frame(steps, ["panel", "step"]),
    )
    missing = set(_SWEEPS) - set(points["panel"])
    if missing:
        got = f"times: no rows for {', '.join(sorted(missing))}"
        refuse(got, "the steps that the settings name")
    return points


def _lines(axes: Axes, rows: DataFrame, markers: Mapping[str, str]) -> None:
    for (device, mode), line in rows.groupby(["device", "mode"], sort=False):
        line = line.sort_values("x")
        axes.plot(line["x"], line["y"], color=MODE_COLOURS[mode], marker=markers[str(device)])
    ticks(axes.xaxis, sorted(set(rows["x"])), base=2)


def _utilisation(axes: Axes, rows: DataFrame) -> None:
    for n, (gpus, line) in enumerate(rows.groupby("gpus")):
        line = line.sort_values("x")
        axes.plot(line["x"], line["y"], color=PALETTE[n + 2], marker=".")
        end = line.iloc[-1]
        beside(axes, f"{int(str(gpus)):,} GPUs", float(end["x"]), float(end["y"]), 5)
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
    axes.set_xlim(-0.2, 40 * float(rows["x"].max()))  # with room for the labels


def _parts(points: DataFrame) -> str:
    sentences = []
    switched = points[points["mode"] != "electrical"]
    for panel, (_, _, text) in _SWEEPS.items():
        ends, rows = [], where(switched, panel=panel)
        for (device, mode), line in rows.groupby(["device", "mode"], sort=False):
            extremes = line.sort_values("x").iloc[[0, -1]]
            values = phrases(extremes, text.format("{y:q}") + " at {x:q}", " and ")
            ends.append(f"{device} {MODE_LABELS[str(mode)].lower()} {values}")
        if text:
            sentences.append(f"{panel.capitalize()}: {'; '.join(ends)}.")
    used = where(points, panel="utilisation").groupby("gpus")["y"].agg(["max", "min"]).reset_index()
    shares = phrases(used, "{gpus:,} GPUs {max:q} % to {min:q} %", ", ")
    return " ".join([*sentences, f"Utilisation: {shares}."])
